"""Dead letters as an operator meets them: listed by `stretto events`, retried, and published."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

import pytest

from stretto.assembly.opening import open_component
from stretto.commands.events import DEAD_LETTERS_MAX
from stretto.postgres.bus import PostgresBusStore
from stretto.postgres.connections import Database
from stretto.targets.delivery import PutOff
from support.command_process import stretto
from support.database import commit_group_event
from support.operator_shell import operator
from support.runbook import COMMANDS
from support.waiting import until
from support.webhook_receiver import URL_DIGEST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from uuid import UUID

    from stretto.events.log import CommittedEvent
    from support.database import Connection


async def dead_letter(database_url: str, connection: Connection, keys: Sequence[str]) -> list[UUID]:
    """Have the events of alice's groups die; return their ids in the order of their making."""
    async with Database(database_url) as database:
        store = PostgresBusStore(database)
        place = await store.present()
        ids = [await commit_group_event(connection, key) for key in keys]
        page = await store.page(place, len(keys))
        # The bus begins behind them: they are published only if they are retried.
        await store.open()
        await store.refuse(dict.fromkeys(page.events, "larger than 7 bytes"))
        reason = "larger than 7 bytes"
        await store.settle([], [PutOff(id_, is_try=True, dead_reason=reason) for id_ in ids])
    return ids


async def dead(connection: Connection) -> set[UUID]:
    """Return the dead letters."""
    rows = await connection.fetch(
        "SELECT event_id FROM outbox_delivery WHERE dead_reason IS NOT NULL"
    )
    return {row["event_id"] for row in rows}


async def test_dead_letters_are_listed_with_their_reasons(
    database_url: str, connection: Connection
) -> None:
    """The oldest first; nothing is changed by looking."""
    assert (0, "no dead letters\n", "") == await stretto("events", DATABASE_URL=database_url)
    ids = await dead_letter(database_url, connection, ("a", "b"))
    code, output, _ = await stretto("events", DATABASE_URL=database_url)
    *letters, total = output.splitlines()
    assert (0, "2 dead letters") == (code, total)
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    for id_, letter in zip(ids, letters, strict=True):
        expected = f"{id_} group.created of {time}, 2 tries: larger than 7 bytes"
        assert re.fullmatch(expected, letter)
    assert set(ids) == await dead(connection)


@pytest.mark.parametrize(
    ("expected", "count"),
    [
        (f"{DEAD_LETTERS_MAX} dead letters", DEAD_LETTERS_MAX),
        (f"the oldest {DEAD_LETTERS_MAX} dead letters; there are more", DEAD_LETTERS_MAX + 1),
    ],
)
async def test_a_list_that_is_cut_says_so(
    expected: str, count: int, database_url: str, connection: Connection
) -> None:
    """What is shown is not the number of all."""
    await connection.execute(
        """INSERT INTO outbox_delivery (reader, event_id, subject, conversation_id, recipients,
                                        group_name, created_at, due_at, dead_reason)
           SELECT 'bus', gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), '{a}',
                  'Team', clock_timestamp(), clock_timestamp(), 'number ' || number
           FROM generate_series(1, $1::int) AS number""",
        count,
    )
    code, output, _ = await stretto("events", DATABASE_URL=database_url)
    *letters, total = output.splitlines()
    assert (0, expected, DEAD_LETTERS_MAX) == (code, total, len(letters))
    assert letters[0].endswith(": number 1")


async def test_those_that_are_named_are_retried_and_no_others(
    database_url: str, connection: Connection
) -> None:
    """What is unknown, or not dead, is not counted, and is said."""
    first, second, third = await dead_letter(database_url, connection, ("a", "b", "c"))
    named = [f"--retry={id_}" for id_ in (first, second, uuid.uuid4())]
    code, output, errors = await stretto("events", *named, DATABASE_URL=database_url)
    assert (1, "2 events will be tried again\n") == (code, output)
    assert "stretto: 1 of these ids are no dead letters" in errors
    assert {third} == await dead(connection)
    code, output, _ = await stretto("events", named[0], DATABASE_URL=database_url)
    assert (1, "0 events will be tried again\n") == (code, output)
    code, output, _ = await stretto("events", f"--retry={third}", DATABASE_URL=database_url)
    assert (0, "1 events will be tried again\n") == (code, output)


async def test_all_and_one_of_them_is_refused(database_url: str, connection: Connection) -> None:
    """An id that is none would go unnoticed."""
    ids = await dead_letter(database_url, connection, ("a",))
    both = ("--retry-all", f"--retry={uuid.uuid4()}")
    code, output, errors = await stretto("events", *both, DATABASE_URL=database_url)
    assert (2, "") == (code, output)
    assert "leave out --retry" in errors
    assert {*ids} == await dead(connection)


async def test_the_commands_of_the_runbook_list_and_retry(
    database_url: str, connection: Connection, tmp_path: Path
) -> None:
    """One by one, and all that are left."""
    show, retry, retry_all, retry_waiting = COMMANDS["dead letters"]
    first, *_ = await dead_letter(database_url, connection, ("a", "b", "c"))
    async with operator("dead letters", tmp_path) as one:
        one.variables["STRETTO_DATABASE_URL"] = database_url
        assert "3 dead letters" in await one.run(show)
        assert "1 events" in await one.run(retry, {" ID": f" {first}"})
        assert "2 events" in await one.run(retry_all)
        assert "no dead letters" in await one.run(show)
        await connection.execute("UPDATE outbox_delivery SET due_at = due_at + interval '1 day'")
        assert "3 waiting events" in await one.run(retry_waiting)


@pytest.mark.parametrize(("lease_seconds", "due"), [("5", "50 s"), ("3600", "50 min")])
async def test_what_waits_is_tried_now(
    lease_seconds: str, due: str, database_url: str, connection: Connection
) -> None:
    """After an outage of the endpoint; what may be under way and what is dead stay as they are."""
    late, soon, letter = await dead_letter(database_url, connection, ("a", "b", "c"))
    await connection.execute(
        """UPDATE outbox_delivery
           SET dead_reason = NULL, due_at = clock_timestamp()
               + CASE event_id WHEN $1::uuid THEN interval '10 h' ELSE $3::text::interval END
           WHERE event_id = ANY (ARRAY[$1, $2]::uuid[])""",
        *(late, soon, due),
    )
    settings = {"DATABASE_URL": database_url, "RELAY_LEASE_SECONDS": lease_seconds}
    code, output, _ = await stretto("events", "--retry-waiting", **settings)
    assert (0, "1 waiting events will be tried now") == (code, output.splitlines()[0])
    rows = await connection.fetch(
        "SELECT event_id FROM outbox_delivery WHERE due_at <= clock_timestamp() AND dead_reason IS NULL"
    )
    assert [late] == [row["event_id"] for row in rows]
    assert {letter} == await dead(connection)


async def test_what_is_no_id_is_reported(database_url: str) -> None:
    """And nothing is replayed instead."""
    code, _, errors = await stretto("events", "--retry", "x", DATABASE_URL=database_url)
    assert 2 == code
    assert "valid UUID" in errors


class ListeningBus:
    """Says which events were published."""

    def __init__(self) -> None:
        self.ids: set[UUID] = set()

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        self.ids |= {event.event_id for event in events}
        return {}


async def test_a_retried_event_is_published_under_its_id(
    database_url: str, connection: Connection
) -> None:
    """Once the bus takes it."""
    ids = set(await dead_letter(database_url, connection, ("a", "b")))
    bus = ListeningBus()
    async with open_component(database_url, bus=bus):
        code, output, _ = await stretto("events", "--retry-all", DATABASE_URL=database_url)
        assert (0, "2 events will be tried again\n") == (code, output)
        await until(lambda: ids <= bus.ids)
        # They leave the table behind the bus's answer.
        waiting = "SELECT NOT EXISTS (SELECT FROM outbox_delivery)"
        await until(lambda: connection.fetchval(waiting))


async def test_a_pause_of_the_webhook_is_shown_and_ended(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In UTC, wherever the operator is; with what was put off meanwhile; a second time there is nothing to end."""
    await connection.execute(
        """INSERT INTO outbox_reader (name, history, seen, target_digest, paused_until)
           SELECT 'webhook', history, seen, $1, '2999-01-02 03:04:05Z' FROM outbox_present""",
        URL_DIGEST,
    )
    await connection.execute(
        """INSERT INTO outbox_delivery (reader, event_id, subject, conversation_id, recipients,
                                        group_name, created_at, due_at)
           VALUES ('webhook', gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), '{a}',
                   'Team', clock_timestamp(), clock_timestamp() + interval '1 day')"""
    )
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    monkeypatch.setenv("PGTZ", "Asia/Kolkata")
    _, output, _ = await stretto("events", DATABASE_URL=database_url)
    assert "the webhook is paused until 2999-01-02T03:04:05Z, as" in output
    _, output, _ = await stretto("events", "--enable-webhook", DATABASE_URL=database_url)
    assert "the webhook is enabled\nno dead letters\n" == output
    is_due = "SELECT due_at <= clock_timestamp() + clock_ahead FROM outbox_delivery, outbox_reader"
    assert await connection.fetchval(is_due)
    _, output, _ = await stretto("events", "--enable-webhook", DATABASE_URL=database_url)
    assert output.startswith("the webhook was not disabled or paused\n")
