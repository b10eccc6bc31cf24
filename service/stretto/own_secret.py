"""How tokens are verified, with the data dir's own secret where no other way is set.

Without a database URL the service makes that secret itself.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.http.tokens.keys import secret_keys
from stretto.start_errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stretto.config import Settings
    from stretto.http.tokens.settings import TokenSettings


def token_settings(
    settings: Settings, notify: Callable[[str], object] = lambda _: None
) -> TokenSettings:
    """Return how tokens are verified; raises `ConfigurationError` where they cannot be.

    `notify` gets a line where a secret is made, in a data dir that had none.
    The settings have refused keys that cannot be used; the own secret is refused here. Each worker
    would find that out, and be replaced by another one.
    """
    tokens = settings.tokens
    if not tokens.ways and not settings.is_embedded:
        message = (
            "tokens cannot be verified: with STRETTO_DATABASE_URL set, set one of"
            " STRETTO_JWT_SECRET, STRETTO_JWT_PUBLIC_KEY or STRETTO_JWKS_URL too"
        )
        raise ConfigurationError(message)
    if not tokens.ways:
        tokens = replace(tokens, jwt_secret=_own_secret(settings.data_dir / "jwt-secret", notify))
    return tokens


def _own_secret(path: Path, notify: Callable[[str], object] = lambda _: None) -> str:
    """Return the data dir's secret, made on first use and readable by its owner alone.

    A file that others can write or read is refused: they could make tokens with it.
    """
    try:
        if not os.path.lexists(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _make_secret(path)
            notify(
                f"STRETTO_JWT_SECRET is not set: this is a new secret, in {path}, whose tokens only"
                " the service with this data dir takes"
            )
        # A link that was planted may lead to a file whose content its planter knows.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, encoding="utf-8", errors="surrogateescape") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                message = (
                    f"{path} belongs to another user, or others may read it: with this secret they"
                    " can make tokens. Remove it, and the next start makes another one (tokens made"
                    " with the old one end); or `chmod 600` and `chown` it if it was not read"
                )
                raise ConfigurationError(message)
            secret = file.read()
    except OSError as error:
        message = (
            f"{path} cannot be used ({error.strerror}): it must be a file of ours and no link. Set"
            " STRETTO_DATABASE_URL for a database of your own, or STRETTO_DATA_DIR to a folder that"
            " may be written"
        )
        raise ConfigurationError(message) from error
    try:
        secret_keys(secret)
    except ConfigurationError as error:
        message = (
            f"{path} holds no secret that can be used. Remove it, and the next start makes another"
            " one (tokens made with the old one end)"
        )
        raise ConfigurationError(message) from error
    return secret


def _make_secret(path: Path) -> None:
    """Write a secret where there is none; of several processes the first one's counts."""
    # An unpredictable name and a new file: a file or link that was planted is not written to.
    descriptor, draft = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(48))
        # Linking fails where another process was first, and never shows half a secret.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        Path(draft).unlink()
