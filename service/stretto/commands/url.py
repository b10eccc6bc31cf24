"""`stretto url`: where a service has its database and NATS, for other programs."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from stretto.commands.console import say, stdout
from stretto.commands.options import DataDir
from stretto.commands.running import run
from stretto.embedded.nats import running_url as running_nats_url
from stretto.embedded.postgres import running_url as running_postgres_url
from stretto.environment import read_settings
from stretto.setting_texts import EMBEDDED
from stretto.start_errors import EmbeddedError

_SHOWN: Final = (
    "this screen shows a password now: clear it. Programs take the URL unseen, as $(stretto url), and"
    " `stretto psql` needs none"
)


class Server(StrEnum):
    """What other programs may connect to."""

    DATABASE = "database"
    NATS = "nats"


def url(
    server: Annotated[Server, typer.Argument(help="Which one.")] = Server.DATABASE,
    data_dir: DataDir = None,
) -> None:
    """Print the URL of the database or NATS, with its password.

    An embedded server has another port after each start.
    """
    settings = read_settings(data_dir=data_dir)
    folder, nats_url = settings.data_dir, settings.component.nats_url
    if server is Server.NATS:
        # A terminal beside the service's need not have its settings.
        given = "" if nats_url == EMBEDDED else nats_url
        found = given or running_nats_url(folder)
        start = "STRETTO_NATS_URL=embedded stretto serve (make run NATS=1)"
    else:
        given = settings.database_url
        found = given or run(running_postgres_url(folder, say), settings)
        start = "stretto serve (make run)"
    if found is None:
        message = (
            f"no embedded {server} runs in {folder.resolve()}, or it is just starting: start it with"
            f" {start}, or set STRETTO_DATA_DIR to the folder of the service"
        )
        raise EmbeddedError(message)
    stdout.print(found)
    # An embedded server's is for trying out.
    if sys.stdout.isatty() and (urlsplit(given).password or "password=" in given):
        say(_SHOWN)
