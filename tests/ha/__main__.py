"""`make ha SCENARIOS= TURNS=`: fail a primary of pg_auto_failover under load; exits with 1 on a miss.

It needs the packages of pg_auto_failover. It starts a monitor and three nodes, of which a commit
waits for one standby, and two replicas of the service, all on this machine, and ends all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ha.keeper import KeeperError
from ha.measures import HEAD, misses, row
from ha.place import ProgramsMissing
from ha.run import run_scenario
from ha.scenarios import SCENARIOS

if TYPE_CHECKING:
    from ha.run import Outcome
    from ha.scenarios import Scenario

STARTED = time.monotonic()
MISSING_PROGRAMS = 3
INTERRUPTED = 130


def main() -> int:
    """Return the exit code."""
    given = _options()
    names = given.scenario or [name for name, each in SCENARIOS.items() if _may_run(each)]
    rows, missed = [HEAD], []
    # The collector would walk the whole history in the middle of a failover.
    gc.disable()
    for name in names:
        folder = given.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        for log in folder.glob("*.log"):
            log.unlink()
        try:
            outcome = asyncio.run(_run(SCENARIOS[name], given.turns, folder))
        except ProgramsMissing as error:
            sys.stderr.write(f"{error}\n")
            return MISSING_PROGRAMS
        except KeeperError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        except (KeyboardInterrupt, asyncio.CancelledError):
            sys.stderr.write("interrupted; all that was started has been ended\n")
            return INTERRUPTED
        sys.stdout.writelines(f"{line}\n" for line in outcome.lines())
        rows.append(row(name, outcome.turns, outcome.found))
        missed += [f"{name}: {miss}" for miss in misses(outcome.turns, outcome.found)]
    sys.stdout.write("\n".join([*rows, f"history and logs: {given.folder}", ""]))
    sys.stdout.write(f"MISSED: {'; '.join(missed)}\n" if missed else "passed\n")
    return 1 if missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make ha",
        description=__doc__,
        epilog="\n".join(f"{name}: {each.what}" for name, each in SCENARIOS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "scenario", nargs="*", metavar="SCENARIO", help="all that may be run, if none"
    )
    parser.add_argument("--turns", type=int, default=1, help="failures of each scenario")
    parser.add_argument("--folder", type=Path, default=Path(".ha"), help="for history and logs")
    given = parser.parse_args()
    for name in given.scenario:
        if name not in SCENARIOS:
            parser.error(f"{name} is no scenario; there are {', '.join(SCENARIOS)}")
        if not _may_run(SCENARIOS[name]):
            parser.error(f"{name} mounts small disks in memory: run it as root")
    return given


def _may_run(scenario: Scenario) -> bool:
    return not scenario.has_disks or os.geteuid() == 0


async def _run(scenario: Scenario, turns: int, folder: Path) -> Outcome:
    task = asyncio.current_task()
    assert task is not None
    # As Ctrl-C does: everything is ended on the way out.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run_scenario(scenario, turns, folder, _say)


def _say(text: str) -> None:
    with suppress(BrokenPipeError):
        sys.stdout.write(f"{time.monotonic() - STARTED:6.1f} s  {text}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
