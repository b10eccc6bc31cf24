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
        raise ConfigurationError(error.detail) from error
