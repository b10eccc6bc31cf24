"""Turns observations into lines of the log, as the table says; configures the log of a process."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from uuid import UUID

import orjson
import structlog

from stretto.telemetry.log_folding import LogFolder
from stretto.telemetry.log_records import as_record
from stretto.telemetry.log_writer import LogWriter
from stretto.telemetry.request_context import add_request_id
from stretto.telemetry.safe_calls import SafeLogger
from stretto.telemetry.table import TABLE, Line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stretto.observations import Observation

_folder: Final = LogFolder()
flush_log: Final = _folder.flush
# The standard library's logger gets the lines, whatever a host has configured: structlog's own
# fallback would print local variables with a traceback, tokens among them.
logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    SafeLogger(logging.getLogger("stretto")),
    processors=[add_request_id, _folder, as_record],
    wrapper_class=structlog.stdlib.BoundLogger,
    context_class=dict,
)

_LINES: Final = {
    kind: each for kind, row in TABLE.items() for each in row if isinstance(each, Line)
}


def log_observation(observation: Observation) -> None:
    """Log the observation's line, if it has one."""
    line = _LINES.get(type(observation))
    if line is None:
        return
    fields = {name: _shown(getattr(observation, name)) for name in line.fields}
    if line.exception:
        fields["exc_info"] = getattr(observation, line.exception)
    getattr(logger, line.level)(line.event, **fields)


def _shown(value: object) -> object:
    """Return a field as every handler writes it, a host's too: an id as text, seconds rounded."""
    match value:
        case UUID():
            return str(value)
        case float():
            return round(value, 1)
        case _:
            return value


@contextmanager
def configured_logging(*, level: str, as_json: bool | None = None) -> Iterator[None]:
    """Log to stderr meanwhile: JSON lines, or coloured ones on a terminal."""
    renderers: list[structlog.typing.Processor] = [
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    ]
    if as_json or (as_json is None and not sys.stderr.isatty()):
        renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(_json)]
    handler = LogWriter(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
            foreign_pre_chain=[
                # Of our own records it restores `event`, without the fields.
                structlog.stdlib.ExtraAdder(),
                structlog.stdlib.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
            ],
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Such as the driver's, of a password file that it does not use any more.
    logging.captureWarnings(capture=True)
    try:
        yield
    finally:
        logging.captureWarnings(capture=False)
        logging.getLogger().removeHandler(handler)
        handler.close()


def _json(event: object, **_: object) -> str:
    try:
        return orjson.dumps(event, default=str).decode()
    except TypeError:
        # Half a surrogate pair, such as in a path or in a host's error; an integer beyond 64 bits.
        text = json.dumps(event, default=str, ensure_ascii=False)
        return text.encode(errors="replace").decode()
