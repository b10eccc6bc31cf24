"""The flags that several commands have, and arguments parsed."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import typer

from stretto.config import PREFIX, SETTINGS
from stretto.domain import IdempotencyKey, UserId
from stretto.errors import KeyInvalid
from stretto.start_errors import ConfigurationError


def flag(name: str, metavar: str | None = None) -> Any:
    """Return the flag of a setting, with the setting's own description."""
    described = SETTINGS[name].metadata["description"]
    return typer.Option(help=f"{described} [env:{PREFIX}{name.upper()}]", metavar=metavar)


DatabaseUrl: TypeAlias = Annotated[str | None, flag("database_url")]
# A text: an empty path would be read as the current folder.
DataDir: TypeAlias = Annotated[str | None, flag("data_dir", "PATH")]


def user_id(text: str) -> UserId:
    """Return the user; raises `ConfigurationError` for a text that names none."""
    try:
        return UserId(text)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def idempotency_key(text: str) -> IdempotencyKey:
    """Return the key; raises `ConfigurationError` for a text that is not one."""
    try:
        return IdempotencyKey.parse(text)
    except KeyInvalid as error:
        # A message of ours goes on behind a colon.
        message = error.detail[0].lower() + error.detail[1:]
        raise ConfigurationError(message) from error


def require_range(option: str, value: float, least: float, most: float) -> None:
    """Raise `typer.BadParameter` for what is not within these, and for what is no number (nan).

    typer says of nan that it is too large.
    """
    if not least <= value <= most:
        message = f"must be a number from {least} to {most}"
        raise typer.BadParameter(message, param_hint=f"'{option}'")
