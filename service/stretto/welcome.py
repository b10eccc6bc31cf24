"""What the service says at its start to an operator who tries it out: where it is, what to paste."""

from __future__ import annotations

import shlex
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stretto.domain import UserId
from stretto.http.tokens.making import make_token

if TYPE_CHECKING:
    from stretto.config import Settings
    from stretto.http.tokens.settings import TokenSettings

TOKEN_SECONDS: Final = 24 * 3600


def welcome(settings: Settings, port: int, tokens: TokenSettings, *, shows_token: bool) -> str:
    """Return the text that says where the service listens, with a command to paste.

    Without a terminal the text goes to a log, which must hold no token: the command makes its own.
    Without a secret of the service's there is no command, because no token can be made.
    """
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{port}"
    if not tokens.jwt_secret:
        return f"stretto listens on {url}"
    command = _command(settings, "token", "alice")
    quote, source = '"', f"$({command})"
    shown = f"A token of the user alice: {command}"
    if shows_token:
        source = make_token(
            tokens.jwt_secret,
            UserId("alice"),
            lifetime_seconds=TOKEN_SECONDS,
            audience=tokens.jwt_audience,
            issuer=tokens.jwt_issuer,
            scopes=tokens.trial_scopes,
        )
        quote, shown = "'", f"A token of the user alice, good for a day:\n\n  {source}"
    places = f"of the database: {_command(settings, 'url')}"
    if settings.component.nats_url:
        places += f"\n  of NATS: {_command(settings, 'url', 'nats')}"
    console = f"the console: {url}/, " if settings.has_console else ""
    return f"""
stretto listens on {url} ({console}the API: {url}/docs)

{shown}

URLs for programs of your own:

  {places}

Create a group; send it again and it is still one group:

  curl -i {url}/v1/groups \\
    -H {quote}Authorization: Bearer {source}{quote} \\
    -H 'Idempotency-Key: {uuid.uuid4()}' \\
    -H 'Content-Type: application/json' \\
    -d '{{"name": "Team", "members": ["bob", "carol"]}}'
"""


def _command(settings: Settings, *arguments: str) -> str:
    """Return a command that works in any folder, and whatever is on the PATH.

    Elsewhere the data dir, if relative, would be another one, with another secret.
    """
    program = Path(sys.argv[0]).absolute()
    is_module = program.name == "__main__.py"
    words = (sys.executable, "-m", "stretto") if is_module else (str(program),)
    return shlex.join((*words, *arguments, "--data-dir", str(settings.data_dir.absolute())))
