"""What a service's log says of an observation."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import orjson

from stretto.telemetry.logs import configured_logging, log_observation

if TYPE_CHECKING:
    import pytest

    from stretto.observations import Observation


def logged(capsys: pytest.CaptureFixture[str], event: Observation) -> list[dict[str, Any]]:
    """Return what a service logs of an event, line by line."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    # What is configured before is closed: the test runner's own handlers must not be.
    root.handlers.clear()
    try:
        with configured_logging(level="info", as_json=True):
            log_observation(event)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    return [orjson.loads(line) for line in capsys.readouterr().err.splitlines()]
