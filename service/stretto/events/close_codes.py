"""Why live sessions end: the codes and sentences that clients get."""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class CloseCode(IntEnum):
    """Why a session has ended: WebSocket close codes (RFC 6455, 7.4), and the same over SSE.

    Codes from 4000 on are our own; their last digits are those of a related HTTP status.
    """

    reason: str

    def __new__(cls, code: int, reason: str) -> Self:
        """Take the code and the sentence that a client gets."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.reason = reason
        return member

    CLIENT_LEFT = 1000, "You have closed the session."
    GOING_AWAY = 1001, "The service is shutting down: connect again and resume."
    BAD_FRAME = 1002, "A frame could not be read."
    UNWANTED_DATA = 1003, "Messages go one way here: send nothing."
    TOO_MANY_FRAMES = 1008, "Too many frames: a ping now and then is enough."
    INTERNAL_ERROR = 1011, "Something unforeseen went wrong: connect again and resume."
    EVENTS_MISSED = 1012, "Some events could not be delivered: connect again and resume."
    TRY_AGAIN = 1013, "The history cannot be read at the moment: resume in a while."
    TOKEN_ENDED = 4401, "The token has ended: connect again with another one and resume."
    TOO_SLOW = 4408, "Events were not read fast enough: connect again and resume."
    POSITION_LOST = 4410, "Nothing can be resumed there: read your groups, then connect afresh."
