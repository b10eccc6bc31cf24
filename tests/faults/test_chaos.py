"""A quick pass of chaos: every fault once, in a shuffled order, while clients ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chaos.run import run_chaos
from chaos.wire_proxy import FaultKind

if TYPE_CHECKING:
    from pathlib import Path

SEED = 4
# `make chaos` has more: nearly all time goes into settling what they have asked for.
CLIENTS, RESUMPTIONS = 4, 25


# A minute of faults, and everything that is started, settled and checked.
@pytest.mark.timeout(900)
async def test_nothing_is_doubled_lost_or_falsely_failed_under_any_fault(tmp_path: Path) -> None:
    """And the run has really tried it: faults met their statements, outcomes were unknown."""
    outcome = await run_chaos(SEED, tmp_path, clients_max=CLIENTS, resumptions_max=RESUMPTIONS)
    report = "\n".join(outcome.lines())
    assert [] == outcome.violations, report
    assert set(outcome.faults.values()) == {1}
    assert len(outcome.met) > len(FaultKind) / 2, report
    statuses = {operation.status for operation in outcome.history.operations}
    assert {None, 200, 201, 204, 400, 401, 410, 422, 503} <= statuses, report
    assert "deleted" in {o.state for o in outcome.history.operations if o.do == "create"}, report
    assert outcome.failures["write.failed OutcomeUnknown"] > 0, report
