"""Users and idempotency keys: texts that have rules, checked once.

With metadata the lowest of what a request carries; `domain.py` has the rest.
"""

from __future__ import annotations

import re
from typing import Final, Self

from stretto.errors import KeyInvalid

USER_ID_CHARACTERS_MAX: Final = 128
KEY_CHARACTERS_MAX: Final = 255

# The OpenAPI document has these rules as patterns of JSON Schema; a test compares them.
_USER_ID = re.compile(r"[!-~](?:[ -~]{0,126}[!-~])?")
_KEY = re.compile(r"[!-~]{1,255}")
_QUOTED_KEY = re.compile(r'"((?:[!#-\[\]-~]|\\["\\])+)"')
# Of a key as a field has it: between two ", and each of its characters may need a \ before it.
KEY_FIELD_CHARACTERS_MAX: Final = 2 * KEY_CHARACTERS_MAX + 2
_QUOTED_KEY_RULE = (
    'A key that begins with " must be a quoted string (RFC 9651, 3.3.3): between two ", with a \\'
    ' before each " and \\ in it.'
)


def plain(text: str) -> str:
    """Return the characters that were checked: a host's subclass may be converted to others.

    An enumeration's member, or a text that masks itself in logs, has a `__str__` of its own.
    """
    return str.__str__(text)


class UserId(str):
    """A user as the token's `sub`: 1 to 128 printable ASCII characters, no blank at either end.

    With blanks there, two users could have ids that look the same.
    """

    __slots__ = ()

    def __new__(cls, value: object) -> Self:
        """Raise `ValueError` for anything else."""
        if not isinstance(value, str) or _USER_ID.fullmatch(value) is None:
            message = (
                f"a user id has 1 to {USER_ID_CHARACTERS_MAX} printable ASCII characters,"
                " the first and the last no blank"
            )
            raise ValueError(message)
        return str.__new__(cls, plain(value))


class IdempotencyKey(str):
    """The client's name for one attempt: 1 to 255 characters of "!" to "~"."""

    __slots__ = ()

    def __new__(cls, value: object) -> Self:
        """Raise `KeyInvalid` for anything else."""
        if not isinstance(value, str) or _KEY.fullmatch(value) is None:
            raise KeyInvalid
        return str.__new__(cls, plain(value))

    @classmethod
    def parse(cls, field: str) -> Self:
        """Read a header field: the bare key, or the same key as a quoted string (RFC 9651, 3.3.3).

        Raises `KeyInvalid`.
        """
        if not field.startswith('"'):
            return cls(field)
        # A comparison of 8 KB, character by character, costs as much as ten creations.
        if len(field) > KEY_FIELD_CHARACTERS_MAX:
            raise KeyInvalid
        quoted = _QUOTED_KEY.fullmatch(field)
        if quoted is None:
            raise KeyInvalid(_QUOTED_KEY_RULE)
        return cls(re.sub(r"\\(.)", r"\1", quoted[1]))

    def header_field(self) -> str:
        """Return the field that `parse` reads as this key; a bare one where that is possible."""
        if not self.startswith('"'):
            return plain(self)
        return '"' + re.sub(r'(["\\])', r"\\\1", self) + '"'
