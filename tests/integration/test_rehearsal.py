"""A rehearsed write of another owner: whether what one owner has met is the server's state."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.postgres.readiness import rehearse_for_others
from stretto.store_errors import Exhausted, Misconfigured

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from stretto.assembly.component import Component
    from support.database import Connection


async def refuse(connection: Connection, condition: str, state: str) -> None:
    """Have a trigger refuse the groups for which this is true."""
    await connection.execute(f"""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{state}'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON chat_group FOR EACH ROW WHEN ({condition})
        EXECUTE FUNCTION refuse()""")


async def lead(component: Component, owner: str) -> None:
    """Write a group of this owner."""
    new_group = NewGroup.parse(UserId(owner), {"name": "Team"})
    await component.creator.create(IdempotencyKey("k"), new_group)


def rehearsal(component: Component) -> Callable[[str], Awaitable[None]]:
    """Return what the commands of a process ask."""
    return partial(rehearse_for_others, component.database, component.write_stores)


async def test_another_owner_shows_whether_a_failure_is_one_owners(
    component: Component, connection: Connection
) -> None:
    """Whoever was led last; and nothing is left of what was rehearsed."""
    await lead(component, "alice")
    await refuse(connection, "NEW.owner_id = 'alice'", "53100")
    await rehearsal(component)("alice")
    with pytest.raises(Exhausted):
        await rehearsal(component)("bob")
    assert 1 == await connection.fetchval("SELECT count(*) FROM chat_group")


async def test_where_no_group_was_led_a_missing_right_shows_nothing(
    component: Component, connection: Connection
) -> None:
    """A rule of the operator's may take no groups but those of owners whom it knows."""
    await refuse(connection, "true", "42501")
    await rehearsal(component)("alice")
    await connection.execute("ALTER TABLE chat_group DISABLE TRIGGER refuse")
    await lead(component, "alice")
    await connection.execute("ALTER TABLE chat_group ENABLE TRIGGER refuse")
    with pytest.raises(Misconfigured):
        await rehearsal(component)("alice")
