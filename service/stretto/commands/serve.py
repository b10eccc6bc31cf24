"""`stretto serve`: the service itself."""

from __future__ import annotations

from typing import Annotated

import typer

from stretto.commands.console import say
from stretto.commands.help import EXIT_DONE
from stretto.commands.options import DatabaseUrl, DataDir, flag
from stretto.commands.running import run
from stretto.environment import read_settings
from stretto.server import serve as serve_until_stopped


def serve(
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    host: Annotated[str | None, flag("host")] = None,
    port: Annotated[int | None, flag("port")] = None,
    workers: Annotated[int | None, flag("workers")] = None,
    share_port: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Run the service until SIGTERM or Ctrl-C."""
    settings = read_settings(
        database_url=database_url, data_dir=data_dir, host=host, port=port, workers=workers
    )
    work = serve_until_stopped(settings, say, share_port=share_port)
    run(work, settings, exit_code=EXIT_DONE)
