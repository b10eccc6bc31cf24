"""Where a mutant lives while it is tried: a copy of the tree, with a PostgreSQL of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from mutants.mutant import ROOT
from stretto.embedded.postgres import embedded_postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from mutants.mutant import Mutant

# Two changes of a file within a second may have one length: each application gets a time of its own,
# so that no compiled file of another one is taken for it.
_applications = count(1)


@dataclass(frozen=True, slots=True)
class Scratch:
    """A copy of the tree; its package wins over the installed one in every process of a trial."""

    tree: Path
    environment: Mapping[str, str]

    @property
    def log(self) -> Path:
        """What the trial under way has printed."""
        return self.tree / "trial.log"

    @contextmanager
    def applied(self, mutant: Mutant) -> Iterator[None]:
        """Have the mutant's change in the tree; raises `MutantInvalid`."""
        path = self.tree / mutant.file
        text, modified = path.read_text(), path.stat().st_mtime
        path.write_text(mutant.apply(text))
        os.utime(path, (modified, modified + next(_applications)))
        try:
            yield
        finally:
            path.write_text(text)
            os.utime(path, (modified, modified))


@asynccontextmanager
async def scratch() -> AsyncIterator[Scratch]:
    """Make a copy of the working tree and start its server; both are gone afterwards."""
    tree = Path(tempfile.mkdtemp(prefix="stretto-mutants-"))
    try:
        # The account that runs PostgreSQL under root must get in.
        tree.chmod(0o755)
        _copy(tree)
        async with embedded_postgres(tree / ".server", notify=lambda _: None) as server:
            own = {"PYTHONPATH": str(tree / "service"), "TEST_POSTGRES_URL": server.dsn}
            copy = Scratch(tree, {**os.environ, **own})
            _require_own_package(copy)
            yield copy
    finally:
        shutil.rmtree(tree, ignore_errors=True)


def _copy(tree: Path) -> None:
    """Copy what git keeps, and what it would keep; as it is in the working tree."""
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    for name in {*listed.decode().split("\0")} - {""}:
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)


def _require_own_package(copy: Scratch) -> None:
    """Raise `AssertionError` where a trial would run the code of another tree."""
    command = (sys.executable, "-c", "import stretto; print(stretto.__file__)")
    imported = subprocess.run(
        command, cwd=copy.tree, env=copy.environment, capture_output=True, text=True, check=True
    ).stdout
    assert Path(imported).is_relative_to(copy.tree), f"a trial would run {imported}"
