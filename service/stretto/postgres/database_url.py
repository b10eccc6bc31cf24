"""What a database URL must be like, checked before anything connects: waiting does not correct it.

The driver reads the URL for each connection. It reports a missing file, or a host name with a
blank, like a database that cannot be reached, so they are found here. `driver_errors.is_lasting`
knows its other errors.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from stretto.hosts import is_host

if TYPE_CHECKING:
    from collections.abc import Mapping
    from urllib.parse import SplitResult

SCHEMES: Final = ("postgresql", "postgres")
# The schema of the tables, beside which a host's tables keep their names.
SCHEMA: Final = "stretto"
# What needs quotes would be another schema in a search_path, or none.
SCHEMA_PATTERN: Final = "[a-z_][a-z0-9_]{0,62}"
# The driver reads a client's certificate in every mode but the first of these, and what verifies
# the server's certificate from `require` on.
_NO_TLS: Final = "disable"
_UNVERIFIED: Final = ("allow", "prefer")
_OWN_FILES: Final = ("sslcert", "sslkey")
_SERVER_FILES: Final = ("sslrootcert", "sslcrl")
# Parameters of libpq, PostgreSQL's own driver, that ours does not have: it would hand them to the server,
# which takes what it is handed for settings of its own, and has none of these names.
_LIBPQ_ONLY: Final = (
    "channel_binding connect_timeout fallback_application_name gssdelegation gssencmode hostaddr"
    " keepalives keepalives_count keepalives_idle keepalives_interval load_balance_hosts"
    " max_protocol_version min_protocol_version oauth_client_id oauth_client_secret oauth_issuer"
    " oauth_scope require_auth requirepeer requiressl scram_client_key scram_server_key servicefile"
    " sslcertmode sslcompression sslcrldir sslkeylogfile sslsni"
)


def require_database_url(url: str) -> None:
    """Raise `ValueError` for a URL that never leads to a database; no message shows a password."""
    # The server would quote the second one, with its password, as a part of the first one's database.
    if url.split() != [url] or url.count("://") > 1:
        raise ValueError(
            "must be one URL on one line, with no blank and no second :// in it (%20 and %3A%2F%2F"
            " stand for them); several hosts go into the one: postgresql://user@a:5432,b:5432/database"
        )
    try:
        parts = urlsplit(url)
        hosts = split_hosts(parts.netloc.rpartition("@")[2])
    except ValueError:
        hosts = None
    if hosts is None or parts.scheme not in SCHEMES or _is_cut(parts):
        # Without the original error: it may quote a password.
        raise ValueError(
            "must look like postgresql://user:password@host:5432/database, with %40 for an @, %23"
            " for a #, %2F for a / and %3F for a ? of the password"
        )
    try:
        parameters = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        hosts += split_hosts(parameters.get("host", ""))
    except ValueError:
        message = "its parameters must be name=value, with & between them and none at the end"
        raise ValueError(message) from None
    _require_known(parameters)
    for host, _ in hosts:
        if not _is_host(host):
            # The driver would report a host that is not known yet.
            message = f"{host!r} is neither the name of a host nor an address"
            raise ValueError(message)
    _require_tls_files(parameters)
    # The driver would connect without a password, and the server's error names no file.
    if "passfile" in parameters:
        _require_passfile(Path(parameters["passfile"]))


def _is_cut(parts: SplitResult) -> bool:
    """Whether an unescaped @, # or / of a password has been read as an end of it.

    The rest would be taken for a host or a database: it would be looked up, or quoted, and logged.
    """
    return bool(parts.fragment) or parts.netloc.count("@") > 1 or "@" in parts.path


def place_of(url: str) -> str:
    """Return where a database is, from its URL, without a user or a password."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2] or dict(parse_qsl(parts.query)).get("host")
    return place or "the driver's default place"


def split_hosts(places: str) -> list[tuple[str, int | None]]:
    """Return the hosts' names and ports; raise `ValueError` for a wrong port."""
    hosts = []
    for place in places.split(",") if places else ():
        # A folder with a socket is taken as it is. An IPv6 address in brackets contains colons.
        parts = urlsplit("" if place.startswith("/") else f"//{place}")
        hosts.append((unquote(parts.hostname or place), parts.port))
    return hosts


def _is_host(name: str) -> bool:
    # A folder with a socket is one too.
    return "\0" not in name if name.startswith("/") else is_host(name)


def _require_known(parameters: Mapping[str, str]) -> None:
    """Raise `ValueError` for parameters of libpq alone; their values may be secret."""
    if unknown := sorted({*_LIBPQ_ONLY.split()} & parameters.keys()):
        message = f"has parameters that only programs with libpq take ({', '.join(unknown)}): leave them out"
        raise ValueError(message)


def _require_tls_files(parameters: Mapping[str, str]) -> None:
    """Raise `ValueError` for a key or a certificate that the driver needs and cannot read."""
    mode = _tls_parameter(parameters, "sslmode") or "prefer"
    if mode == _NO_TLS:
        return
    for name in _OWN_FILES if mode in _UNVERIFIED else (*_OWN_FILES, *_SERVER_FILES):
        path = _tls_parameter(parameters, name)
        try:
            if path:
                Path(path).read_bytes()
        except OSError as error:
            message = f"its {name} {path} cannot be read ({error.strerror})"
            raise ValueError(message) from error


def _tls_parameter(parameters: Mapping[str, str], name: str) -> str:
    """Return the value in the URL, or else in the environment, as libpq does."""
    return parameters.get(name) or os.environ.get(f"PG{name.upper()}", "")


def _require_passfile(path: Path) -> None:
    """Raise `ValueError` for a password file that the driver would skip silently."""
    try:
        mode = path.stat().st_mode
        path.read_bytes()
    except OSError as error:
        message = f"its passfile {path} cannot be read ({error.strerror})"
        raise ValueError(message) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        message = f"its passfile {path} may be read by others, so it is not used: chmod 600 {path}"
        raise ValueError(message)
