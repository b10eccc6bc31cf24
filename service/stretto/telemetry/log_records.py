"""A line of the log as a record of the standard library's.

Its text has the fields behind the event: a plain formatter of a host's shows nothing else. Each field
is an attribute of the record too, and so is `event`, for handlers that write JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from structlog.stdlib import render_to_log_kwargs

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping

    from structlog.typing import EventDict


class _Message(str):
    """The name of an event; converted to text, with its fields behind it."""

    __slots__ = ("_fields",)
    _fields: Mapping[str, object]

    def __new__(cls, event: str, fields: Mapping[str, object]) -> Self:
        """Take the fields that follow the event in the text."""
        message = super().__new__(cls, event)
        message._fields = fields
        return message

    def __str__(self) -> str:
        """Return what `LogRecord.getMessage` returns; made only if a handler asks for it."""
        said = {name: value for name, value in self._fields.items() if value not in (None, (), "")}
        fields = (f"{name}={_shown(value)}" for name, value in said.items())
        return " ".join((str.__str__(self), *fields))


def as_record(log: logging.Logger, level: str, event: EventDict) -> EventDict:
    """Return the arguments for a method of the standard library's logger: a processor."""
    kwargs: dict[str, Any] = dict(render_to_log_kwargs(log, level, event))
    name, fields = kwargs["msg"], kwargs["extra"]
    return {**kwargs, "msg": _Message(name, fields), "extra": {**fields, "event": name}}


def _shown(value: object) -> str:
    """Return a field's value; quoted if one could not see where it ends."""
    text = str(value)
    return text if text.isprintable() and not {*" ='\""} & {*text} else repr(text)
