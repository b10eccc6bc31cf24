"""What the text of a setting must be beyond its type and bounds, such as a URL that names a host.

A text that can never work is refused at the start, by the name of its setting: later it would look
like a server that does not answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from stretto.hosts import is_host, mapped_address
from stretto.postgres.database_url import require_database_url
from stretto.postgres.pooler import require_pooler
from stretto.start_errors import ConfigurationError
from stretto.webhook.rules import parse_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# The one NATS_URL that is not a URL: an embedded server, in the data dir.
EMBEDDED: Final = "embedded"
# About one attempt a day. `Retry-After` is as long as an attempt takes to come free.
RATE_LIMIT_MIN: Final = 0.00001
# The schemas that PostgreSQL has, and those whose names it keeps for itself.
_SERVER_SCHEMAS: Final = ("pg_", "information_schema")
# Browsers leave these out of an origin (RFC 6454, 6.1).
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def _data_dir(path: str | Path) -> Path:
    # An empty path would be the current folder. PostgreSQL writes the path as one line of a file.
    if not str(path).strip() or "\n" in str(path):
        raise ValueError("must be the path of a folder, such as .stretto, on one line")
    return Path(path)


def _host(host: str) -> str:
    # An empty one would be every address of this machine.
    if not is_host(host):
        raise ValueError("must be an address or a name: 127.0.0.1, or 0.0.0.0 for all addresses")
    # asyncio's sockets of IPv6 take nothing of IPv4.
    if (address := mapped_address(host)) is not None:
        raise ValueError(f"must be written as an address of IPv4: {address}")
    return host


def _database_url(url: str) -> str:
    if url:
        require_database_url(url)
        require_pooler(url)
    return url


def _db_schema(name: str) -> str:
    if name.startswith(_SERVER_SCHEMAS):
        raise ValueError("must be no schema of the server's own (pg_..., information_schema)")
    return name


def _rate_limit(limit: Any) -> object:
    try:
        is_low = 0 < float(limit) < RATE_LIMIT_MIN
    except ValueError:
        # What is no number is refused by its type.
        return limit
    if is_low:
        raise ValueError(f"must be 0, or {RATE_LIMIT_MIN:f} or more")
    return limit


def _token_secret(secret: str) -> str:
    if secret:
        # Every command reads the settings; only with a key does it load what reads keys.
        from stretto.http.tokens.keys import secret_keys  # noqa: PLC0415

        _require_key(secret_keys, secret)
    return secret


def _public_key(pem: str) -> str:
    if pem:
        from stretto.http.tokens.keys import public_keys  # noqa: PLC0415

        _require_key(public_keys, pem)
    return pem


def _require_key(read: Callable[[str], object], text: str) -> None:
    try:
        read(text)
    except ConfigurationError as error:
        # It begins with the name that the setting has in a program.
        raise ValueError(str(error).partition(" ")[2]) from None


def _issuers_url(url: str) -> str:
    # Any other would look like an issuer that does not answer.
    if url and not _has_host(url, "http", "https"):
        raise ValueError("must look like https://issuer.example/keys")
    return url


def _nats_url(urls: str) -> str:
    if urls not in ("", EMBEDDED) and not all(map(_is_nats_url, urls.split(","))):
        message = (
            "must look like nats://user:password@host:4222, with %40 for an @, %23 for a #, %2F for"
            " a /, %3F for a ?, %2C for a comma and %25 for a % of the password, or be"
            f" {EMBEDDED}"
        )
        raise ValueError(message)
    return urls


def _webhook_url(url: str) -> str:
    if url and not _has_host(url, "http", "https"):
        raise ValueError("must look like https://backend.example/stretto")
    return url


def _origins(text: str) -> frozenset[str]:
    origins = [*filter(None, map(str.strip, text.split(",")))]
    # A text that no browser sends as its origin would keep every page out, and nothing would say
    # why.
    try:
        return frozenset(map(_origin, origins))
    except ValueError:
        message = (
            "must look like https://chat.example,https://app.example:8443, or be *; a name beyond"
            " ASCII begins with xn--, as a browser's console shows it: location.origin"
        )
        raise ValueError(message) from None


# Each returns the value, or raises `ValueError`, whose message shows no secret.
PARSERS: Final[Mapping[str, Callable[[Any], object]]] = {
    "data_dir": _data_dir,
    "host": _host,
    "database_url": _database_url,
    "db_schema": _db_schema,
    "rate_limit": _rate_limit,
    "jwt_secret": _token_secret,
    "jwt_public_key": _public_key,
    "jwks_url": _issuers_url,
    "nats_url": _nats_url,
    "webhook_url": _webhook_url,
    "webhook_secret": parse_secrets,
    "origins": _origins,
}


def _origin(text: str) -> str:
    """Return an origin as browsers send it; raise `ValueError` for what none sends."""
    if text == "*":
        return text
    parts = urlsplit(text)
    host = parts.hostname or ""
    is_bare = parts.path in ("", "/") and not {"@", "?", "#"} & {*text}
    if not (text.isascii() and parts.scheme and is_host(host) and is_bare):
        raise ValueError
    place = f"[{host}]" if ":" in host else host
    if parts.port not in (None, _DEFAULT_PORTS.get(parts.scheme)):
        place = f"{place}:{parts.port}"
    return f"{parts.scheme}://{place}"


def _is_nats_url(text: str) -> bool:
    url = text.strip()
    # An @ behind the host: a /, # or ? of a password was read as the end of it. The part before
    # would be taken for a host: it would be looked up and logged.
    return _has_host(url, "nats", "tls", "ws", "wss") and "@" not in "".join(urlsplit(url)[2:])


def _has_host(url: str, *schemes: str) -> bool:
    """Whether it is a URL of one of these schemes that names a host."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in schemes and is_host(parts.hostname or "")
