"""`stretto size`: how large a deployment becomes."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Final

import typer
from rich.filesize import decimal
from rich.table import Table

from stretto.commands.console import stdout
from stretto.commands.options import require_range
from stretto.environment import read_settings
from stretto.postgres.lanes import connections
from stretto.postgres.sizing import (
    BACKEND_BYTES,
    DAY_SECONDS,
    PROCESS_BYTES,
    SESSION_BYTES,
    Demand,
    image_bytes,
    random_index_bytes,
    tables,
    wal_bytes,
)
from stretto.start_errors import ConfigurationError

# PostgreSQL's own default.
_CHECKPOINT_SECONDS: Final = 300
_RATE_MIN: Final = 0.001
# Far beyond what one database takes, and small enough for every sum to be a number.
_RATE_MAX: Final = 1_000_000
_INSTANCES_MAX: Final = 10_000


def size(  # noqa: PLR0913, PLR0917 each is an option
    rate: Annotated[float, typer.Option(help=f"Creations a second, {_RATE_MIN} to {_RATE_MAX}.")],
    members: Annotated[
        int, typer.Option(min=1, max=1001, help="Members of a group, with its owner.")
    ] = 5,
    retention: Annotated[
        str | None,
        typer.Option(metavar="DAYS", help="For how long attempts are kept: 30d. [the setting]"),
    ] = None,
    after: Annotated[
        str, typer.Option(metavar="DAYS", help="For how long groups have been created.")
    ] = "365d",
    outage: Annotated[
        str,
        typer.Option(
            metavar="DAYS",
            help="For how long the webhook's endpoint may be away; 0d: there is none.",
        ),
    ] = "1d",
    instances: Annotated[
        int, typer.Option(min=1, max=_INSTANCES_MAX, help="Instances of the service.")
    ] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Estimate rows, bytes, WAL, connections and memory."""
    require_range("--rate", rate, _RATE_MIN, _RATE_MAX)
    settings = read_settings()
    component, workers = settings.component, settings.workers
    demand = Demand(
        rate=rate,
        members=members,
        attempt_days=_days(retention) if retention else component.retention.retention_days,
        event_days=component.retention.event_retention_days,
        after_days=_days(after),
        outage_days=_days(outage, least=0),
        batch_max=component.batch_max,
    )
    sizes = tables(demand)
    logged, images = wal_bytes(demand), image_bytes(demand, _CHECKPOINT_SECONDS)
    held = connections(instances, workers, component.writers)
    report = {
        "tables": {
            table.name: {
                "rows": round(table.rows),
                "table_bytes": round(table.heap_bytes),
                "index_bytes": round(table.index_bytes),
            }
            for table in sizes
        },
        "bytes": round(sum(table.bytes for table in sizes)),
        "wal_bytes_per_creation": round(logged),
        "wal_page_bytes_per_creation": round(images),
        "wal_bytes_per_second": round((logged + images) * rate),
        "connections": held,
        "connection_memory_bytes": held * BACKEND_BYTES,
        "random_index_bytes": round(random_index_bytes(demand)),
        "service_memory_bytes": instances * workers * PROCESS_BYTES,
        "session_memory_bytes": SESSION_BYTES,
    }
    if as_json:
        # Not by orjson, which takes no more than 64 bits: the largest demand's bytes need more.
        stdout.print(json.dumps(report, indent=2))
        return
    stdout.print(
        f"{demand.after_days} days of {rate:g} creations a second; attempts of {demand.attempt_days}"
        f" and events of {demand.event_days} days are kept, those of {demand.outage_days} days wait for"
        " the webhook's endpoint\n"
    )
    stdout.print(_sizes(report))
    stdout.print(_rest(report))


def _days(text: str, least: int = 1) -> int:
    """Return the days of a text such as 30d; raises `ConfigurationError` for another."""
    found = re.fullmatch(r"(\d{1,5})d?", text)
    if found is None or int(found[1]) < least:
        message = f"{text!r} is no number of days, such as 30d"
        raise ConfigurationError(message)
    return int(found[1])


def _sizes(report: dict[str, Any]) -> Table:
    """Return rows and sizes, in units of 1000."""
    shown = Table("", "rows", "table", "indexes", "in all", box=None, pad_edge=False)
    for column in shown.columns[1:]:
        column.justify = "right"
    for name, each in report["tables"].items():
        table, indexes = each["table_bytes"], each["index_bytes"]
        sizes = (decimal(table), decimal(indexes), decimal(table + indexes))
        shown.add_row(name, f"{each['rows']:,}", *sizes)
    shown.add_row("all", "", "", "", decimal(report["bytes"]), end_section=True)
    return shown


def _rest(report: dict[str, Any]) -> Table:
    """Return what is no table."""
    logged = report["wal_bytes_per_second"]
    creation, pages = report["wal_bytes_per_creation"], report["wal_page_bytes_per_creation"]
    shown = Table("", "", "", box=None, pad_edge=False, show_header=False)
    for row in (
        ("WAL per second", decimal(logged), f"{decimal(logged * DAY_SECONDS)} a day"),
        ("  of a creation", decimal(creation), "its rows and index entries"),
        ("", decimal(pages), "whole pages, with a checkpoint every 5 minutes"),
        ("connections", str(report["connections"]), "of all instances, at most: max_connections;"),
        ("", "", "with PgBouncer max_client_conn, and"),
        ("", "", "in session mode default_pool_size"),
        ("memory", decimal(report["connection_memory_bytes"]), "of the server, for these"),
        ("", decimal(report["random_index_bytes"]), "of indexes that are read all over"),
        ("", decimal(report["service_memory_bytes"]), "of all instances"),
        ("", decimal(report["session_memory_bytes"]), "of an instance, for each live session"),
    ):
        shown.add_row(*row)
    return shown
