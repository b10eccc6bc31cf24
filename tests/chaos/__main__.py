"""`make chaos SEED= MINUTES=`: a run as long as you like; exits with 1 on a violation."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from chaos.run import run_chaos

STALL_SECONDS = 10


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="orders the faults and the requests")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--folder", type=Path, default=Path(".chaos"), help="for the history")
    given = parser.parse_args()
    folder = given.folder / str(given.seed)
    folder.mkdir(parents=True, exist_ok=True)
    outcome = asyncio.run(
        run_chaos(given.seed, folder, seconds=given.minutes * 60, stall_seconds=STALL_SECONDS)
    )
    sys.stdout.write(f"seed {given.seed}, {given.minutes:g} minutes\n")
    sys.stdout.writelines(f"{line}\n" for line in outcome.lines())
    sys.stdout.write(f"history: {folder / 'history.jsonl'}\n")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
