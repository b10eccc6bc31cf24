"""The command `stretto`, also as `python -m stretto`: handles signals before it loads the rest."""

from __future__ import annotations

import os
import signal
from typing import Final

# What a shell reports of a program that SIGTERM has ended.
EXIT_TERMINATED: Final = 128 + signal.SIGTERM
EXIT_INTERRUPTED: Final = 128 + signal.SIGINT


def main() -> None:
    """Run the command."""
    if os.getpid() == 1:
        # The kernel drops a signal to PID 1, such as a container's, that has no handler. Loading
        # takes about a second, in which there is nothing to put in order.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_TERMINATED))
    # Not where it is ignored, as in a shell's background.
    is_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_interruptible:
        # A KeyboardInterrupt would show where the loading was.
        signal.signal(signal.SIGINT, _interrupt)
    from stretto.cli import main as run_command  # noqa: PLC0415

    if is_interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_command()


def _interrupt(*_: object) -> None:
    os.write(2, b"stretto: interrupted\n")
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
