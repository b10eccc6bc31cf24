"""`stretto token`: a bearer token, for trying things out."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from stretto.commands.console import say, stdout
from stretto.commands.options import DataDir, require_range, user_id
from stretto.environment import read_settings
from stretto.http.tokens.making import make_token
from stretto.http.tokens.scopes import Scope
from stretto.own_secret import token_settings
from stretto.start_errors import ConfigurationError

_TOKEN_HOURS_MIN: Final = 0.01
# Ten years: longer than any trial, and every date after it can be written.
TOKEN_HOURS_MAX: Final = 10 * 365 * 24


def token(
    user: Annotated[str, typer.Argument(help="The user's id: becomes the token's `sub`.")],
    hours: Annotated[
        float,
        typer.Option(help=f"How long it is valid, {_TOKEN_HOURS_MIN} to {TOKEN_HOURS_MAX}."),
    ] = 24,
    scope: Annotated[
        list[Scope] | None,
        typer.Option(help="What it allows; may be repeated. By default all but read_any."),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Print a bearer token (HS256) for a user, for trying things out."""
    require_range("--hours", hours, _TOKEN_HOURS_MIN, TOKEN_HOURS_MAX)
    tokens = token_settings(read_settings(data_dir=data_dir), say)
    if not tokens.jwt_secret:
        message = "only a service with STRETTO_JWT_SECRET can make tokens; ask your token issuer"
        raise ConfigurationError(message)
    stdout.print(
        make_token(
            tokens.jwt_secret,
            user_id(user),
            lifetime_seconds=round(hours * 3600),
            audience=tokens.jwt_audience,
            issuer=tokens.jwt_issuer,
            scopes=scope or tokens.trial_scopes,
        )
    )
