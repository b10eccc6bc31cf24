"""BatchWriter: claims a batch and leads what was won, in one round trip if that may be.

Claim and lead are two commits in any case. If the one round trip fails, the attempts show which of
the two has failed, and what follows is the same as if they had been sent one after the other.
Nothing here follows, or decides what a request means.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Final

from stretto.creation.blame import is_away
from stretto.creation.contention import ContendedKeys
from stretto.creation.flight import rejection_of
from stretto.creation.leads import LeadWriter
from stretto.creation.ports import NotLed
from stretto.creation.requests import has_several_owners, kept
from stretto.store_errors import InDoubt, Locked, OutcomeUnknown, StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from stretto.creation.breakers import OwnerBreakers
    from stretto.creation.ports import Write, WriteRequest, WriteResult, WriteStore
    from stretto.observations import Observer
    from stretto.runtime.mailbox import Mailbox

# Keys that held up a batch before are claimed alone, after the others, for so long in each batch.
CONTENDED_SECONDS_MAX: Final = 0.1


class BatchWriter:
    """Claims, and has the claims led; one round trip for all where that goes through."""

    def __init__(
        self,
        store: WriteStore,
        mailbox: Mailbox[Write, WriteResult],
        breakers: OwnerBreakers,
        observe: Observer,
    ) -> None:
        """Take the mailbox only to see whether others wait."""
        self._store = store
        self._breakers = breakers
        self._clock_seconds = breakers.clock_seconds
        self._leads = LeadWriter(store, mailbox, breakers, observe)
        self.contended = ContendedKeys()

    async def write(self, batch: Sequence[WriteRequest]) -> int:
        """Claim a batch together, then lead what was won; return how many led."""
        has_claimed = any(request.message.is_claimed for request in batch)
        started = self._clock_seconds()
        is_in_steps = has_claimed or not batch or not self._store.writes_at_once
        if is_in_steps or self._is_doubtful(batch):
            return await self._write_in_steps(batch, self._claim, started)
        failed: list[StoreError] = []
        is_lost = False
        try:
            return await self._write_at_once(batch, started)
        except StoreError as error:
            if is_away(error):
                raise
            is_lost = _is_lost(error)
            if not is_lost:
                failed.append(error)
        except Exception as error:
            if len(batch) == 1:
                raise
            await self._leads.forget_bug(error)
        if is_lost:
            # Lead them all: the fence lets through what carries our token.
            return await self._leads.lead(batch)
        # If the claim failed, no attempt carries our tokens. If the lead failed, the claims stand.
        tokens = await self._leads.unlocked(batch)
        if not tokens:
            claim = partial(self._claim, failed=failed)
            return await self._write_in_steps(batch, claim, started)
        claimed = kept(batch, tokens)
        if len(claimed) < len(batch):
            # The attempts of the others may be locked. Without them the lead may go through.
            failed.clear()
        return await self._leads.lead(claimed, started, failed)

    async def write_contended(self, batch: list[WriteRequest]) -> int:
        """Claim each alone, for at most `CONTENDED_SECONDS_MAX`; lead those that won together."""
        # In random order: a key that gets no time now gets it in another batch.
        random.shuffle(batch)
        return await self._write_in_steps(batch, self._claim_contended, self._clock_seconds())

    async def write_probe(self, request: WriteRequest, *, is_hasty: bool) -> int:
        """Claim and lead one request alone; only a lock is tried again."""
        if request.message.is_claimed or await self._claim([request]):
            return await self._leads.lead_probe(request, is_hasty=is_hasty)
        # Not won: the request follows. After the lease it reclaims, and comes back as claimed: so
        # an owner that only retries one key is probed as well.
        request.answer(NotLed())
        return 0

    async def write_apart(self, batch: Sequence[WriteRequest], since: float) -> int:
        """Claim and lead each alone, for a bounded time: their owners are suspects, or newcomers.

        What is not tried is not claimed. `since`: when the batch's other requests began.
        """
        awaited = []
        for request in batch:
            if request.message.is_abandoned():
                # Its client has left: do not spend the time of those who wait.
                request.fail(rejection_of(request.message))
            else:
                awaited.append(request)
        led, untried = await self._leads.one_by_one(awaited, since).write(
            lambda each: self.write_probe(each, is_hasty=True)
        )
        self._leads.untried += untried
        return sum(led)

    def put_back(self, batch: Sequence[WriteRequest]) -> None:
        """Leave these for a later batch: no time is left for them."""
        self._leads.untried += batch

    def take_untried(self) -> list[WriteRequest]:
        """Return the requests for which no time was left: they are to be put back."""
        untried, self._leads.untried = self._leads.untried, []
        return untried

    async def _write_at_once(self, batch: Sequence[WriteRequest], started: float) -> int:
        """Claim and lead in one round trip; return how many led. Handles no error."""
        with self._leads.reporting(batch, "claim_and_lead"):
            led = await self._store.claim_and_lead(
                [request.message for request in batch], is_hasty=len(batch) > 1
            )
        return self._leads.answered(batch, led, started)

    async def _write_in_steps(
        self,
        batch: Sequence[WriteRequest],
        claim: Callable[[Sequence[WriteRequest]], Awaitable[set[UUID]]],
        started: float,
    ) -> int:
        """Claim what is not claimed yet, then lead."""
        claims = [request for request in batch if not request.message.is_claimed]
        try:
            won = await claim(claims) if claims else set()
        except StoreError as error:
            if len(claims) > 1 or is_away(error):
                raise
            # As after a lead that has failed alone: the others have their turn.
            self._leads.charge_alone(claims[0].message, started, error)
            claims[0].fail(error)
            won = set()
        leads = []
        untried = {request.message.claim_token for request in self._leads.untried}
        for request in batch:
            if request.message.is_claimed or request.message.claim_token in won:
                leads.append(request)
            elif request.message.claim_token not in untried:
                request.answer(NotLed())
        if self._is_doubtful(leads):
            return await self._leads.lead_parts(leads)
        return await self._leads.lead(leads) if leads else 0

    def _is_doubtful(self, batch: Sequence[WriteRequest]) -> bool:
        """Whether a batch would be refused as a whole: many were, and may be again."""
        if not self._breakers.are_many_refused or not has_several_owners(batch):
            return False
        owners = (request.message.new_group.owner for request in batch)
        return not all(map(self._breakers.is_reliable, owners))

    async def _claim(
        self, batch: Sequence[WriteRequest], failed: list[StoreError] | None = None
    ) -> set[UUID]:
        """Return the tokens that may lead. `failed`: the error of an earlier claim (as `lead`)."""
        try:
            return await self._claim_once(batch, failed)
        except Locked:
            if len(batch) == 1:
                # The attempt is its leader's, or another request claims it at this moment: follow.
                self.contended.add(batch[0].message.group_id)
                batch[0].answer(NotLed())
                return set()
        except StoreError as error:
            if _is_lost(error):
                # As in `write`: the fence lets through what carries our token.
                return {request.message.claim_token for request in batch}
            if len(batch) == 1 or is_away(error):
                raise
        except Exception as error:
            if len(batch) == 1:
                raise
            await self._leads.forget_bug(error)
            # As after a lost connection: what was claimed before the bug is ours to lead.
            return {request.message.claim_token for request in batch}
        won, untried = await self._leads.one_by_one(batch).write(lambda each: self._claim([each]))
        self._leads.untried += untried
        return set().union(*won)

    async def _claim_once(
        self, batch: Sequence[WriteRequest], failed: list[StoreError] | None = None
    ) -> set[UUID]:
        """Claim a batch in one statement; return the tokens that won. Handles no error."""
        if failed:
            raise failed.pop()
        with self._leads.reporting(batch, "claim"):
            return await self._store.claim([request.message for request in batch])

    async def _claim_contended(self, batch: Sequence[WriteRequest]) -> set[UUID]:
        """Claim each alone until the time for contended keys is over."""
        won: set[UUID] = set()
        started = self._clock_seconds()
        for request in batch:
            since = self._clock_seconds()
            if since - started >= CONTENDED_SECONDS_MAX:
                break
            try:
                tokens = await self._claim([request])
            except StoreError as error:
                if is_away(error):
                    raise
                self._leads.charge_alone(request.message, since, error)
                request.fail(error)
                continue
            if tokens:
                self.contended.discard(request.message.group_id)
            won |= tokens
        return won


def _is_lost(error: StoreError) -> bool:
    """Whether the connection was lost with the write."""
    return isinstance(error, OutcomeUnknown) and not isinstance(error, InDoubt)
