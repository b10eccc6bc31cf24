"""What a test does to its database beside the service, and what it sees there."""

from __future__ import annotations

import os
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg
from uuid_utils.compat import uuid7

from stretto.domain import event_id, group_id
from stretto.postgres.check import check_database
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import TypeAlias

    from stretto.postgres.driver_connection import Connection as InnerConnection

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

# Names carry the process that distributes the tests: two runs at once do not meet.
RUN = f"test_{os.environ.setdefault('TEST_RUN', str(os.getpid()))}"
TEMPLATE = f"{RUN}_template"
# The fingerprint of a body that no test sends.
ANOTHER_BODY = b"another body...."
# The writer whose lead `writes_held_up` holds up.
LEADER = """SELECT pid FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = 'stretto'
              AND wait_event = 'advisory'"""
END_OURS = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
          WHERE datname = current_database() AND application_name = 'stretto'"""
# Ends those that are left; true once none is.
NO_SESSIONS = """SELECT count(pg_terminate_backend(pid)) = 0 FROM pg_stat_activity
                 WHERE datname = $1 AND backend_type = 'client backend'"""


# Where the WAL of the whole server ends.
WAL_END = "SELECT pg_current_wal_insert_lsn()"


def database_at(server: str, name: str) -> str:
    """Return the URL of a database on the server that a URL names."""
    return urlsplit(server)._replace(path=f"/{name}").geturl()


@asynccontextmanager
async def own_database(server: str, template: str = TEMPLATE) -> AsyncIterator[str]:
    """Make a database for one test alone, with the schema or another template; yields its URL."""
    name = f"{RUN}_{uuid.uuid4().hex}"
    admin = await asyncpg.connect(server)
    try:
        await admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        yield database_at(server, name)
        # Where a session has not ended yet, DROP DATABASE sleeps for 0.1 s before it looks again.
        await until(lambda: admin.fetchval(NO_SESSIONS, name))
        await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    finally:
        await admin.close()


async def connect(url: str) -> Connection:
    """Return a connection that sees the tables."""
    return await asyncpg.connect(url, server_settings={"search_path": "stretto,public"})


async def first_row(connection: Connection, query: str) -> asyncpg.Record:
    """Ask until there is a row: what we wait for has no other signal."""
    row = await until(lambda: connection.fetchrow(query))
    assert row is not None
    return row


async def groups(connection: Connection) -> int:
    """Count the groups."""
    count: int = await connection.fetchval("SELECT count(*) FROM chat_group")
    return count


async def unpublished(connection: Connection) -> int:
    """Count the events that the bus still has to get: beyond its reader's place, or refused once."""
    count: int = await connection.fetchval(
        """SELECT (SELECT count(*) FROM outbox
                   LEFT JOIN outbox_reader AS reader ON reader.name = 'bus'
                   WHERE (outbox.history < reader.history
                          OR (outbox.history = reader.history
                              AND pg_visible_in_snapshot(position, seen))) IS NOT TRUE)
                + (SELECT count(*) FROM outbox_delivery
                   WHERE reader = 'bus' AND dead_reason IS NULL)"""
    )
    return count


async def is_durable(connection: Connection, wal_end: int) -> bool:
    """Whether what was written first after that end of the WAL is flushed, by whichever backend."""
    found: bool = await connection.fetchval("SELECT pg_current_wal_flush_lsn() > $1", wal_end)
    return found


async def wal_flushes(connection: InnerConnection) -> int:
    """Count the flushes of the WAL by this very connection's backend so far.

    At the least: backends of other tests that flush at the same time flush its records as well. Now
    and then one more: it flushes a page that it evicts, and a segment of the WAL that it fills.
    """
    await connection.execute("SELECT pg_stat_force_next_flush()")
    count: int = await connection.fetchval(
        """SELECT sum(fsyncs)::int FROM pg_stat_get_backend_io(pg_backend_pid())
           WHERE object = 'wal'"""
    )
    return count


async def pass_over(connection: Connection) -> None:
    """Have the bus's reader take every event for published, as one does that waits for no answer."""
    await connection.execute(
        "UPDATE outbox_reader SET (history, seen) = ((SELECT max(number) FROM outbox_history),"
        " pg_current_snapshot()) WHERE name = 'bus'"
    )


async def sound(connection: Connection) -> bool:
    """Whether the whole database keeps its guarantees."""
    return (await check_database(connection, retention_days=30)).violations == []


async def commit_event(
    connection: Connection,
    recipients: tuple[str, ...] = ("alice", "bob"),
    *,
    event_id: uuid.UUID | None = None,
    subject: uuid.UUID | None = None,
    event_type: str | None = None,
) -> uuid.UUID:
    """Commit an event, in the transaction that is open or in one of its own; return its id.

    In the newest history and in the slot that is written to, as a lead does.
    """
    # The id of a change has its time.
    event_id = event_id or (uuid7() if event_type else uuid.uuid4())
    await connection.execute(
        """INSERT INTO outbox (slot, history, event_id, subject, recipients, conversation_id,
                               event_type, group_name)
           VALUES ((SELECT slot FROM outbox_slot ORDER BY number DESC LIMIT 1),
                   (SELECT max(number) FROM outbox_history),
                   $1, $2, $3, $4, $5, 'Team')""",
        *(event_id, subject or event_id, recipients, uuid7(), event_type),
    )
    return event_id


async def commit_group_event(connection: Connection, key: str) -> uuid.UUID:
    """Commit the event of a group of alice's, and not the group; return the event's id."""
    id_ = group_id("alice", key)
    return await commit_event(connection, event_id=event_id(id_), subject=id_)


async def pend(
    connection: Connection,
    key: str,
    fingerprint: bytes = ANOTHER_BODY,
    *,
    owner: str = "alice",
    seconds_ago: float = 0,
) -> uuid.UUID:
    """Leave a pending attempt behind, as a leader that died does; return the id of its group."""
    id_ = group_id(owner, key)
    await connection.execute(
        """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token, claimed_at)
           VALUES ($1, $2, $3, gen_random_uuid(),
                   clock_timestamp() - make_interval(secs => $4))""",
        *(id_, owner, fingerprint, seconds_ago),
    )
    return id_


async def end_session(connection: Connection, inner: InnerConnection) -> None:
    """Have the server end the session that a hook runs in."""
    pid = await inner.fetchval("SELECT pg_backend_pid()")
    await connection.execute("SELECT pg_terminate_backend($1, 5000)", pid)


async def lock_waiters(connection: Connection, count: int) -> None:
    """Wait until so many backends wait for a lock."""
    waiters = """SELECT count(*) >= $1 FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock'"""
    await until(lambda: connection.fetchval(waiters, count))


@asynccontextmanager
async def writes_held_up(connection: Connection) -> AsyncIterator[None]:
    """Let claims through and leads wait, on a lock that only tests take."""
    await connection.execute(
        """CREATE OR REPLACE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN
               SET LOCAL lock_timeout = 0;
               PERFORM pg_advisory_xact_lock_shared(7);
               RETURN NEW;
           END$$;
           CREATE OR REPLACE TRIGGER hold BEFORE INSERT ON conversation
               FOR EACH ROW EXECUTE FUNCTION hold();
           SELECT pg_advisory_lock(7)"""
    )
    yield
    await connection.execute("SELECT pg_advisory_unlock(7)")


async def set_read_only(connection: Connection, *, is_read_only: bool) -> None:
    """Have new sessions of the database refuse writes, or take them again."""
    name = await connection.fetchval("SELECT quote_ident(current_database())")
    setting = "default_transaction_read_only"
    change = f"SET {setting} = on" if is_read_only else f"RESET {setting}"
    await connection.execute(f"ALTER DATABASE {name} {change}")


@asynccontextmanager
async def login_role(connection: Connection, name: str) -> AsyncIterator[str]:
    """Make a role that may log in and nothing else, with the password `secret`; yields its name."""
    await connection.execute(f"""CREATE ROLE "{name}" LOGIN PASSWORD 'secret'""")
    yield name
    await connection.execute(f'DROP OWNED BY "{name}"; DROP ROLE "{name}"')


def seen_by(role: str, database_url: str) -> str:
    """Return the URL by which a login role connects to the database."""
    parts = urlsplit(database_url)
    place = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{role.replace(' ', '%20')}:secret@{place}").geturl()
