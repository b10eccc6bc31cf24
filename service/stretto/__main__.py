"""The command `stretto`, also as `python -m stretto`: handles signals before it loads the rest."""

from __future__ import annotations

import os
import signal
from typing import Final

from stretto.interrupts import ended_by_interrupt

# What a shell reports of a program that SIGTERM has ended.
EXIT_TERMINATED: Final = 128 + signal.SIGTERM


def main() -> None:
    """Run the command."""
    if os.getpid() == 1:
        # The kernel drops a signal to PID 1, such as a container's, that has no handler. Loading
        # takes most of a second, in which there is nothing to put in order.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_TERMINATED))
    with ended_by_interrupt():
        from stretto.cli import main as run_command  # noqa: PLC0415

    run_command()


if __name__ == "__main__":
    main()
