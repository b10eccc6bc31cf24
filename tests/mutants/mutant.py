"""A mutant: one small change of meaning in code, SQL or schema, and the tests that must notice it."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
PACKAGE = "service/stretto/"

_TEXTS = ("file", "why", "old", "new")
_FIELDS = {*_TEXTS, "tests", "survives"}


class MutantInvalid(Exception):
    """A mutant is not written as it has to be; the message says where and what is wrong."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old`, which occurs exactly once in the file, becomes `new`."""

    name: str
    """The stem of its list and its number there."""
    file: str
    why: str
    """What is wrong in the changed code, in a few words."""
    old: str
    new: str
    tests: tuple[str, ...]
    """Ids of pytest; at least one of these tests must fail."""
    survives: str | None = None
    """Why no test can notice it: the change is equivalent."""

    @property
    def room(self) -> str:
        """The part of the project that it changes: a folder of the package, its SQL, or a file."""
        folder, slash, _ = self.file.removeprefix(PACKAGE).partition("/")
        if slash and self.file.endswith(".sql"):
            return "statements"
        return folder if slash else Path(self.file).name

    def apply(self, text: str) -> str:
        """Return the changed text; raises `MutantInvalid`."""
        count = text.count(self.old)
        if count != 1:
            raise MutantInvalid(f"{self.name}: old occurs {count} times in {self.file}")
        changed = text.replace(self.old, self.new)
        if changed == text:
            raise MutantInvalid(f"{self.name}: new is the same as old")
        if self.file.endswith(".py"):
            try:
                ast.parse(changed)
            except SyntaxError as error:
                raise MutantInvalid(
                    f"{self.name}: the changed file is no Python: {error}"
                ) from error
        return changed

    def is_wanted(self, word: str) -> bool:
        """Return whether the word names the mutant, its list or its file."""
        return word in (self.name, self.name.partition(":")[0]) or word in self.file


def read_mutants(folder: Path = FOLDER) -> list[Mutant]:
    """Return the mutants of every list; raises `MutantInvalid`."""
    return [mutant for path in sorted(folder.glob("*.toml")) for mutant in _of_list(path)]


def faults(mutant: Mutant, root: Path = ROOT) -> Iterator[str]:
    """Yield why the mutant cannot be tried on this tree."""
    path = root / mutant.file
    if not path.is_file():
        yield f"{mutant.name}: there is no {mutant.file}"
    else:
        try:
            mutant.apply(path.read_text())
        except MutantInvalid as error:
            yield str(error)
    for test in mutant.tests:
        file, *names = test.partition("[")[0].split("::")
        if not (root / file).exists():
            yield f"{mutant.name}: there is no {file}"
        elif names and names[-1] not in _tests_of(root / file):
            yield f"{mutant.name}: there is no test {names[-1]} in {file}"


def _of_list(path: Path) -> Iterator[Mutant]:
    try:
        document = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise MutantInvalid(f"{path.name}: {error}") from error
    if set(document) != {"mutant"}:
        raise MutantInvalid(f"{path.name}: only [[mutant]] may stand there")
    for number, entry in enumerate(document["mutant"], 1):
        yield _read(f"{path.stem}:{number}", entry)


def _read(name: str, entry: Mapping[str, object]) -> Mutant:
    unknown = sorted(set(entry) - _FIELDS)
    if unknown:
        raise MutantInvalid(f"{name}: unknown fields: {', '.join(unknown)}")
    file, why, old, new = (_text(name, entry, field) for field in _TEXTS)
    tests = entry.get("tests")
    if not isinstance(tests, list) or not tests or not all(isinstance(id_, str) for id_ in tests):
        raise MutantInvalid(f"{name}: tests must be a list of at least one id")
    survives = _text(name, entry, "survives") if "survives" in entry else None
    if not (file and why and old and survives != ""):
        raise MutantInvalid(f"{name}: file, why, old and survives must not be empty")
    return Mutant(name, file, why, old, new, tuple(tests), survives)


def _text(name: str, entry: Mapping[str, object], field: str) -> str:
    value = entry.get(field)
    if not isinstance(value, str):
        raise MutantInvalid(f"{name}: {field} must be a text")
    return value


@lru_cache
def _tests_of(path: Path) -> frozenset[str]:
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
