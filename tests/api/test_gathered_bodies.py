"""Bodies that are complete at once, long after their heads, take turns by their owners."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

from stretto.codec import BODIES_PER_TURN
from stretto.runtime.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Hashable

    import pytest

    from support.api_client import Api


async def test_a_creation_takes_a_turn_of_its_owner_to_unpack_its_body(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may cost 24 ms, and hundreds of them may be sent in one moment."""
    taken: list[tuple[Hashable, int]] = []
    take = Turns.take

    async def noted(turns: Turns, owner: Hashable, pieces: int = 1) -> None:
        taken.append((owner, pieces))
        await take(turns, owner, pieces)

    monkeypatch.setattr(Turns, "take", noted)
    reply = await api.request(
        "POST",
        "/v1/groups",
        data=gzip.compress(b'{"name":"Team"}'),
        headers={
            "Idempotency-Key": "k",
            "Content-Type": "application/json",
            "Content-Encoding": "gzip",
        },
    )
    assert 201 == reply.status
    assert ("alice", BODIES_PER_TURN) in taken
