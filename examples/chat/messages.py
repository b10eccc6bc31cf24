"""Messages of conversations: the host's own table beside stretto's.

stretto creates the conversation with its group; `next_offset` there numbers the messages. A message
has an id that its sender has chosen, so that a retry does not write it twice.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import asyncpg

if TYPE_CHECKING:
    from uuid import UUID

    import stretto

PAGE_MESSAGES: Final = 100
# Messages of this process wake their readers; those of other processes are seen so much later.
LOOK_AGAIN_SECONDS: Final = 1.0

TABLE: Final = """CREATE TABLE IF NOT EXISTS public.message (
    conversation_id uuid        REFERENCES stretto.conversation ON DELETE CASCADE,
    message_offset  bigint,
    message_id      uuid        NOT NULL UNIQUE,
    author          text,
    body            text        NOT NULL CHECK (length(body) BETWEEN 1 AND 4000),
    sent_at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (conversation_id, message_offset)
)"""

# One row of `conversation` is locked until the end of the transaction: offsets have no gaps, and a
# reader that has seen offset 7 will never find a new 6.
SEND: Final = """WITH numbered AS (
    UPDATE stretto.conversation SET next_offset = next_offset + 1
    WHERE conversation_id = $1 AND ($3::text IS NULL OR EXISTS (
        SELECT FROM stretto.conversation_member WHERE conversation_id = $1 AND user_id = $3
    ))
    RETURNING next_offset - 1 AS message_offset
)
INSERT INTO public.message (conversation_id, message_offset, message_id, author, body)
SELECT $1, message_offset, $2, $3, $4 FROM numbered
RETURNING message_offset"""

SENT: Final = """SELECT message_offset FROM public.message
WHERE message_id = $1 AND conversation_id = $2 AND author IS NOT DISTINCT FROM $3"""

PAGE: Final = """SELECT message_offset, author, body, sent_at FROM public.message
WHERE conversation_id = $1 AND message_offset >= $3 AND EXISTS (
    SELECT FROM stretto.conversation_member WHERE conversation_id = $1 AND user_id = $2
)
ORDER BY message_offset LIMIT $4"""


class NoSuchConversation(Exception):
    """There is none of which the user is a member."""


class Messages:
    """Writes and reads messages; wakes readers that wait."""

    def __init__(self) -> None:
        self._waiting: defaultdict[UUID, set[asyncio.Event]] = defaultdict(set)

    async def write(
        self,
        connection: stretto.Connection,
        conversation: UUID,
        message: UUID,
        author: str | None,
        body: str,
    ) -> int:
        """Write a message once, from a member or from the house; return its offset.

        `wake` its readers once it is committed. Raises `NoSuchConversation`, also for an id that is
        another message's.
        """
        try:
            offset = await connection.fetchval(SEND, conversation, message, author, body)
        except asyncpg.UniqueViolationError:
            offset = await connection.fetchval(SENT, message, conversation, author)
        if offset is None:
            raise NoSuchConversation
        return int(offset)

    def wake(self, conversation: UUID) -> None:
        """Have the readers of a conversation look again."""
        for event in self._waiting.get(conversation, ()):
            event.set()

    async def read(
        self,
        pool: stretto.Pool,
        conversation: UUID,
        user: str,
        offset: int,
        wait_seconds: float,
    ) -> list[dict[str, Any]]:
        """Return the messages from an offset on; wait for the first one, holding no connection."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_seconds
        # Before the first look: what is written after it wakes.
        woken = asyncio.Event()
        self._waiting[conversation].add(woken)
        try:
            while True:
                woken.clear()
                rows = await pool.fetch(PAGE, conversation, user, offset, PAGE_MESSAGES)
                left = end - loop.time()
                if rows or left <= 0:
                    return [{**row, "sent_at": row["sent_at"].isoformat()} for row in rows]
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), min(left, LOOK_AGAIN_SECONDS))
        finally:
            self._waiting[conversation].discard(woken)
            if not self._waiting[conversation]:
                del self._waiting[conversation]
