"""Which creations are rejected before they are parsed, and which are not."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from stretto.client.replies import RETRY_AFTER_SECONDS_MAX
from stretto.domain import UserId
from stretto.http.admission import (
    ANSWERS_PER_TURN,
    FALSE_TOKENS_MAX,
    PAUSE_SECONDS_MAX,
    REFUSED_BEFORE_MAX,
    UNKNOWN_OWNERS_MAX,
    LoadShedder,
    UnknownOwner,
)
from stretto.runtime.mailbox import Mailbox
from support.waiting import until

ALICE, BOB = UserId("alice"), UserId("bob")
NEW, DOUBTED, REFUSED = UnknownOwner


def full_mailbox(messages_max: int) -> Mailbox[Any, Any]:
    """Return a mailbox whose messages name their owner, full with those of alice."""
    mailbox: Mailbox[Any, Any] = Mailbox(messages_max, lambda owner: owner)
    for _ in range(messages_max):
        mailbox.ask(ALICE)
    return mailbox


def admit_all(shedder: LoadShedder, owner: UserId | UnknownOwner) -> int:
    """Admit creations of this owner until there is no room for one; return how many."""
    for admitted in range(2000):
        if not shedder.has_room(owner):
            return admitted
        shedder.admit(owner)
    raise AssertionError("there is room without end")


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
    assert not shedder.has_room(ALICE)
    assert 3 == admit_all(shedder, BOB)
    assert not shedder.has_room(ALICE)
    shedder.arrived(BOB)
    assert shedder.has_room(BOB)


async def test_owners_who_are_not_known_are_admitted_a_few_at_a_time() -> None:
    """Their tokens would not be verified otherwise; a flood of false ones must not be verified."""
    shedder = LoadShedder(full_mailbox(UNKNOWN_OWNERS_MAX + 10), lambda: None)
    assert UNKNOWN_OWNERS_MAX == admit_all(shedder, NEW)
    assert shedder.has_room(BOB)
    shedder.arrived(NEW)
    assert shedder.has_room(NEW)


async def test_a_mailbox_with_room_takes_as_many_new_owners_as_it_has_places() -> None:
    """After a restart no token is remembered. Known owners take places from them."""
    mailbox: Mailbox[Any, Any] = Mailbox(UNKNOWN_OWNERS_MAX + 10)
    shedder = LoadShedder(mailbox, lambda: None)
    mailbox.ask("one")
    shedder.admit(ALICE)
    assert mailbox.messages_max - 2 == admit_all(shedder, NEW)


@pytest.mark.parametrize("kind", UnknownOwner)
async def test_owners_who_are_not_known_take_no_place_of_a_known_one(kind: UnknownOwner) -> None:
    """However many are on their way, and whether the mailbox has room."""
    shedder = LoadShedder(Mailbox(4), lambda: None)
    assert 4 == admit_all(shedder, kind)
    assert 4 == admit_all(shedder, ALICE)
    shedder = LoadShedder(full_mailbox(4), lambda: None)
    admit_all(shedder, kind)
    assert 3 == admit_all(shedder, BOB)


@pytest.mark.parametrize("kind", [DOUBTED, REFUSED])
async def test_false_tokens_take_no_place_of_a_new_owner(kind: UnknownOwner) -> None:
    """Nor a place of those whose connection had a refused token, or the other way round."""
    other = REFUSED if kind is DOUBTED else DOUBTED
    # More than new owners have in a full one: beyond those they find places as in one with room.
    places = UNKNOWN_OWNERS_MAX + 10
    for make in (Mailbox, full_mailbox):
        alone = LoadShedder(make(places), lambda: None)
        counts = [admit_all(alone, each) for each in (NEW, other)]
        shedder = LoadShedder(make(places), lambda: None)
        admit_all(shedder, kind)
        assert counts == [admit_all(shedder, each) for each in (NEW, other)]


async def test_false_tokens_have_few_places_at_all_times() -> None:
    """Without a flood they get their 401, also while the mailbox is empty not many at once."""
    for places, mailbox in (
        ({DOUBTED: FALSE_TOKENS_MAX, REFUSED: FALSE_TOKENS_MAX}, Mailbox[Any, Any](1000)),
        ({DOUBTED: REFUSED_BEFORE_MAX, REFUSED: 0}, full_mailbox(1000)),
    ):
        shedder = LoadShedder(mailbox, lambda: None)
        assert places == {kind: admit_all(shedder, kind) for kind in places}
        for kind, count in places.items():
            for _ in range(count):
                shedder.arrived(kind)
        assert (0, {}) == (shedder._coming, shedder._coming_of)


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


async def test_an_owner_with_hundreds_of_connections_leaves_places_to_others() -> None:
    """Whether the mailbox is empty or full; in one turn of the loop, before any handler begins."""
    for mailbox in (Mailbox[Any, Any](40), full_mailbox(40)):
        shedder = LoadShedder(mailbox, lambda: None)
        for _ in range(40):
            shedder.admit(ALICE)
        expected: dict[UserId | UnknownOwner, int] = {
            BOB: 1,
            NEW: UNKNOWN_OWNERS_MAX,
            DOUBTED: REFUSED_BEFORE_MAX,
            REFUSED: 0,
        }
        assert not shedder.has_room(ALICE)
        assert expected == {owner: admit_all(shedder, owner) for owner in expected}


class Client:
    """A connection that adds the rejections that it gets to a list."""

    def __init__(self, sent: list[bytes]) -> None:
        self._sent = sent

    def send_rejection(self, answer: bytes) -> None:
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        self._sent.append(answer)


class Pauses:
    """Shows how the pause changes, with a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.shedder = LoadShedder(Mailbox(10), lambda: None, lambda: self.now)
        self._sent: list[bytes] = []

    async def after(
        self,
        seconds: float,
        admitted: int,
        rejected: int,
        owner: UserId | UnknownOwner = ALICE,
    ) -> int:
        """Return the pause that the next rejected client is asked for, after these of that owner."""
        self.now += seconds
        for _ in range(admitted):
            self.shedder.admit(owner)
            self.shedder.arrived(owner)
        for _ in range(rejected):
            self.shedder.reject(Client(self._sent), owner)
        await until(lambda: len(self._sent) >= rejected)
        found = re.search(rb"\r\nRetry-After: (\d+)\r\n", self._sent[-1])
        assert found is not None
        self._sent.clear()
        return int(found[1])


@pytest.mark.parametrize("owner", [ALICE, NEW])
async def test_the_pause_grows_while_more_are_rejected_than_admitted(
    owner: UserId | UnknownOwner,
) -> None:
    """It is judged when the clients that got it are back; an overload that is over is forgotten."""
    pauses = Pauses()
    assert await pauses.after(0, 0, 1, owner) == 1
    # The first ones are not back yet.
    assert await pauses.after(0.9, 0, 50, owner) == 1
    grown = [await pauses.after(seconds, 1, 50, owner) for seconds in (0.1, 2, 4, 8, 16, 30, 30)]
    assert [2, 4, 8, 16, PAUSE_SECONDS_MAX, PAUSE_SECONDS_MAX, PAUSE_SECONDS_MAX] == grown
    # As many as are admitted may be rejected; where it is half of them at most, the pause is shorter.
    assert [30, 15] == [await pauses.after(30, 50, rejected, owner) for rejected in (40, 20)]
    assert await pauses.after(15 + 15.1, 0, 50, owner) == 1


def test_our_own_client_obeys_the_longest_pause() -> None:
    """If it came sooner, its retries would prolong the overload."""
    assert PAUSE_SECONDS_MAX <= RETRY_AFTER_SECONDS_MAX


@pytest.mark.parametrize("kind", [DOUBTED, REFUSED])
async def test_false_tokens_change_the_pause_of_no_other(kind: UnknownOwner) -> None:
    """Neither those that are rejected nor those that are admitted; where no others are, it ends."""
    pauses = Pauses()
    assert [1, 1, 1] == [await pauses.after(1, 1, 50, kind) for _ in range(3)]
    assert await pauses.after(1, 0, 50) == 2
    # Nor is the pause of those that are rejected in an overload the shorter for admitted ones.
    assert await pauses.after(1, 0, 1) == 2
    assert await pauses.after(1, 50, 1, kind) == 4
    assert [2, 1, 1] == [await pauses.after(seconds, 1, 50, kind) for seconds in (4, 2, 1)]


async def test_rejections_are_sent_in_turns_that_leave_room_for_others() -> None:
    """However many they are, the loop goes round in between."""
    sent: list[bytes] = []
    counted: list[int] = []
    shedder = LoadShedder(Mailbox(0), lambda: counted.append(1))
    for _ in range(2 * ANSWERS_PER_TURN + 1):
        shedder.reject(Client(sent), ALICE)
    turns = []
    while len(sent) < len(counted):
        await asyncio.sleep(0)
        turns.append(len(sent))
    assert [ANSWERS_PER_TURN, 2 * ANSWERS_PER_TURN, 2 * ANSWERS_PER_TURN + 1] == turns[-3:]


async def test_a_client_that_sends_on_takes_one_place_among_those_that_wait() -> None:
    """It gets its rejection when it sends the next creation; others do not wait for those."""
    shedder = LoadShedder(Mailbox(0), lambda: None)
    sent: list[bytes] = []
    impatient, patient = Client([]), Client(sent)
    for _ in range(3 * ANSWERS_PER_TURN):
        shedder.reject(impatient, ALICE)
    shedder.reject(patient, BOB)
    await asyncio.sleep(0)
    assert 1 == len(sent)


async def test_a_client_that_has_gone_is_not_kept() -> None:
    """Nor does it make the loop send more of the others' rejections in a turn."""
    sent: list[bytes] = []
    shedder = LoadShedder(Mailbox(0), lambda: None)
    for _ in range(3):
        gone = Client(sent)
        shedder.reject(gone, ALICE)
        shedder.forget(gone)
    assert not shedder._pending
    for _ in range(2 * ANSWERS_PER_TURN):
        shedder.reject(Client(sent), ALICE)
    await asyncio.sleep(0)
    assert ANSWERS_PER_TURN == len(sent)
