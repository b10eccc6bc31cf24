"""Requests of a batch: what is known of each, and which of them go on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stretto.creation.ports import NotLed
from stretto.runtime.rounds import Envelope

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from stretto.creation.ports import WriteRequest, WriteResult


def result_of(request: WriteRequest) -> WriteResult | None:
    """Return a request's result; None if it has no answer, an error, or a sender that has left."""
    answered = request.answered
    if not answered.done() or answered.cancelled() or answered.exception() is not None:
        return None
    return answered.result()


def has_several_owners(batch: Sequence[WriteRequest]) -> bool:
    """Whether the requests of a batch are not all of one owner."""
    return any(each.message.new_group.owner != batch[0].message.new_group.owner for each in batch)


def lead_order(request: WriteRequest) -> bytes:
    """Return what requests of one statement are sorted by.

    Every replica writes in the same order, so that they cannot deadlock each other.
    """
    return request.message.group_id.bytes


def age_order(request: WriteRequest) -> int:
    """Return a sort key, lowest for the oldest request: conversation ids are UUIDv7s."""
    return request.message.conversation_id.int


def kept(batch: Sequence[WriteRequest], tokens: set[UUID]) -> list[WriteRequest]:
    """Return the requests with these tokens; answer the others `NotLed`, so that they follow."""
    for request in batch:
        if request.message.claim_token not in tokens:
            request.answer(NotLed())
    return [request for request in batch if request.message.claim_token in tokens]


def as_claimed(batch: Sequence[WriteRequest]) -> list[WriteRequest]:
    """Return requests whose claims stand: they are led later, and not claimed again."""
    return [Envelope(replace(each.message, is_claimed=True), each.answered) for each in batch]
