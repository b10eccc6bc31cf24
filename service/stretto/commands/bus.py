"""`stretto bus`: the streams on NATS, and which deployment's they are."""

from __future__ import annotations

from typing import Annotated

import typer

from stretto.commands.console import stdout
from stretto.commands.options import DatabaseUrl, DataDir
from stretto.commands.running import opened, run
from stretto.environment import read_settings
from stretto.nats.opening import Bus, describe_streams
from stretto.postgres.log import origin
from stretto.provision import bus_place


def bus(
    adopt: Annotated[
        bool,
        typer.Option(help="Mark the streams of these names as ours, even if another deployment's."),
    ] = False,
    resize: Annotated[
        bool,
        typer.Option(help="Have our streams kept by STRETTO_NATS_REPLICAS servers."),
    ] = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show the streams on NATS: whose they are, and their servers.

    Their names and subjects are what consumers read. After a restore or an upgrade the streams
    carry the mark of another database: adopt them while all instances are stopped. Resizing needs
    no stop.
    """
    settings = read_settings(database_url=database_url, data_dir=data_dir)

    async def work() -> None:
        async with opened(settings) as database, bus_place(settings) as nats_url:
            component = settings.component
            place = Bus(nats_url, component.nats_prefix, await origin(database), component.nats)
            for line in await describe_streams(place, is_adopting=adopt, is_resizing=resize):
                stdout.print(line)

    run(work(), settings)
