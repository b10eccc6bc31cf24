"""A host's own codecs on the connection with which it changes groups."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

import stretto
from stretto.domain import IdempotencyKey
from support.changed_groups import TEAM, UNCHANGED, changed, changes, seen
from support.database import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from stretto.assembly.component import Component
    from support.database import Connection

CHANGES: tuple[tuple[Any, dict[str, Any]], ...] = (
    (stretto.rename_group, {"name": "Crew"}),
    (stretto.add_members, {"roles": {"dave": "member"}}),
    (stretto.remove_members, {"users": ["bob"]}),
    (stretto.set_role, {"user": "bob", "role": "admin"}),
)


@pytest.fixture
async def group(component: Component) -> UUID:
    """A group of alice's, with bob, and carol as an admin."""
    return (await component.creator.create(IdempotencyKey("k"), TEAM)).group.group_id


@pytest.fixture
async def host(database_url: str) -> AsyncIterator[Connection]:
    """A host's connection."""
    host = await connect(database_url)
    yield host
    host.terminate()


def marked(value: object) -> str:
    """Make another value of it."""
    return f"{value}{value}"


async def set_codec(
    host: Connection, name: str, encoder: Callable[[Any], str], decoder: Callable[[str], Any]
) -> None:
    """Have the host's connection send and read a type in its own way."""
    await host.set_type_codec(
        name, schema="pg_catalog", encoder=encoder, decoder=decoder, format="text"
    )


@pytest.mark.parametrize(
    ("name", "encoder", "decoder"),
    [
        ("bool", str, str),
        ("text", str, marked),
        ("text", marked, str),
        ("int4", str, str),
        ("int8", marked, int),
    ],
)
async def test_codecs_that_change_the_values_of_a_change_are_refused(
    name: str,
    encoder: Callable[[Any], str],
    decoder: Callable[[str], Any],
    group: UUID,
    host: Connection,
    connection: Connection,
) -> None:
    """Before anything is changed: a half made one would be taken for a whole one."""
    await set_codec(host, name, encoder, decoder)
    for change, arguments in CHANGES:
        with pytest.raises(stretto.ConfigurationError, match="leave the codecs"):
            await changed(host, change, group, **arguments)
    assert UNCHANGED == await seen(connection, group)
    assert [] == await changes(connection)


async def test_codecs_of_other_types_do_no_harm(
    group: UUID, host: Connection, connection: Connection
) -> None:
    """The twin: JSON that is parsed, ids that are texts, and a codec that reads as the driver."""
    await set_codec(host, "jsonb", json.dumps, json.loads)
    await set_codec(host, "uuid", str, str)
    await set_codec(host, "text", str, str)
    made = [await changed(host, change, group, **arguments) for change, arguments in CHANGES[:2]]
    assert [(1, ()), (2, ("dave",))] == [(each.revision, each.users) for each in made]
    assert 2 == (await seen(connection, group)).revision


@pytest.mark.parametrize("decoder", [str, marked, len])
@pytest.mark.parametrize("name", ["bool", "text", "int4", "uuid"])
async def test_no_codec_changes_what_is_said_of_a_deletion(
    name: str, decoder: Callable[[str], Any], group: UUID, host: Connection
) -> None:
    """True once; then, and of a group that there is not, false."""
    await set_codec(host, name, str, decoder)
    assert (await changed(host, stretto.delete_group, group)) is True
    assert (await changed(host, stretto.delete_group, group)) is False
    assert (await changed(host, stretto.delete_group, UUID(int=7))) is False


async def test_a_role_that_reads_texts_otherwise_changes_groups(
    group: UUID, host: Connection
) -> None:
    """The probe's own values do not depend on how the session reads a text."""
    await host.execute("SET array_nulls = off; SET standard_conforming_strings = off")
    for change, arguments in CHANGES[:3]:
        await changed(host, change, group, **arguments)
