"""The methods of `docs/which-method.md`: their SQL is run, interrupted, and held against the table."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from support.methods import Method, Place

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from support.database import Connection

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = (DOCS / "which-method.md").read_text()
COLUMNS: Final = ("lost", "dies", "swept", "at once", "round trips", "flushes")
ROWS: Final = {
    name: dict(zip(COLUMNS, cells.replace("*", "").strip(" |").split(" | "), strict=True))
    for name, cells in re.findall(r"^\| \[[\w, ]+\]\(#([\w-]+)\) \| (.*)", PAGE, re.MULTILINE)
}
NUMBERS: Final = {"none": 0, "one": 1, "two": 2}
# Each figure of the page, and the part of `performance.md` that it is of.
FIGURES: Final = {
    "1.06": "create, 1 connection",
    "1.24": "conventional, 1 client",
    "13,843": "create, 256 connections",
    "2,780": "conventional, 16 clients",
    "60.36": "cost: create, 128 connections",
    "552.9": "cost: conventional, 16 clients",
    "0.0162": "cost: create, 128 connections",
}


SECTIONS: Final = {
    title.lower().replace(",", "").replace(" ", "-"): text
    for title, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
}
(ROOMS,) = re.findall(r"```sql\n(.*?)```", PAGE.partition("\n## ")[0], re.DOTALL)
METHODS: Final = {name: Method(ROOMS, SECTIONS[name]) for name in ROWS}


@pytest.fixture
async def place(connection: Connection, database_url: str) -> AsyncIterator[Place]:
    """Tables beside stretto's."""
    async with AsyncExitStack() as stack:
        yield Place(connection, database_url, stack)


async def at_once(place: Place, *statements: list[str]) -> int:
    """Have two replicas create the room in step; return how many rooms there are."""
    running = [(await place.replica()).steps(each) for each in statements]
    waiting: dict[AsyncGenerator[None], asyncio.Future[Any]] = {}
    while running:
        for replica in [*running]:
            step = waiting.pop(replica, None) or asyncio.ensure_future(anext(replica, "ended"))
            await place.until_done_or_waiting(step)
            if not step.done():
                waiting[replica] = step
            elif step.result() == "ended":
                running.remove(replica)
    return await place.rooms()


async def after_lost_answer(place: Place, method: Method) -> int:
    """Create, and create again; return how many rooms there are."""
    await place.renew(method.tables)
    for _ in range(2):
        replica = await place.replica()
        await replica.create(method.creation)
        if method.look:
            look = method.look.partition("\n")[2]
            assert 1 == len(await replica.run(look))
    return await place.rooms()


async def after_deaths(place: Place, method: Method) -> int:
    """Die after each number of statements, and create again; return the worst number of rooms."""
    rooms = set()
    for done in range(len(method.creation) + 1):
        await place.renew(method.tables)
        dying = await place.replica()
        steps = dying.steps(method.creation)
        for _ in range(done):
            await anext(steps)
        dying.die()
        await place.end_leases()
        await (await place.replica()).create(method.creation)
        rooms.add(await place.rooms())
    return min(rooms) if max(rooms) == 1 else max(rooms)


async def after_sweep(place: Place, method: Method) -> int:
    """Create, sweep the records, and create again; return how many rooms there are."""
    await place.renew(method.tables)
    await (await place.replica()).create(method.creation)
    await place.sweep()
    await (await place.replica()).create(method.creation)
    return await place.rooms()


async def of_two_at_once(place: Place, method: Method) -> int:
    """Return how many rooms two replicas make at the same time, also in a transaction each.

    Only in a transaction is a single statement of the other one met before its commit.
    """
    rooms = []
    for begin, end in (([], []), (["BEGIN;"], ["COMMIT;"])):
        statements = [*begin, *method.creation, *end]
        if statements.count("BEGIN;") < 2:
            await place.renew(method.tables)
            rooms.append(await at_once(place, statements, statements))
    assert 1 == len({*rooms})
    return rooms[0]


@pytest.mark.parametrize(
    ("column", "experiment"),
    [
        ("lost", after_lost_answer),
        ("dies", after_deaths),
        ("swept", after_sweep),
        ("at once", of_two_at_once),
    ],
)
@pytest.mark.parametrize("name", ROWS)
async def test_the_table_says_how_many_rooms_there_are(
    name: str, column: str, experiment: Callable[[Place, Method], Awaitable[int]], place: Place
) -> None:
    """Each cell begins with the number."""
    number = re.split(r"\W", ROWS[name][column])[0]
    assert NUMBERS[number] == await experiment(place, METHODS[name])


@pytest.mark.parametrize("name", ROWS)
def test_the_table_counts_round_trips_and_flushes(name: str) -> None:
    """A statement each; a flush for each commit that has written."""
    creation = METHODS[name].creation
    commits = [each for each in creation if re.match("INSERT|UPDATE|WITH", each)]
    flushes = 1 if "COMMIT;" in creation else len(commits)
    row = ROWS[name]
    assert (str(len(creation)), str(flushes)) == (row["round trips"], row["flushes"])


def changed(name: str, old: str, new: str) -> list[str]:
    """Return a method's creation with a change, which must fit."""
    statements = METHODS[name].creation
    assert any(old in each for each in statements)
    return [each.replace(old, new) for each in statements]


@pytest.mark.parametrize(
    "statements",
    [
        [each for each in METHODS["lock"].creation if "advisory" not in each],
        changed("lock", "BEGIN;", "BEGIN ISOLATION LEVEL REPEATABLE READ;"),
        [each for each in changed("lock", ":key;", ":key FOR UPDATE;") if "advisory" not in each],
    ],
    ids=["no lock", "repeatable read", "row lock"],
)
async def test_a_lock_in_the_wrong_way_makes_two_rooms(statements: list[str], place: Place) -> None:
    """The mistakes that the page names."""
    await place.renew(METHODS["lock"].tables)
    assert 2 == await at_once(place, statements, statements)


async def test_a_step_that_is_no_part_of_the_write_makes_two_rooms(place: Place) -> None:
    """A process that was only slow comes back after its lease; in one statement there is one room."""
    method = METHODS["state-machine"]
    begin, write = method.creation[:2], method.creation[2]
    insert = METHODS["table-of-keys"].creation[1]
    for statements, rooms in (([write], 1), ([insert, write.partition("INSERT")[0]], 2)):
        if rooms == 2:
            statements[1] += "SELECT * FROM done"
        await place.renew(method.tables)
        slow, next_one = await place.replica(), await place.replica()
        await slow.create(begin)
        await place.end_leases()
        await next_one.create([*begin, *statements])
        for statement in statements:
            await slow.run(statement)
        assert rooms == await place.rooms()


@pytest.mark.parametrize(
    ("name", "is_same"), [("unique-column", False), ("lock", False), ("derived-id", True)]
)
async def test_a_deleted_room_comes_back(name: str, is_same: bool, place: Place) -> None:
    """Under another id, or under its own; with a tombstone it would not."""
    await place.renew(METHODS[name].tables)
    ids = []
    for _ in range(2):
        await (await place.replica()).create(METHODS[name].creation)
        ids.append(await place.connection.fetchval("DELETE FROM room RETURNING id"))
    assert is_same == (ids[0] == ids[1])
    assert None not in ids


def test_every_figure_of_stretto_is_a_measured_one() -> None:
    """A new measurement changes both pages."""
    shown = re.findall(r"\d[\d,]*\.\d+|\d+,\d+", SECTIONS["stretto"])
    assert {*FIGURES} == {*shown}
    lines = (DOCS / "performance.md").read_text().splitlines()
    for figure, part in FIGURES.items():
        rows = [line for line in lines if line.startswith(f"| {part} |")]
        assert any(re.search(rf"(?<![\d.,]){figure}(?![\d])", row) for row in rows), figure
