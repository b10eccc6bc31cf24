"""Metadata: a JSON object that a group's creator has chosen, in one canonical form.

Its text is a part of the request's fingerprint, which is stored: so the form is written here and
does not follow a library's. It is the form of RFC 8785 with two differences: names are sorted by code
points, and numbers have no exponent, as PostgreSQL writes them. So what `jsonb` returns is no longer
than the text, but for a space behind each colon and comma.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final, Self

import orjson

from stretto.errors import pointer_part
from stretto.identifiers import plain

# Of the canonical form. A host keeps ids and flags here; a page of 200 groups stays below 2 MB.
METADATA_BYTES_MAX: Final = 4096
# Hosts need a few. Every reader of JSON has a limit of its own, and none is lower.
METADATA_LEVELS_MAX: Final = 16
# Beyond these, readers of JSON differ in the number that they read (RFC 7493, 2.2).
NUMBER_MAX: Final = 2**53 - 1

_NUMBER_RULE: Final = f"must be a number from -{NUMBER_MAX} to {NUMBER_MAX}"
_TEXT_RULE: Final = "must be text without U+0000 and lone surrogates, which PostgreSQL rejects"


class MetadataInvalid(ValueError):
    """A value that is no metadata: where (a JSON pointer, RFC 6901) and what."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.pointer = ""
        """From the metadata's root; extended on the way up."""

    def __str__(self) -> str:
        return f"metadata{self.pointer}: {self.detail}"


class Metadata(str):
    """A JSON object in its canonical form: equal objects are equal texts.

    Numbers are doubles, compared by value: 1, 1.0 and 1e0 are one number, and -0 is 0.
    """

    __slots__ = ()

    def __new__(cls, value: object) -> Self:
        """Take a dictionary of what JSON has; raise `MetadataInvalid` for anything else."""
        if type(value) is cls:
            return value
        if not isinstance(value, dict):
            raise MetadataInvalid("must be an object")
        text = _Text()
        try:
            text.write(value, 1)
        except _TooLongError as error:
            message = f"must be at most {METADATA_BYTES_MAX} bytes as compact JSON"
            raise MetadataInvalid(message) from error
        return str.__new__(cls, "".join(text.parts))

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and pickle by the object, whose canonical form is the same."""
        return type(self), (self.value,)

    @property
    def value(self) -> dict[str, Any]:
        """The object, made anew by each call."""
        value: dict[str, Any] = orjson.loads(plain(self))
        return value


class _TooLongError(Exception):
    """The canonical form has too many bytes, wherever in it that shows."""


class _Text:
    """A canonical form as it is written."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._left = METADATA_BYTES_MAX

    def write(self, value: object, level: int) -> None:
        if value is None or isinstance(value, bool):
            self._add(_CONSTANTS[value])
        elif isinstance(value, str):
            self._add(_string(value))
        elif isinstance(value, (int, float)):
            self._add(_number(value))
        elif not isinstance(value, (dict, list)):
            raise MetadataInvalid("must be what JSON has")
        elif level > METADATA_LEVELS_MAX:
            raise MetadataInvalid(f"must have at most {METADATA_LEVELS_MAX} levels")
        elif len(value) > METADATA_BYTES_MAX:
            # Not sorted first: each of them takes a byte at least.
            raise _TooLongError
        elif isinstance(value, dict):
            self._write_object(value, level)
        else:
            self._write_array(value, level)

    def _write_object(self, value: dict[object, object], level: int) -> None:
        items = {_checked(name): item for name, item in value.items()}
        if len(items) < len(value):
            # A host's texts may differ by a rule of their own.
            raise MetadataInvalid("has a name twice")
        separator = "{"
        for name in sorted(items):
            self._add(f"{separator}{_string(name)}:")
            separator = ","
            try:
                self.write(items[name], level + 1)
            except MetadataInvalid as error:
                error.pointer = f"/{pointer_part(name)}{error.pointer}"
                raise
        self._add("}" if items else "{}")

    def _write_array(self, value: list[object], level: int) -> None:
        separator = "["
        for position, item in enumerate(value):
            self._add(separator)
            separator = ","
            try:
                self.write(item, level + 1)
            except MetadataInvalid as error:
                error.pointer = f"/{position}{error.pointer}"
                raise
        self._add("]" if value else "[]")

    def _add(self, part: str) -> None:
        self._left -= len(part) if part.isascii() else len(part.encode())
        if self._left < 0:
            raise _TooLongError
        self.parts.append(part)


_CONSTANTS: Final = {None: "null", True: "true", False: "false"}


def _checked(text: object) -> str:
    """Return a text that `jsonb` can hold."""
    if not isinstance(text, str) or "\0" in text:
        raise MetadataInvalid(_TEXT_RULE)
    return plain(text)


def _string(text: str) -> str:
    try:
        return orjson.dumps(_checked(text)).decode()
    except orjson.JSONEncodeError as error:
        raise MetadataInvalid(_TEXT_RULE) from error


def _number(number: float) -> str:
    # NaN compares as false.
    if not -NUMBER_MAX <= number <= NUMBER_MAX:
        raise MetadataInvalid(_NUMBER_RULE)
    whole = int(number)
    return str(whole) if whole == number else f"{Decimal(float.__repr__(number)):f}"
