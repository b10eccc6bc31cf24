"""How many connections there are file descriptors for."""

from __future__ import annotations

import resource

import pytest

from stretto.server import FILES_OWN, _connections_max

ANY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("expected", "set_to", "limits"),
    [
        (1000, None, (2000, 2000)),
        (1000, None, (ANY, ANY)),
        (1000, (1000 + FILES_OWN, 2000), (256, 2000)),
        (1000, (1000 + FILES_OWN, ANY), (256, ANY)),
        (500, (500 + FILES_OWN, 500 + FILES_OWN), (256, 500 + FILES_OWN)),
        (1, (100, 100), (100, 100)),
    ],
)
def test_as_many_descriptors_as_needed_are_asked_for(
    expected: int,
    set_to: tuple[int, int] | None,
    limits: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither more than needed, nor more connections than there can be descriptors."""
    asked: list[tuple[int, int] | None] = [None]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: asked.append(both))
    assert (expected, set_to) == (_connections_max(1000), asked[-1])
