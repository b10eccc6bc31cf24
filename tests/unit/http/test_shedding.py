"""Which creations are rejected before they are parsed, and which are not."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from stretto.domain import UserId
from stretto.http.admission import (
    ANSWERS_PER_TURN,
    PAUSE_SECONDS_MAX,
    REFUSED_BEFORE_MAX,
    UNKNOWN_OWNERS_MAX,
    LoadShedder,
)
from stretto.runtime.mailbox import Mailbox
from support.waiting import until

ALICE, BOB = UserId("alice"), UserId("bob")


def full_mailbox(messages_max: int) -> Mailbox[Any, Any]:
    """Return a mailbox whose messages name their owner, full with those of alice."""
    mailbox: Mailbox[Any, Any] = Mailbox(messages_max, lambda owner: owner)
    for _ in range(messages_max):
        mailbox.ask(ALICE)
    return mailbox


async def test_what_is_on_its_way_to_the_mailbox_takes_room_in_it() -> None:
    """A loop reads all that has arrived before it works for any of it."""
    mailbox: Mailbox[Any, Any] = Mailbox(3)
    shedder = LoadShedder(mailbox, lambda: None)
    for _ in range(3):
        assert shedder.has_room(ALICE)
        shedder.admit(ALICE)
    assert not shedder.has_room(ALICE)
    mailbox.ask("one")
    shedder.arrived(ALICE)
    assert not shedder.has_room(ALICE)
    # One that has arrived, but did not end up in the mailbox.
    shedder.arrived(ALICE)
    assert shedder.has_room(ALICE)


async def test_a_full_mailbox_admits_an_owner_who_has_less_in_it_than_another() -> None:
    """As many as would take the places of the other; what is on its way counts for its owner."""
    shedder = LoadShedder(full_mailbox(4), lambda: None)
    admitted = 0
    while shedder.has_room(BOB):
        assert not shedder.has_room(ALICE)
        shedder.admit(BOB)
        admitted += 1
    assert admitted == 3
    shedder.arrived(BOB)
    assert shedder.has_room(BOB)


async def test_owners_who_are_not_known_are_admitted_a_few_at_a_time() -> None:
    """Their tokens would not be verified otherwise; a flood of false ones must not be verified."""
    shedder = LoadShedder(full_mailbox(UNKNOWN_OWNERS_MAX + 10), lambda: None)
    for _ in range(UNKNOWN_OWNERS_MAX):
        assert shedder.has_room(None)
        shedder.admit(None)
    assert not shedder.has_room(None)
    assert shedder.has_room(BOB)
    shedder.arrived(None)
    assert shedder.has_room(None)


async def test_clients_with_false_tokens_leave_places_to_others() -> None:
    """However many they are; and they do not need a mailbox's free places."""
    shedder = LoadShedder(full_mailbox(UNKNOWN_OWNERS_MAX + 10), lambda: None)
    while shedder.has_room(None, REFUSED_BEFORE_MAX):
        shedder.admit(None)
    assert {None: REFUSED_BEFORE_MAX} == shedder._coming_of
    assert not shedder.has_room(None, 0)
    assert shedder.has_room(None)
    assert LoadShedder(Mailbox(1), lambda: None).has_room(None, 0)


async def test_no_more_are_on_their_way_than_an_empty_mailbox_takes() -> None:
    """However many owners come in one turn of the loop."""
    shedder = LoadShedder(full_mailbox(4), lambda: None)
    owners = [UserId(f"owner{number}") for number in range(4)]
    for owner in owners:
        assert shedder.has_room(owner)
        shedder.admit(owner)
    assert not shedder.has_room(BOB)
    for owner in owners:
        shedder.arrived(owner)
    assert (0, {}) == (shedder._coming, shedder._coming_of)


async def test_the_pause_grows_while_more_are_rejected_than_admitted() -> None:
    """It is judged when the clients that got it are back; an overload that is over is forgotten."""
    now = [0.0]
    shedder = LoadShedder(Mailbox(10), lambda: None, lambda: now[0])
    sent: list[bytes] = []

    class Client:
        def send_rejection(self, answer: bytes) -> None:
            sent.append(answer)

    async def pause_after(seconds: float, admitted: int, rejected: int) -> int:
        now[0] += seconds
        for _ in range(admitted):
            assert shedder.has_room(ALICE)
            shedder.admit(ALICE)
            shedder.arrived(ALICE)
        for _ in range(rejected):
            shedder.reject(Client())
        await until(lambda: len(sent) >= rejected)
        found = re.search(rb"\r\nRetry-After: (\d+)\r\n", sent[-1])
        assert found is not None
        sent.clear()
        return int(found[1])

    assert await pause_after(0, 0, 1) == 1
    # The first ones are not back yet.
    assert await pause_after(0.9, 0, 50) == 1
    pauses = [await pause_after(seconds, 1, 50) for seconds in (0.1, 2, 4, 8, 16, 16)]
    assert [2, 4, 8, PAUSE_SECONDS_MAX, PAUSE_SECONDS_MAX, PAUSE_SECONDS_MAX] == pauses
    # As many as are admitted may be rejected; where it is less than half of them, the pause is shorter.
    assert [16, 8] == [await pause_after(16, 50, rejected) for rejected in (40, 20)]
    assert await pause_after(8 + 8.1, 0, 50) == 1


async def test_rejections_are_sent_in_turns_that_leave_room_for_others() -> None:
    """However many they are, the loop goes round in between."""
    sent: list[int] = []
    counted: list[int] = []

    class Client:
        def send_rejection(self, answer: bytes) -> None:
            assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            sent.append(1)

    shedder = LoadShedder(Mailbox(0), lambda: counted.append(1))
    for _ in range(2 * ANSWERS_PER_TURN + 1):
        shedder.reject(Client())
    turns = []
    while len(sent) < len(counted):
        await asyncio.sleep(0)
        turns.append(len(sent))
    assert [ANSWERS_PER_TURN, 2 * ANSWERS_PER_TURN, 2 * ANSWERS_PER_TURN + 1] == turns[-3:]
