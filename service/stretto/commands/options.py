"""The flags that several commands have, and arguments parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from stretto.config import PREFIX, SETTINGS
from stretto.domain import IdempotencyKey, UserId
from stretto.errors import ConfigurationError, KeyInvalid


def flag(name: str) -> Any:
    """Return the flag of a setting, with the setting's own description."""
    described = SETTINGS[name].metadata["description"]
    return typer.Option(help=f"{described} [env:{PREFIX}{name.upper()}]")


DatabaseUrl: TypeAlias = Annotated[str | None, flag("database_url")]
DataDir: TypeAlias = Annotated[Path | None, flag("data_dir")]


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
