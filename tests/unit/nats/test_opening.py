"""NATS without its client, which is an extra."""

from __future__ import annotations

from typing import Any, cast

import pytest

from stretto.nats import opening
from stretto.nats.opening import Bus, describe_streams, make_nats
from stretto.start_errors import ConfigurationError

BUS = Bus("nats://localhost", "stretto", "here")


async def test_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a component and by the command."""
    monkeypatch.setattr(opening, "find_spec", lambda _: None)
    nothing = cast("Any", None)
    with pytest.raises(ConfigurationError, match=r"install stretto\[nats\]"):
        make_nats(BUS, nothing, nothing, nothing, rehearse=nothing)
    with pytest.raises(ConfigurationError, match=r"install stretto\[nats\]"):
        await describe_streams(BUS)
