"""The database's disks run full: nothing fails for good, and all is finished when there is room."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, TypeAlias

import pytest

from chaos.server import OwnServer, fill, small_disk
from support.api_client import settled_create
from support.database import sound
from support.service_process import apis

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.api_client import Api
    from support.database import Connection
    from support.service_process import StartService

    MakeRoom: TypeAlias = Callable[[], Awaitable[None]]
    FullDisk = Callable[[OwnServer, Connection, AsyncExitStack], Awaitable[MakeRoom]]

# As big as a group may be: some dozens of them fill what is left.
BIG = {"name": "Big", "members": [f"user-{number:0100}" for number in range(1000)]}
GROUPS_MAX = 200
# Beyond a file of WAL, so that only the tables' files meet it.
FILE_BYTES = 18 * 2**20
FILE_BYTES_ANY = 2**40
TABLES = ("attempt", "conversation", "chat_group", "conversation_member", "outbox")


async def grow_members(connection: Connection) -> None:
    """Bring the biggest table close to the size that a file may have."""
    await connection.execute(
        """INSERT INTO conversation (conversation_id, kind)
           VALUES ('00000000-0000-0000-0000-000000000000', 'direct')"""
    )
    size = 0
    while size < FILE_BYTES - 2**20:
        await connection.execute(
            """INSERT INTO conversation_member (conversation_id, user_id, role)
               SELECT '00000000-0000-0000-0000-000000000000', gen_random_uuid(), 'member'
               FROM generate_series(1, 5000)"""
        )
        size = await connection.fetchval("SELECT pg_relation_size('conversation_member')")


async def files_that_may_not_grow(
    server: OwnServer, beside: Connection, stack: AsyncExitStack
) -> MakeRoom:
    """The full disk of those who may not mount one: a limit on the tables' files."""
    await grow_members(beside)
    server.limit_files(FILE_BYTES)

    async def make_room() -> None:
        server.limit_files(FILE_BYTES_ANY)

    return make_room


async def wal_that_may_not_grow(
    server: OwnServer, beside: Connection, stack: AsyncExitStack
) -> MakeRoom:
    """The same for the files of the log: the server panics, and cannot recover."""
    offset = await beside.fetchval(
        "SELECT file_offset FROM pg_walfile_name_offset(pg_current_wal_lsn())"
    )
    server.limit_files(offset + 2**20)
    # A new server has no limit.
    return server.restart


async def full_data_disk(server: OwnServer, beside: Connection, stack: AsyncExitStack) -> MakeRoom:
    """The tables lie on a small disk, without room."""
    disk = await stack.enter_async_context(small_disk("24m", server.place.account))
    await beside.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
    for table in TABLES:
        await beside.execute(f"ALTER TABLE {table} SET TABLESPACE small")
    filler = fill(disk)

    async def make_room() -> None:
        filler.unlink()

    return make_room


async def full_wal_disk(server: OwnServer, beside: Connection, stack: AsyncExitStack) -> MakeRoom:
    """The log lies on a small disk, without room: the server panics when it needs some."""
    await server.stop()
    log = server.place.cluster / "pg_wal"
    disk = await stack.enter_async_context(small_disk("96m", server.place.account))
    server.place.account.run("cp", "-a", f"{log}/.", disk)
    log.rename(log.with_name("pg_wal.before"))
    log.symlink_to(disk)
    assert await server.start()
    filler = fill(disk)

    async def make_room() -> None:
        filler.unlink()
        await server.restart()

    return make_room


WAYS: list[FullDisk] = [files_that_may_not_grow, wal_that_may_not_grow]
if os.geteuid() == 0:
    WAYS += [full_data_disk, full_wal_disk]


async def until_full(api: Api) -> int:
    """Create big groups until one is not created; return how many were."""
    for number in range(GROUPS_MAX):
        reply = await api.create(f"big-{number}", BIG)
        if reply.status != 201:
            assert reply.status in (409, 503)
            assert "same-key" == reply.json["retry"]
            return number
    raise AssertionError


@pytest.mark.parametrize("run_full", WAYS, ids=lambda way: way.__name__)
async def test_what_finds_no_room_is_finished_when_there_is_some(
    run_full: FullDisk, server: OwnServer, start_on_server: StartService, beside: Connection
) -> None:
    """The client is asked to retry with the same key; what was acknowledged stays."""
    async with AsyncExitStack() as stack:
        make_room = await run_full(server, beside, stack)
        service = await start_on_server()
        (api,) = await stack.enter_async_context(apis(service))
        created = await until_full(api)
        await make_room()
        replies = [await settled_create(api, f"big-{n}", BIG) for n in range(created + 3)]
        after = await server.connect()
        groups = await after.fetch("SELECT group_id, conversation_id FROM chat_group")
        members = await after.fetchval(
            """SELECT min(count) FROM (SELECT count(*) FROM conversation_member
               JOIN chat_group USING (conversation_id) GROUP BY conversation_id) AS counted"""
        )
        assert await sound(after)
        await after.close()
    assert {201} == {reply.status for reply in replies}
    answered = {(reply.json["group_id"], reply.json["conversation_id"]) for reply in replies}
    assert answered == {(str(row["group_id"]), str(row["conversation_id"])) for row in groups}
    assert 1001 == members
