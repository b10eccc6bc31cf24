"""Load shedding: rejects creations while more of them wait than the writers get done.

Under three times the load that a process can bear, most of its work is to reject. So a creation is
rejected before its request is parsed: no token is verified, no body decoded, no task begun. That costs
an eighth of a creation. The rejections sent in one turn of the loop take less time than a batch does:
the writers have their turn in between, however many clients are rejected.

Only a plain creation is rejected here. Any other request takes the way through the routes; a creation
among them is then rejected by the mailbox, where it would be queued.

The mailbox is fair between owners, so this is, too: where the mailbox is full, a creation is admitted
if its owner has fewer turns queued there than another. How many it takes itself is guessed by its size:
to parse a thousand members only for the mailbox to reject them costs as much as a small creation. Its
owner is known if its token was verified before. A few of other owners are admitted as well, in each
turn of the loop: a token is verified only then, so that an owner who comes during an overload would be
rejected for as long as it lasts.

Any client can send tokens that are not valid. So creations whose owner is not known are counted apart,
by what is known against their tokens (`UnknownOwner`). They never take the place of a known owner, and
no kind of them takes the places of another. Where something is known against a token, its kind has few
places, also while the mailbox is empty. What is admitted beyond the mailbox's places is bounded: by as
many new owners as it has places, and by these few. The mailbox rejects what it cannot queue of them.

Rejected clients retry. If many are rejected at once, their retries alone can keep the process overloaded
after the cause is gone (a metastable failure). So `Retry-After` doubles while more creations are rejected
than admitted. Creations with something against their tokens do not count there, else clients without any
valid token could make all others wait.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

from aiohttp.helpers import rfc822_formatted_time

from stretto.errors import Overloaded
from stretto.http.answers import around_date
from stretto.http.problems import problem_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from stretto.creation.ports import Write, WriteResult
    from stretto.domain import UserId
    from stretto.runtime.mailbox import Mailbox

# They take the loop 1.9 ms, a quarter of what a batch of 128 creations takes.
ANSWERS_PER_TURN: Final = 96
# Creations of new owners that are on their way to a full mailbox. A token takes up to 0.1 ms to
# verify; any client can send tokens that are not valid.
UNKNOWN_OWNERS_MAX: Final = 16
# Of a body, for one turn in the mailbox (`creation/writer.py`): 32 members with short ids. With long ids
# the guess is too high, which matters only while the mailbox is full; it is never above the largest
# group's turns.
BODY_BYTES_OF_TURN: Final = 512
TURNS_GUESSED_MAX: Final = 32
# As many of them may come from connections whose last token was refused. Not none: the connection may
# be a proxy's, which others use, too, or its client may have a new token.
REFUSED_BEFORE_MAX: Final = 4
# While the mailbox has room: creations from such connections, and as many with tokens that are known to
# be refused. To refuse one takes the loop 0.3 ms. Not none: a client whose token has expired learns it.
FALSE_TOKENS_MAX: Final = 16
PAUSE_SECONDS_MIN: Final = 1
# As long as our own client obeys (`client.py`). A rejection costs a third of a creation: after ten
# seconds without a database, at 80 % of the peak, clients that retry every 16 s are still too many.
PAUSE_SECONDS_MAX: Final = 30


class UnknownOwner(Enum):
    """Of a creation whose token is not remembered as verified: what is known against it."""

    NEW = auto()
    """Nothing: it may be the first creation of an owner."""
    DOUBTED = auto()
    """The last token of its connection was refused."""
    REFUSED = auto()
    """The token lacks our signature or was refused a short time ago, or there is none."""


_PLACES: Final = {
    UnknownOwner.NEW: (math.inf, UNKNOWN_OWNERS_MAX),
    UnknownOwner.DOUBTED: (FALSE_TOKENS_MAX, REFUSED_BEFORE_MAX),
    UnknownOwner.REFUSED: (FALSE_TOKENS_MAX, 0),
}
"""How many of each kind may be coming while the mailbox has room for them, and while it has none."""


class RejectedClient(Protocol):
    """A connection whose request was rejected."""

    def send_rejection(self, answer: bytes) -> None:
        """Send the rejection, unless it was sent or the client is gone."""


class LoadShedder:
    """Admits the creations that find a place in the writers' mailbox, and rejects the others."""

    def __init__(
        self,
        mailbox: Mailbox[Write, WriteResult],
        count: Callable[[], None],
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take what counts a rejection."""
        self._loop = asyncio.get_running_loop()
        self._pending: OrderedDict[RejectedClient, None] = OrderedDict()
        """Clients whose rejections are still to be sent. Each is there once, however many creations
        it sends without waiting for an answer: the others would wait behind all of them."""
        self._is_sending = False
        """Whether the loop will send some of them in its next turn."""
        self._mailbox = mailbox
        self._count = count
        self._coming = 0
        """Creations of known owners that the parser has accepted and no handler works for yet. There can be hundreds:
        a loop reads all that has arrived before any handler runs. Each connection counts for one at
        most, and gives its place back when its handler begins or the connection closes."""
        self._coming_of: dict[UserId | UnknownOwner, int] = {}
        """The same of each owner; of all unknown owners of a kind together."""
        self._clock_seconds = clock_seconds
        self._pause_seconds = PAUSE_SECONDS_MIN
        self._judge_at = float("-inf")
        """When the clients that got the last `Retry-After` are back."""
        self._admitted = self._rejected = 0
        """Creations since the pause was last judged, of known and new owners."""
        self._answer = _answer(self._pause_seconds)
        """The rejection around its date."""

    @property
    def answer(self) -> bytes:
        """The rejection, as it is sent at this time."""
        return rfc822_formatted_time().encode().join(self._answer)

    def has_room(self, owner: UserId | UnknownOwner, body_bytes: int = 0) -> bool:
        """Return whether one more creation of this owner finds a place in the mailbox.

        If the owner is not known: whether it finds one of the places for owners of its kind.
        """
        mailbox = self._mailbox
        is_full = self._coming + mailbox.places >= mailbox.messages_max
        # Nearly always: each repeat asks.
        if not (is_full or isinstance(owner, UnknownOwner)):
            return True
        coming = self._coming_of.get(owner, 0)
        if isinstance(owner, UnknownOwner):
            places, places_when_full = _PLACES[owner]
            if self._coming + coming + mailbox.places < mailbox.messages_max:
                return coming < places
            return coming < places_when_full and self._would_take(owner, coming, body_bytes)
        # No more in one turn of the loop than an empty mailbox would take; beyond, one of each owner
        # who has none on the way, as many again. One owner's connections must not take all places.
        is_beyond = self._coming >= mailbox.messages_max
        if is_beyond and (coming or len(self._coming_of) >= mailbox.messages_max):
            return False
        return self._would_take(owner, coming, body_bytes)

    def _would_take(self, owner: UserId | UnknownOwner, coming: int, body_bytes: int) -> bool:
        """Return whether the mailbox has a place for one more behind what is coming of this owner."""
        mailbox = self._mailbox
        if coming + mailbox.places < mailbox.messages_max:
            return True
        turns = min(1 + body_bytes // BODY_BYTES_OF_TURN, TURNS_GUESSED_MAX)
        return mailbox.would_displace(owner, coming + turns)

    def admit(self, owner: UserId | UnknownOwner) -> None:
        """Count a creation as coming, until `arrived` is called for it."""
        self._coming_of[owner] = self._coming_of.get(owner, 0) + 1
        if not isinstance(owner, UnknownOwner):
            self._coming += 1
        if _has_weight(owner):
            self.count_admitted()

    def count_admitted(self) -> None:
        """Count a creation that is in flight already."""
        self._admitted += 1

    def arrived(self, owner: UserId | UnknownOwner) -> None:
        """Count a creation as coming no longer: its handler has begun, or its client has gone."""
        if not isinstance(owner, UnknownOwner):
            self._coming -= 1
        self._coming_of[owner] -= 1
        if not self._coming_of[owner]:
            del self._coming_of[owner]

    def reject(self, client: RejectedClient, owner: UserId | UnknownOwner) -> None:
        """Reject a client's creation; its answer is sent in its turn."""
        self._count()
        if _has_weight(owner):
            self._rejected += 1
        self._pending[client] = None
        if not self._is_sending:
            self._is_sending = True
            self._loop.call_soon(self._send_some)

    def forget(self, client: RejectedClient) -> None:
        """Send nothing to a client that has its rejection, or has gone."""
        self._pending.pop(client, None)

    def _send_some(self) -> None:
        """Send as many rejections as one turn of the loop may take."""
        now = self._clock_seconds()
        if now >= self._judge_at:
            self._judge_pause(now)
        answer = self.answer
        for _ in range(min(ANSWERS_PER_TURN, len(self._pending))):
            client, _ = self._pending.popitem(last=False)
            client.send_rejection(answer)
        self._is_sending = bool(self._pending)
        if self._is_sending:
            self._loop.call_soon(self._send_some)

    def _judge_pause(self, now: float) -> None:
        """Double the pause while more are rejected than admitted; halve it when far fewer are.

        Also when none are: false tokens alone are no overload.
        """
        if now > self._judge_at + self._pause_seconds:
            # No client was rejected for a while: that was another overload.
            self._pause_seconds = PAUSE_SECONDS_MIN
        elif self._rejected > self._admitted:
            self._pause_seconds = min(2 * self._pause_seconds, PAUSE_SECONDS_MAX)
        elif self._rejected <= self._admitted // 2:
            self._pause_seconds = max(self._pause_seconds // 2, PAUSE_SECONDS_MIN)
        self._answer = _answer(self._pause_seconds)
        self._admitted = self._rejected = 0
        self._judge_at = now + self._pause_seconds


def _has_weight(owner: UserId | UnknownOwner) -> bool:
    """Return whether the pause of all is judged by this owner's creations, too."""
    return owner is UnknownOwner.NEW or not isinstance(owner, UnknownOwner)


def _answer(pause_seconds: int) -> tuple[bytes, bytes]:
    """Return the answer that the routes give to an overload: what is before its date, and behind."""
    return around_date(problem_response(Overloaded(retry_after_seconds=pause_seconds)))
