"""Settings: environment variables `STRETTO_*`, every fault of theirs told at once.

Flags of the command line override them. A name that starts with STRETTO_ and is not known is an
error too: a misspelt setting must not be silently ignored. What stands in STRETTO_X may stand in a
file instead, whose path is in STRETTO_X_FILE: that is how secrets are mounted.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from stretto.domain import TOKEN_SECRET_BYTES_MIN
from stretto.errors import ConfigurationError
from stretto.events.event import BUS_PREFIX, BUS_PREFIX_PATTERN
from stretto.postgres.database_url import require_database_url
from stretto.webhook.rules import parse_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "STRETTO_"
FILE_SUFFIX: Final = "_FILE"
# The one NATS_URL that is no URL: a server of our own, in the data dir.
EMBEDDED: Final = "embedded"
# The ways to verify tokens: two of them would leave open which one counts.
_TOKEN_WAYS: Final = ("STRETTO_JWT_SECRET", "STRETTO_JWT_PUBLIC_KEY", "STRETTO_JWKS_URL")


class Settings(BaseSettings):
    """What an operator can set. The descriptions are what `--help` and the docs show."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, env_ignore_empty=True
    )

    database_url: str = Field(
        "", description="PostgreSQL URL; empty: an embedded server", repr=False
    )
    db_schema: str = Field(
        "stretto", pattern=r"^[a-z_][a-z0-9_]{0,62}$", description="schema of the tables"
    )
    data_dir: Path = Field(
        Path(".stretto"), description="where the embedded server and the secret live"
    )
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8080, ge=0, le=65535, description="port to listen on; 0: any free one")
    workers: int = Field(1, ge=1, le=64, description="processes that share the port")
    jwt_secret: str = Field("", description="HS256 secret, 32 bytes or more", repr=False)
    jwt_public_key: str = Field("", description="PEM key for RS256, ES256 or EdDSA")
    jwks_url: str = Field("", description="where the token issuer publishes its keys")
    jwt_audience: str = Field("", description="required `aud`")
    jwt_issuer: str = Field("", description="required `iss`")
    nats_url: str = Field(
        "",
        description="NATS servers that carry events and commands, comma-separated; embedded: one of"
        " our own; empty: none, events stay in their process",
        repr=False,
    )
    nats_prefix: str = Field(
        BUS_PREFIX,
        pattern=f"^{BUS_PREFIX_PATTERN}$",
        description="what streams and subjects on NATS begin with; its own for each deployment",
    )
    webhook_url: str = Field(
        "",
        description="where every event is sent, by Standard Webhooks; empty: nowhere",
        repr=False,
    )
    webhook_secret: str = Field(
        "",
        description="whsec_… that signs webhooks; several, separated by spaces, to replace one",
        repr=False,
    )
    webhook_allow_private: bool = Field(
        default=False, description="whether the webhook may have an address that is not public"
    )
    drain_seconds: float = Field(
        10.0,
        ge=0,
        le=3600,
        description="how long SIGTERM lets the service serve on while /readyz is 503, so that load"
        " balancers notice",
    )
    lease_seconds: float = Field(
        5.0, gt=0, le=3600, description="after this long a pending attempt may be taken over"
    )
    writers: int = Field(2, ge=1, le=32, description="database connections that write")
    batch_max: int = Field(128, ge=1, le=1000, description="requests per statement")
    mailbox_max: int = Field(1024, ge=1, le=100_000, description="requests that may queue")
    rate_limit: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="new attempts per owner and second in one process; 0: no limit",
    )
    connections_max: int = Field(
        10_000, ge=10, le=1_000_000, description="clients' connections to one process"
    )
    read_timeout_seconds: float = Field(
        30.0, gt=0, le=3600, description="after this long a request must have arrived in full"
    )
    sessions_max: int = Field(
        20_000,
        ge=1,
        le=1_000_000,
        description="live sessions of a process; never more than nine tenths of its connections",
    )
    sessions_per_user: int = Field(16, ge=1, le=10_000, description="live sessions of one user")
    session_events_max: int = Field(
        256, ge=1, le=100_000, description="events that may wait for a session until it is too slow"
    )
    heartbeat_seconds: float = Field(
        25.0, ge=1, le=3600, description="how often a silent session is given a sign of life"
    )
    origins: str = Field(
        "",
        description="whose pages may open WebSockets, beside our own: origins such as"
        " https://chat.example, separated by commas; *: everybody's",
    )
    relay_lease_seconds: float = Field(
        30.0, ge=1, le=3600, description="after this long another relay may send an event"
    )
    retention_days: int = Field(
        30, ge=1, le=3650, description="how long settled attempts and the inbox are kept"
    )
    event_retention_days: int = Field(
        7, ge=1, le=3650, description="how long delivered events are kept"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least level that is logged"
    )
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="auto: console on a terminal, else json"
    )

    @property
    def is_embedded(self) -> bool:
        """Whether the service brings its own PostgreSQL."""
        return not self.database_url

    @field_validator("database_url")
    @classmethod
    def _is_a_database_url(cls, url: str) -> str:
        if url:
            require_database_url(url)
        return url

    @field_validator("jwks_url")
    @classmethod
    def _is_a_web_address(cls, url: str) -> str:
        # Any other would look like an issuer that is away.
        if url and not _has_host(url, "http", "https"):
            raise ValueError("must look like https://issuer.example/keys")
        return url

    @field_validator("nats_url")
    @classmethod
    def _are_nats_urls(cls, urls: str) -> str:
        if urls not in ("", EMBEDDED) and not all(map(_is_nats_url, urls.split(","))):
            raise ValueError(f"must look like nats://user:password@host:4222, or be {EMBEDDED}")
        return urls

    @field_validator("origins")
    @classmethod
    def _are_origins(cls, origins: str) -> str:
        # What no browser sends as its origin would keep every page out, without a word.
        if not all(map(_is_origin, filter(None, map(str.strip, origins.split(","))))):
            raise ValueError(
                "must look like https://chat.example,https://app.example:8443, or be *"
            )
        return origins

    @field_validator("webhook_url")
    @classmethod
    def _is_an_endpoint(cls, url: str) -> str:
        if url and not _has_host(url, "http", "https"):
            raise ValueError("must look like https://backend.example/stretto")
        return url

    @field_validator("webhook_secret")
    @classmethod
    def _are_signing_secrets(cls, text: str) -> str:
        parse_secrets(text)
        return text

    @field_validator("jwt_secret")
    @classmethod
    def _is_a_long_secret(cls, secret: str) -> str:
        if secret and len(secret.encode(errors="replace")) < TOKEN_SECRET_BYTES_MIN:
            raise ValueError(f"needs at least {TOKEN_SECRET_BYTES_MIN} bytes")
        return secret


def read_settings(**flags: Any) -> Settings:
    """Return the settings; flags that are None leave them to the environment.

    Raises `ConfigurationError` that lists every fault.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    files, faults = _read_files(given)
    faults += _faults_of_names(given | files)
    settings = None
    try:
        settings = Settings(**(files | given))
    except ValidationError as error:
        for fault in error.errors():
            name = "_".join(str(part) for part in fault["loc"])
            reason = fault["msg"].removeprefix("Value error, ")
            faults.append(f"{_given_as(name, given, files)}: {reason}" if name else reason)
    if faults or settings is None:
        message = "these settings are wrong:\n  " + "\n  ".join(faults)
        raise ConfigurationError(message)
    return settings


def _given_as(name: str, flags: Mapping[str, Any], files: Mapping[str, Any]) -> str:
    """Return how the operator calls a setting: by its flag, its file's variable or its variable."""
    if name in flags:
        return f"--{name.replace('_', '-')}"
    return PREFIX + name.upper() + (FILE_SUFFIX if name in files else "")


def _read_files(flags: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Return the settings that stand in files, and what is wrong with those files."""
    values = {name.upper(): value for name, value in os.environ.items() if value}
    files: dict[str, str] = {}
    faults = []
    for name in Settings.model_fields:
        variable = PREFIX + name.upper()
        path = values.get(variable + FILE_SUFFIX)
        if path is None or name in flags:
            continue
        if variable in values:
            faults.append(f"set only one of {variable}, {variable}{FILE_SUFFIX}")
            continue
        try:
            files[name] = Path(path).read_text("utf-8").rstrip("\r\n")
        except OSError as error:
            faults.append(f"{variable}{FILE_SUFFIX}: {path} cannot be read ({error.strerror})")
        except UnicodeDecodeError:
            faults.append(f"{variable}{FILE_SUFFIX}: {path} is not UTF-8")
        else:
            if not files[name]:
                faults.append(f"{variable}{FILE_SUFFIX}: {path} is empty")
    return files, faults


def environment_of(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment for another one, with other values of some settings.

    Their variables go in whatever case they were written, and so do those that name their files.
    """
    gone = {*overrides, *(name + FILE_SUFFIX for name in overrides)}
    kept = {name: value for name, value in os.environ.items() if name.upper() not in gone}
    return {**kept, **overrides}


def require_token_settings(settings: Settings) -> None:
    """Raise `ConfigurationError` where a service with a database of its own verifies no tokens."""
    if not (settings.jwt_secret or settings.jwt_public_key or settings.jwks_url):
        message = (
            "tokens cannot be verified: with STRETTO_DATABASE_URL set, set one of"
            " STRETTO_JWT_SECRET, STRETTO_JWT_PUBLIC_KEY or STRETTO_JWKS_URL too"
        )
        raise ConfigurationError(message)


def _faults_of_names(flags: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with which settings are set, whatever their values are."""
    # pydantic reads names in either case.
    values = {name.upper(): value for name, value in os.environ.items()}
    values |= {PREFIX + name.upper(): value for name, value in flags.items()}
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    known |= {name + FILE_SUFFIX for name in known}
    unknown = sorted(name for name in values if name.startswith(PREFIX) and name not in known)
    faults = [f"{name}: unknown setting" for name in unknown]
    if sum(bool(values.get(way)) for way in _TOKEN_WAYS) > 1:
        faults.append(f"set only one of {', '.join(_TOKEN_WAYS)}")
    # Unsigned, an event is anybody's.
    if values.get("STRETTO_WEBHOOK_URL") and not values.get("STRETTO_WEBHOOK_SECRET", "").strip():
        faults.append("STRETTO_WEBHOOK_URL needs STRETTO_WEBHOOK_SECRET")
    return faults


def _is_origin(text: str) -> bool:
    """Whether a browser may name its page's origin so; a slash at the end is passed over."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    is_origin = parts.scheme and parts.hostname and parts.path in ("", "/")
    return text == "*" or bool(is_origin and not {"@", "?", "#"} & {*text})


def _is_nats_url(url: str) -> bool:
    return _has_host(url.strip(), "nats", "tls", "ws", "wss")


def _has_host(url: str, *schemes: str) -> bool:
    """Whether it is a URL of one of these schemes that names a host."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in schemes and bool(parts.hostname)
