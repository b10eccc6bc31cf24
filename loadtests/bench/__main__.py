"""`make bench`: runs all parts in interleaved rounds; prints the ratios first."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
import statistics
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from loadtests.bench import costs, events, goals, overload, relays
from loadtests.bench.against import BEFORE, checkout, in_turn
from loadtests.bench.bench import Bench
from loadtests.bench.growth import Grown, million
from loadtests.bench.hostile import hostile
from loadtests.bench.machinery import BenchError
from loadtests.bench.parts import (
    ServicePart,
    conventional,
    floor,
    limit,
    own_statements,
)
from loadtests.bench.report import publish, tables
from rich.console import Console

from stretto.embedded.postgres import embedded_postgres

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from loadtests.bench.goals import Results
    from loadtests.bench.machinery import Measure

    Part = Callable[[Bench], Awaitable[Measure]]

DATA_DIR = Path(".bench-postgres")

# Sized as docs/operations.md advises for a dedicated server, and fully durable.
SERVER = {"shared_buffers": "2GB", "max_wal_size": "16GB"}

PARTS: dict[str, Part] = {
    "floor": floor,
    "conventional, 1 client": conventional(1),
    goals.CONVENTIONAL: conventional(16),
    "own statements, 1 client": own_statements(1),
    "own statements, 16 clients": own_statements(16),
    "limit": limit,
    "one by one": ServicePart("new", 128, settings={"BATCH_MAX": "1", "WRITERS": "16"}),
    goals.ALONE: ServicePart("new", 1),
    goals.CREATE_32: ServicePart("new", 32),
    goals.CREATE_128: ServicePart("new", 128),
    "create, 256 connections": ServicePart("new", 256),
    "create, 128 connections, 2 processes": ServicePart("new", 128, workers=2),
    "create, 256 connections, 2 processes": ServicePart("new", 256, workers=2),
    "replay": ServicePart("replay", 64),
    "mix": ServicePart("mix", 128),
    "same key, 2 processes": ServicePart("same", 256, workers=2),
    goals.COST_CREATE: costs.creations,
    goals.COST_REPLAY: costs.replays,
    goals.COST_FLOOR: costs.requests,
    goals.COST_CONVENTIONAL: costs.transactions,
    goals.FIVE_MILLION: Grown(5),
    goals.MILLION: million,
    "relay": relays.relay,
    "relay to NATS": relays.relay_to_nats,
    "events: create to session": events.create_to_session,
    "events: create to session, NATS": events.create_to_session_through_nats,
    "events: one to 5,000 sessions": events.fan_out,
    "events: 10,000 idle sessions": events.idle,
    "events: a mute session": events.mute,
    goals.THRICE: overload.thrice,
    "overload: a database that stood still": overload.stall,
    "overload: clients that retry": overload.retries,
    "hostile clients beside good ones": hostile,
}

# These take minutes and much disk space: one round is enough.
ONCE = (
    goals.FIVE_MILLION,
    goals.MILLION,
    "overload: a database that stood still",
)

# Beginnings of the parts that use nothing of a service but its processes and its HTTP: these are
# measured at the other revision too. The others call code of this one.
COMPARED = ("create, ", "replay", "mix", "same key", "cost: create", "cost: replay", goals.THRICE)


def main() -> None:
    """Run the parts that the command line selects."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each part is measured")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each time")
    parser.add_argument("--only", default="", help="parts whose name contains this")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the large numbers: groups, operations"
    )
    parser.add_argument("--against", help="revision to measure in turns with this one")
    parser.add_argument("--json", type=Path, help="file for the figures, as JSON lines")
    parser.add_argument(
        "--page", type=Path, help="page whose figures are replaced, and the pictures beside it"
    )
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("make bench needs wrk, the load generator (Debian: apt-get install wrk)")
    try:
        with ExitStack() as stack:
            before = stack.enter_context(checkout(arguments.against)) if arguments.against else None
            asyncio.run(_run(arguments, before))
    except BenchError as error:
        sys.exit(f"bench: {error}")


async def _run(arguments: argparse.Namespace, before: Path | None) -> None:
    console = Console(stderr=True, highlight=False)
    async with embedded_postgres(DATA_DIR, notify=console.print, settings=SERVER) as server:
        bench = Bench(server, arguments.seconds, arguments.scale)
        benches = [bench, replace(bench, tree=before)] if before else [bench]
        results, failed = await _measured(arguments, benches, console)
    facts = _machine() | ({"before": before.name} if before else {})
    if arguments.json:
        _write_json(arguments.json, results, facts)
    if arguments.page:
        publish(arguments.page, results, facts)
    out = Console(width=110)
    for table in tables(results):
        out.print(table)
    if failed:
        message = f"these parts have failed: {', '.join(sorted(failed))}"
        raise BenchError(message)


async def _measured(
    arguments: argparse.Namespace, benches: list[Bench], console: Console
) -> tuple[Results, set[str]]:
    """Return the measures of all rounds, and the parts that have failed.

    `benches` has one of this tree and, where two are compared, one of the other.
    """
    compared = COMPARED if len(benches) > 1 else ()
    results: Results = {}
    failed: set[str] = set()
    names = [name for name in PARTS if arguments.only in name]
    for number in range(arguments.rounds):
        wanted = [name for name in names if number == 0 or name not in ONCE]
        for name, is_before in in_turn(wanted, number, compared):
            title = f"{BEFORE}{name}" if is_before else name
            if title in failed:
                continue
            console.print(f"round {number + 1}: {title} …")
            try:
                found = await PARTS[name](benches[is_before])
            except (BenchError, TimeoutError) as error:
                # One failure must not lose half an hour of other parts.
                console.print(f"round {number + 1}: {title}: failed: {error!r}")
                failed.add(title)
                continue
            results.setdefault(title, []).append(found)
            console.print(f"round {number + 1}: {title}: {found.per_second:,.0f}/s")
    return {name: found for name, found in results.items() if name not in failed}, failed


def _write_json(path: Path, results: Results, facts: dict[str, Any]) -> None:
    with path.open("wb") as file:
        file.write(orjson.dumps({"machine": facts}) + b"\n")
        for name, measures in results.items():
            median = statistics.median(m.per_second for m in measures)
            line = {"part": name, "per_second": median, "rounds": measures}
            file.write(orjson.dumps(line) + b"\n")


def _machine() -> dict[str, Any]:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "processors": os.cpu_count(),
        "memory_gib": round(memory_bytes / 2**30),
    }


if __name__ == "__main__":
    main()
