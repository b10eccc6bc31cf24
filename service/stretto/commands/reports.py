"""What commands print: attempts and groups as JSON, and why a database failed during a command."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import orjson

from stretto.domain import group_id
from stretto.postgres.driver_errors import in_words
from stretto.postgres.remedies import remedy_of_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from stretto.creation.lookup import AttemptReport
    from stretto.creation.trail import TrailEntry
    from stretto.domain import Group, IdempotencyKey, UserId


def attempt_text(report: AttemptReport, retention_days: int) -> str:
    """Return the state of an attempt; `record` says whether its own row still exists.

    Without the row, only what follows from the group, or from the tombstone, is known.
    """
    failure = report.failure
    document = {
        "status": report.status,
        "record": _record(report, retention_days),
        "group_id": str(report.group_id),
        "conversation_id": report.conversation_id and str(report.conversation_id),
        "created_at": report.created_at,
        "claimed_at": report.claimed_at if report.is_recorded else None,
        "settled_at": report.settled_at if report.is_recorded else None,
        "failure": failure and {"code": failure.code, "detail": failure.detail},
    }
    return _indented(document)


def gone_text(owner: UserId, key: IdempotencyKey) -> str:
    """Return what is known of an attempt that has left a trail, and neither a row nor a group."""
    return _indented({"status": None, "record": "gone", "group_id": str(group_id(owner, key))})


def deleted_text(id_: UUID, deleted_at: datetime | None) -> str:
    """Return what is known of an attempt whose group was deleted."""
    document = {"status": "group_deleted", "record": "deleted", "group_id": str(id_)}
    return _indented({**document, "deleted_at": deleted_at})


def with_history(text: str, trail: Sequence[TrailEntry]) -> str:
    """Return the state of an attempt, a JSON object, with its trail: a line for each entry."""
    entries = [
        {
            field.name: getattr(entry, field.name)
            for field in fields(entry)
            if getattr(entry, field.name) is not None
        }
        for entry in trail
    ]
    lines = ",".join(f"\n    {orjson.dumps(entry, default=str).decode()}" for entry in entries)
    return text.removesuffix("\n}") + f',\n  "history": [{lines}\n  ]\n}}'


def _indented(document: Mapping[str, object]) -> str:
    return orjson.dumps(document, default=str, option=orjson.OPT_INDENT_2).decode()


def _record(report: AttemptReport, retention_days: int) -> str:
    """Return the state of the attempt's row: kept, swept, or deleted too early."""
    if report.is_recorded:
        return "kept"
    if report.created_at is None:
        # Its tombstone was made by the sweep.
        return "swept"
    is_old = report.created_at < datetime.now(UTC) - timedelta(days=retention_days)
    return "swept" if is_old else "deleted"


def unknown_attempt(owner: UserId, key: IdempotencyKey, retention_days: int) -> str:
    """Return the message for a key that has neither an attempt nor a group."""
    return (
        f"neither an attempt nor a group has the id {group_id(owner, key)}, which follows from this"
        " owner and key. Either no request with them was ever accepted (are both spelt as the client"
        f" sent them?), or its record was swept after {retention_days} days, or deleted by hand,"
        " before it had a group"
    )


def group_line(group: Group) -> str:
    """Return a group as one line of JSON."""
    return orjson.dumps(
        {
            "group_id": str(group.group_id),
            "conversation_id": str(group.conversation_id),
            "name": group.name,
            "kind": group.kind,
            "metadata": None
            if group.metadata_text is None
            else orjson.Fragment(group.metadata_text),
            "created_at": group.created_at,
            "members_count": group.members_count,
        }
    ).decode()


# Rights, or what the schema holds: the command fails in the same way until an operator acts.
_LASTING_CLASSES: Final = ("42", "3F")
# What a migration makes is there already, although its version is not recorded.
_TAKEN: Final = ("42P07", "42710", "42723")


def is_lasting_failure(error: Exception) -> bool:
    """Whether the command, run again, would meet the same error of the driver."""
    return (getattr(error, "sqlstate", None) or "").startswith(_LASTING_CLASSES)


def database_failure(error: Exception) -> str:
    """Return what an error of the driver during a command means, and what to do."""
    state = getattr(error, "sqlstate", None) or ""
    if state in ("42501", "3F000"):
        # PostgreSQL raises the latter where a role may not use the schema.
        remedy = "run the command as the owner of the tables, or as a role that may create them"
    elif state == "57014":
        # The server gives this code to a time-out and to another user's cancellation. Our sessions
        # have no time-out of their own; behind a pooler they have the role's.
        remedy = (
            "a time-out, or another user, has cancelled the statement: run ALTER ROLE … RESET"
            " statement_timeout and ALTER DATABASE … RESET statement_timeout if there is one, then"
            " the command again"
        )
    elif state in _TAKEN:
        remedy = (
            "the schema holds what another program, or a broken restore, has made: have"
            " STRETTO_DB_SCHEMA name an empty schema or a new one"
        )
    elif state.startswith("42"):
        remedy = (
            "the schema was changed by hand: restore what is missing, then run `stretto migrate`"
        )
    else:
        remedy = remedy_of_state(state) or "run the command again when the database works"
    return f"the database, or the connection to it, failed: {in_words(error)}; {remedy}"
