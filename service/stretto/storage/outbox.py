"""The outbox: an event's row as the document that everybody is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    import asyncpg

SOURCE: Final = "urn:stretto"


def envelope(row: asyncpg.Record) -> bytes:
    """Return a row as a CloudEvents 1.0 document in JSON; the same bytes whoever asks."""
    return orjson.dumps(
        {
            "specversion": "1.0",
            "id": str(row["event_id"]),
            "source": SOURCE,
            "type": row["event_type"],
            "subject": str(row["subject"]),
            "time": row["created_at"].isoformat(),
            "datacontenttype": "application/json",
            "data": orjson.Fragment(row["payload"]),
        }
    )
