"""Stands for a connection of the driver's, where only its life and its server's answers matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.clock import Clock


class Opened:
    """A connection that can be cut; its server has frozen, unless it has a clock."""

    def __init__(self) -> None:
        self.is_cut = False
        self.answered_at = float("-inf")
        self.clock: Clock | None = None
        """Of a server that answers when it is asked."""
        self.listeners: list[Callable[[object], None]] = []

    def terminate(self) -> None:
        self.is_cut = True
        for listener in self.listeners:
            listener(self)

    def is_closed(self) -> bool:
        return self.is_cut

    def ask(self) -> None:
        if self.clock is not None:
            self.answered_at = self.clock.now

    def add_termination_listener(self, listener: Callable[[object], None]) -> None:
        self.listeners.append(listener)
