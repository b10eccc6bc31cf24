"""What a host's code raises to end its process, where that would only end our event loop."""

from __future__ import annotations

from stretto.kinds import is_a, name_of


class ExitAsError:
    """Within it `SystemExit` and `KeyboardInterrupt` are raised as a `RuntimeError`.

    A task that raises one of these ends its event loop, and the host with it. A context manager,
    and none of `contextlib`: no frame of ours comes between the host's and those that a log shows.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        """Take the name of what the host has handed in."""
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if is_a(error, (KeyboardInterrupt, SystemExit)):
            message = f"{self._name} raised {name_of(error)}"
            raise RuntimeError(message) from error
