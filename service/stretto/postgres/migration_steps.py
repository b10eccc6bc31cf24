"""The numbered changes of the schema: files, and what their headers say.

`schema.sql` is the whole of the newest version. Each change adds a file `migrations/NNNN_title.sql`,
which takes a database from the number before to NNNN: one step. Lines of its header:

    -- runs: concurrently          one CREATE INDEX CONCURRENTLY, outside a transaction
    -- runs: in batches of TABLE   one statement, again and again, in a transaction each
    -- locks: TABLE MODE, …        tables of older versions on which the service's statements wait
    -- serves from: NUMBER         instances made for an older schema than this cannot run on it

Without `runs` a step is one transaction. The statement of a batch takes the place where the last
batch has ended ($1, text; null at first) and how many rows it may look at ($2), and returns its own
end as `position` (text; null if there are no rows left) and the number of `rows`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from stretto.postgres.queries import QUERIES, schema_file
from stretto.start_errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.resources.abc import Traversable
    from pathlib import Path

    from stretto.postgres.driver_connection import Connection

# The version of the first release. Lower numbers were never released: no migration starts there.
FIRST_NUMBER: Final = 7
EMPTY: Final = "schema_version is empty although the tables exist; restore its row from a backup"
_START_ANEW: Final = (
    "use the stretto that made it, or an empty database (embedded: another STRETTO_DATA_DIR)"
)

_BATCHES: Final = re.compile(r"in batches of (\w+)")
_INDEX: Final = re.compile(r"^CREATE (?:UNIQUE )?INDEX CONCURRENTLY (\w+)\s+ON ", re.MULTILINE)


class Way(StrEnum):
    """How a step runs."""

    TRANSACTION = "in one transaction"
    CONCURRENTLY = "concurrently"
    BATCHES = "in batches"


@dataclass(frozen=True, slots=True)
class Step:
    """One numbered change of the schema."""

    number: int
    statements: str
    title: str = field(default="", compare=False)

    @property
    def checksum(self) -> str:
        """Shows whether the file was changed after it had been applied."""
        return sha256(self.statements.encode()).hexdigest()

    @property
    def way(self) -> Way:
        """How it runs; raises `ValueError` for a way that there is not."""
        runs = self._header("runs")
        if runs not in ("", Way.CONCURRENTLY) and not self.table:
            message = f"step {self.number} runs in no way that there is: {runs}"
            raise ValueError(message)
        return Way.BATCHES if self.table else Way(runs or Way.TRANSACTION)

    @property
    def table(self) -> str:
        """The table whose rows a back-fill goes through; empty for other ways."""
        found = _BATCHES.fullmatch(self._header("runs"))
        return found[1] if found else ""

    @property
    def index(self) -> str:
        """The index that is built concurrently; raises `ValueError` where none is named."""
        named = _INDEX.search(self.statements)
        if named is None:
            message = f"step {self.number} has no CREATE INDEX CONCURRENTLY name ON"
            raise ValueError(message)
        return named[1]

    @property
    def locks(self) -> dict[str, str]:
        """The mode of the lock on each table that statements of the service wait for."""
        named = filter(None, self._header("locks").split(", "))
        return {table: mode for table, _, mode in (lock.partition(" ") for lock in named)}

    @property
    def serves_from(self) -> int:
        """The oldest schema whose instances may run on this one."""
        return int(self._header("serves from") or FIRST_NUMBER)

    def _header(self, name: str) -> str:
        found = re.search(rf"^-- {name}: (.+)$", self.statements, re.MULTILINE)
        return found[1] if found else ""


def read_steps(folder: Traversable | Path) -> list[Step]:
    """Return the numbered changes of a folder in their order; none if there is no folder."""
    if not folder.is_dir():
        return []
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    return [
        Step(int(name[:4]), (folder / name).read_text("utf-8"), name[5:-4].replace("_", " "))
        for name in names
    ]


def own_steps() -> list[Step]:
    """Return the changes that this version of stretto knows."""
    return read_steps(files("stretto.postgres") / "migrations")


def newest_number(steps: Sequence[Step] | None = None) -> int:
    """Return the number of the schema that this version of stretto is made for."""
    steps = own_steps() if steps is None else steps
    return steps[-1].number if steps else FIRST_NUMBER


def oldest_served(steps: Sequence[Step]) -> int:
    """Return the oldest schema whose instances may run on the schema after all of these."""
    return max((step.serves_from for step in steps), default=FIRST_NUMBER)


def whole_schema(steps: Sequence[Step]) -> Step:
    """Return the one step of an empty database."""
    return Step(newest_number(steps), schema_file().read_text("utf-8"), "the whole schema")


async def missing_steps(connection: Connection, changes: Sequence[Step]) -> Sequence[Step]:
    """Return what brings the database up to date; raises `ConfigurationError` on a mismatch."""
    if not await connection.fetchval(QUERIES["has_version"]):
        return [whole_schema(changes)]
    version = await connection.fetchrow(QUERIES["version"])
    if version is None:
        raise ConfigurationError(EMPTY)
    number, checksum = version
    newest = newest_number(changes)
    if number < FIRST_NUMBER:
        message = (
            f"the database has schema {number}, made before the first release, which cannot be"
            f" migrated; {_START_ANEW}"
        )
        raise ConfigurationError(message)
    if number > newest:
        message = (
            f"the database has schema {number}, this stretto only knows {newest}; use the stretto"
            " that made it, or a newer one"
        )
        raise ConfigurationError(message)
    if number == newest:
        made_by = [whole_schema(changes), *(step for step in changes if step.number == number)]
        if checksum not in {step.checksum for step in made_by}:
            message = (
                f"schema {number} of the database was made by another file than ours; {_START_ANEW}"
            )
            raise ConfigurationError(message)
    return [step for step in changes if step.number > number]
