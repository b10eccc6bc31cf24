"""Another revision beside this one: its checkout, the order of the turns, the ratios.

Both run in one Python environment and on one PostgreSQL; each has its own code and its own schema.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from loadtests.bench.bench import ROOT
from loadtests.bench.machinery import BenchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

REQUIREMENTS = "requirements/run.txt"
# Before the name of a part that was measured at the other revision.
BEFORE = "before: "


@contextmanager
def checkout(revision: str, root: Path = ROOT) -> Iterator[Path]:
    """Provide a revision's tree in a temporary folder, named after the commit, for a context.

    Raises `BenchError` if there is no such revision, or if it requires other packages.
    """
    commit = _git(root, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        tree = Path(folder, commit[:12])
        _git(root, "worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            # Packages that only this tree requires do not disturb the other one.
            missing = _packages(tree) - _packages(root)
            if missing:
                message = (
                    f"{revision} cannot run in this Python environment: its {REQUIREMENTS} requires"
                    f" {', '.join(sorted(missing))}"
                )
                raise BenchError(message)
            yield tree
        finally:
            _git(root, "worktree", "remove", "--force", str(tree))


def in_turn(
    names: Iterable[str], number: int, compared: tuple[str, ...]
) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a round, each with whether it is the other revision's turn.

    A part whose name begins with one of `compared` has two turns, one after the other. Which is
    first alternates: the second finds a server that has just been under load.
    """
    for name in names:
        turns = (False, True) if name.startswith(compared) else (False,)
        for is_before in reversed(turns) if number % 2 else turns:
            yield name, is_before


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure as a multiple of the other revision's: of the medians, and of single rounds."""

    of_medians: float
    least: float
    most: float

    @classmethod
    def of(cls, now: Sequence[float], before: Sequence[float]) -> Ratio | None:
        """Return the ratio of two figures, round by round; None if nothing can be compared."""
        if not all(before):
            return None
        rounds = [new / old for new, old in zip(now, before, strict=True)]
        return cls(median(now) / median(before), min(rounds), max(rounds))

    def __str__(self) -> str:
        return f"{self.of_medians:.3g} ({self.least:.3g} - {self.most:.3g})"


def _packages(tree: Path) -> set[str]:
    """Return the locked packages with their versions."""
    try:
        locked = (tree / REQUIREMENTS).read_text()
    except FileNotFoundError as error:
        message = f"there is no {REQUIREMENTS} in {tree}: its packages are unknown"
        raise BenchError(message) from error
    return set(re.findall(r"^[\w.\[\],-]+==[^\s;]+", locked, re.MULTILINE))


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", root, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        message = f"git {' '.join(arguments)}: {done.stderr.strip()}"
        raise BenchError(message)
    return done.stdout.strip()
