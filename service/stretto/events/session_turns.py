"""SessionTurns: how much all sessions of a process do in one turn of the event loop.

Thousands of sessions may get an event at once, catch up at once, or be closed at once. So what each
does then, it does in a turn, and users take turns. What catches up does not delay what is live.
"""

from __future__ import annotations

from typing import Final

from stretto.runtime.turns import Turns

# Events that live sessions send in a turn of the loop, and as many again those that catch up: one
# costs some 15 µs, and 45 with a thousand members, so that is 2 to 6 ms of each.
SENDS_PER_TURN: Final = 128
# The end of a session costs some 150 µs.
ENDS_PER_TURN: Final = 32


class SessionTurns:
    """Turns of the event loop in which the sessions of a process send, and end."""

    __slots__ = ("catching_up", "ending", "live")

    def __init__(self) -> None:
        self.live = Turns(SENDS_PER_TURN)
        self.catching_up = Turns(SENDS_PER_TURN)
        self.ending = Turns(ENDS_PER_TURN)
