"""`make bench`: runs all parts in interleaved rounds; prints the ratios first."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import orjson
from loadtests.bench import events, overload, relays
from loadtests.bench.growth import Grown, million
from loadtests.bench.hostile import hostile
from loadtests.bench.machinery import BenchError, Measure
from loadtests.bench.parts import (
    Bench,
    ServicePart,
    conventional,
    floor,
    limit,
    own_statements,
)
from loadtests.bench.report import Results, publish, ratios_table, results_table
from rich.console import Console

from stretto.embedded.postgres import embedded_postgres

DATA_DIR = Path(".bench-postgres")

# Sized as docs/operations.md advises for a dedicated server, and fully durable.
SERVER = {"shared_buffers": "2GB", "max_wal_size": "16GB"}

PARTS: dict[str, Any] = {
    "floor": floor,
    "conventional, 1 client": conventional(1),
    "conventional, 16 clients": conventional(16),
    "own statements, 1 client": own_statements(1),
    "own statements, 16 clients": own_statements(16),
    "limit": limit,
    "one by one": ServicePart("new", 128, batch_max=1, writers=16),
    "create, 1 connection": ServicePart("new", 1),
    "create, 32 connections": ServicePart("new", 32),
    "create, 128 connections": ServicePart("new", 128, is_counted=True),
    "create, 256 connections": ServicePart("new", 256),
    "create, 128 connections, 2 processes": ServicePart("new", 128, workers=2),
    "create, 256 connections, 2 processes": ServicePart("new", 256, workers=2),
    "replay": ServicePart("replay", 64),
    "mix": ServicePart("mix", 128),
    "same key, 2 processes": ServicePart("same", 256, workers=2),
    "grow: empty": Grown(0),
    "grow: 1 million groups": Grown(1),
    "grow: 5 million groups": Grown(5),
    "a million creations": million,
    "relay": relays.relay,
    "relay to NATS": relays.relay_to_nats,
    "events: create to session": events.create_to_session,
    "events: create to session, NATS": events.create_to_session_through_nats,
    "events: one to 5,000 sessions": events.fan_out,
    "events: 10,000 idle sessions": events.idle,
    "events: a mute session": events.mute,
    "overload: three times the peak": overload.thrice,
    "overload: a database that stood still": overload.stall,
    "overload: clients that retry": overload.retries,
    "hostile clients beside good ones": hostile,
}

# These take minutes and much disk space: one round is enough.
ONCE = (
    "grow: 1 million groups",
    "grow: 5 million groups",
    "a million creations",
    "overload: a database that stood still",
)


def main() -> None:
    """Run the parts that the command line selects."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each part is measured")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each time")
    parser.add_argument("--only", default="", help="parts whose name contains this")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the millions of groups that are made"
    )
    parser.add_argument("--json", type=Path, help="file for the figures, as JSON lines")
    parser.add_argument(
        "--page", type=Path, help="page whose figures are replaced, and the picture beside it"
    )
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("make bench needs wrk, the load generator (Debian: apt-get install wrk)")
    try:
        asyncio.run(_run(arguments))
    except BenchError as error:
        sys.exit(f"bench: {error}")


async def _run(arguments: argparse.Namespace) -> None:
    console = Console(stderr=True, highlight=False)
    parts = {name: part for name, part in PARTS.items() if arguments.only in name}
    results: Results = {name: [] for name in parts}
    failed: set[str] = set()
    async with embedded_postgres(DATA_DIR, notify=console.print, settings=SERVER) as server:
        bench = Bench(server, arguments.seconds, arguments.scale)
        for number in range(arguments.rounds):
            for name, part in parts.items():
                if name in failed or (number > 0 and name in ONCE):
                    continue
                console.print(f"round {number + 1}: {name} … ", end="")
                try:
                    measure: Measure = await part(bench)
                except (BenchError, TimeoutError) as error:
                    # One failure must not lose half an hour of other parts.
                    console.print(f"failed: {error!r}")
                    failed.add(name)
                    continue
                results[name].append(measure)
                console.print(f"{measure.per_second:,.0f}/s")
    results = {name: found for name, found in results.items() if name not in failed}
    if arguments.json:
        _write_json(arguments.json, results)
    if arguments.page:
        publish(arguments.page, results, _machine())
    out = Console(width=110)
    out.print(ratios_table(results))
    out.print(results_table(results))
    if failed:
        message = f"these parts have failed: {', '.join(sorted(failed))}"
        raise BenchError(message)


def _write_json(path: Path, results: Results) -> None:
    with path.open("wb") as file:
        file.write(orjson.dumps({"machine": _machine()}) + b"\n")
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
