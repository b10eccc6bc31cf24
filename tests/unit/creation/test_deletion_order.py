"""Whose deletion is next: known owners and others have half of the time each."""

from __future__ import annotations

from stretto.creation.deletion_order import DeletionOrder
from stretto.domain import UserId

KNOWN_SECONDS = 10.0
# What most work takes; sums of it are exact.
SECONDS = 1 / 64


class Turns:
    """Turns of an order; time passes in its work alone."""

    def __init__(self) -> None:
        self.order: DeletionOrder[str] = DeletionOrder(KNOWN_SECONDS)
        self.now = 0.0

    def turn(self, batch: str, count: int | None = None, **seconds: float) -> str:
        """Do so much of the work in a batch, such as "a1 b1 a2"; return it in order.

        Without a count, all of it. `seconds`: how long that of an owner takes.
        """
        self.order.begin([(UserId(work[0]), work) for work in batch.split()], self.now)
        done: list[str] = []
        while self.order and len(done) != count:
            done.append(work := self.order.take())
            began, self.now = self.now, self.now + seconds.get(work[0], SECONDS)
            self.order.note(UserId(work[0]), began, self.now)
        return " ".join(done)


def test_newcomers_come_in_the_order_of_the_batch() -> None:
    """That of the mailbox, in which owners take turns."""
    assert "a1 b1 c1 a2 b2 a3" == Turns().turn("a1 b1 c1 a2 b2 a3")


def test_of_known_owners_the_one_whose_last_deletion_is_longest_ago_comes_first() -> None:
    """Wherever its work is in the batch, and however much it has there."""
    turns = Turns()
    turns.turn("a1 b1 c1 d1")
    assert "a2 b2" == turns.turn("d2 c2 b2 a2", 2)
    assert "c2 d2 a3 b3 a4 a5" == turns.turn("a3 a4 a5 b3 d2 c2")


def test_known_owners_and_others_have_half_of_the_time_each() -> None:
    """However many of either wait, and however long each of them takes."""
    turns = Turns()
    turns.turn("k1 l1")
    known = " ".join(f"k{number} l{number}" for number in range(2, 99))
    work = turns.turn(f"a1 b1 c1 {known}", a=50 * SECONDS).split()
    assert ["k2", "a1"] == work[:2]
    assert 50 == work[2:].index("b1")
    assert ["b1", "l27", "c1"] == work[52:55]


def test_time_in_which_one_kind_alone_has_waited_is_owed_to_none() -> None:
    """Nor is what was owed before: it may be long ago."""
    turns = Turns()
    turns.turn("k1")
    turns.turn("k2 a1", a=5.0)
    turns.turn("k3", k=4.0)
    assert "k4 b1 k5 c1" == turns.turn("b1 c1 d1 e1 k4 k5 k6", 4)


def test_an_owner_is_known_for_a_bounded_time() -> None:
    """Then it comes as a newcomer does, and costs no memory."""
    turns = Turns()
    turns.turn("a1 b1")
    turns.now = KNOWN_SECONDS + 1.5 * SECONDS
    assert "b2 c1 a2" == turns.turn("c1 a2 b2")
    turns.now += KNOWN_SECONDS
    turns.turn("")
    assert not turns.order._last_at


def test_what_a_turn_has_no_time_for_is_returned_in_the_order_of_the_batch() -> None:
    """Of both kinds of owners; once."""
    turns = Turns()
    turns.turn("a1 b1")
    turns.turn("b2 c1 a2 d1 a3", 2)
    assert ["b2", "d1", "a3"] == turns.order.take_rest()
    assert not turns.order
    assert [] == turns.order.take_rest()
