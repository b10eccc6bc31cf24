"""A host's bus: an answer that breaks its contract is not believed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from stretto.assembly.host_bus import HostsBus
from support.log_events import logged

ONE, TWO = logged(1).event, logged(2).event


class Bus:
    """Answers as the test says."""

    def __init__(self, reasons: Any) -> None:
        self.reasons = reasons

    async def publish(self, _: object) -> Any:
        return self.reasons


class Text(str):
    """A text of the host's own class."""

    __slots__ = ()


@pytest.mark.parametrize(
    "reasons",
    [
        None,
        [],
        {str(ONE.event_id): "too large"},
        {UUID(int=7): "another's"},
        {ONE.event_id: None},
        {ONE.event_id: ValueError("too large")},
        {ONE.event_id: "too large", TWO.event_id: b"too large"},
    ],
)
async def test_a_bus_that_breaks_its_contract_has_published_nothing(reasons: object) -> None:
    """A refused event would be passed over, and without a sign."""
    with pytest.raises(TypeError, match="must return the reasons of refused events by their ids"):
        await HostsBus(Bus(reasons)).publish([ONE, TWO])


@pytest.mark.parametrize("reasons", [{}, {ONE.event_id: "no"}, {ONE.event_id: Text("no")}])
async def test_refusals_by_id_and_reason_are_some(reasons: dict[UUID, str]) -> None:
    """The twin: they are passed on as plain texts."""
    answer = await HostsBus(Bus(reasons)).publish([ONE, TWO])
    assert reasons == answer
    assert {str} >= {type(reason) for reason in answer.values()}
