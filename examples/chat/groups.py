"""What the chat does when a group is created: a first message with it, and a greeting after it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4, uuid5

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from messages import Messages

    import stretto

# Offset 0 is free: nobody else knows of the conversation before the transaction commits.
OPEN: Final = """WITH opened AS (
    UPDATE stretto.conversation SET next_offset = 1 WHERE conversation_id = ANY($1::uuid[])
)
INSERT INTO public.message (conversation_id, message_offset, message_id, body)
SELECT conversation_id, 0, message_id, body
FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS first (conversation_id, message_id, body)"""


async def open_conversations(
    connection: stretto.Connection,
    created: Sequence[tuple[stretto.CreatedGroup, stretto.NewGroup]],
) -> None:
    """Write the first message of each new group, in the transaction that creates it (`on_create`).

    There is no group without it, and no message without its group.
    """
    await connection.execute(
        OPEN,
        [group.conversation_id for group, _ in created],
        [uuid4() for _ in created],
        [f"{new_group.owner} has created “{new_group.name}”." for _, new_group in created],
    )


class Greeter:
    """Greets the members of each new group, once, although its event may come more than once.

    It is the component's bus: one process at a time has the lease, and what fails is published again.
    The greeting's id follows from the event's: a second one is the same message. An effect without an
    id of its own needs `stretto.Inbox` instead.
    """

    def __init__(self, messages: Messages, pool: Callable[[], stretto.Pool]) -> None:
        self._messages = messages
        self._pool = pool

    async def publish(self, events: Sequence[stretto.CommittedEvent]) -> Mapping[UUID, str]:
        """Greet; none is refused, and an exception has the events published again."""
        for event in events:
            document = json.loads(event.envelope)
            if document["type"] == "group.created":
                await self._greet(event, document["data"])
        return {}

    async def _greet(self, event: stretto.CommittedEvent, group: Mapping[str, str]) -> None:
        guests = [user for user in event.recipients if user != group["owner_id"]]
        if not guests:
            return
        conversation = UUID(group["conversation_id"])
        greeting = uuid5(event.event_id, "greeting")
        body = f"Welcome, {', '.join(guests)}!"
        async with self._pool().acquire() as connection:
            await self._messages.write(connection, conversation, greeting, None, body)
        self._messages.wake(conversation)
