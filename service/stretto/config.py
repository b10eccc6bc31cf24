"""The settings that there are: environment variables `STRETTO_*`, which `environment.py` reads.

Each part declares its own settings (`setting.py`) in a module that loads nothing else of the part,
and this module those of the process. `--help` shows all of them, and loads no part for that.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_type_hints

from stretto.assembly.settings import ComponentSettings
from stretto.http.settings import ConnectionLimits, StreamSettings
from stretto.http.tokens.settings import TokenSettings
from stretto.setting import setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PREFIX: Final = "STRETTO_"
FILE_SUFFIX: Final = "_FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an operator can set: of the process, and of each part."""

    database_url: str = setting("", "PostgreSQL URL; empty: an embedded server", is_secret=True)
    data_dir: Path = setting(Path(".stretto"), "where the embedded server and the secret live")
    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8080, "port to listen on; 0: any free one", ge=0, le=65535)
    workers: int = setting(1, "processes that share the port", ge=1, le=64)
    drain_seconds: float = setting(
        10.0,
        "how long SIGTERM lets the service serve on while /readyz is 503, so that load"
        " balancers notice",
        ge=0,
        le=3600,
    )
    console: Literal["auto", "on", "off"] = setting(
        "auto", "the console at /; auto: on with an embedded database, else off"
    )
    """A service in production has no page that its operator has not asked for."""
    tokens: TokenSettings = field(default_factory=TokenSettings)
    component: ComponentSettings = field(default_factory=ComponentSettings)
    streams: StreamSettings = field(default_factory=StreamSettings)
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "least level that is logged"
    )
    log_format: Literal["auto", "json", "console"] = setting(
        "auto", "auto: console on a terminal, else json"
    )

    @property
    def is_embedded(self) -> bool:
        """Whether the service brings its own PostgreSQL."""
        return not self.database_url

    @property
    def has_console(self) -> bool:
        """Whether the console is served."""
        return self.is_embedded if self.console == "auto" else self.console == "on"


def _settings_of(part: Any) -> Iterator[tuple[str, Field[Any]]]:
    """Return the settings of a part and of its parts, by name."""
    kinds = get_type_hints(part)
    for each in fields(part):
        if is_dataclass(kinds[each.name]):
            yield from _settings_of(kinds[each.name])
        elif "description" in each.metadata:
            yield each.name, each


SETTINGS: Final[Mapping[str, Field[Any]]] = dict(_settings_of(Settings))
