"""A host needs no name but those that `stretto` exports, and they have types."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import pytest

import stretto
from stretto import errors, observations
from stretto.assembly.settings import ComponentSettings
from stretto.observations import Observation

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
HOST = ROOT / "tests/unit/typed_host.py"
# The first run without a cache reads the types of all libraries.
MYPY_SECONDS_MAX = 600


def classes(module: Any, kind: type) -> set[str]:
    """Return the names of a module's own public classes of a kind."""
    return {
        name
        for name, each in vars(module).items()
        if isinstance(each, type) and issubclass(each, kind) and not name.startswith("_")
        if each.__module__ == module.__name__
    }


def test_every_error_is_exported() -> None:
    """One that is not could only be caught as a `StrettoError`."""
    assert classes(errors, errors.StrettoError) - {*stretto.__all__} == set()


def test_every_observation_is_exported() -> None:
    """One that is not could be told apart by its name alone."""
    assert classes(observations, Observation) - {*stretto.__all__} == set()


def test_every_part_of_the_settings_is_exported() -> None:
    """One that is not could not be set."""
    kinds = get_type_hints(ComponentSettings)
    parts = {each.name: kinds[each.name] for each in fields(ComponentSettings)}
    names = {
        kind.__name__ for kind in parts.values() if isinstance(kind, type) and is_dataclass(kind)
    }
    assert len(names) > 4
    assert names - {*stretto.__all__} == set()


def documented() -> dict[str, set[str]]:
    """Return what the tables of docs/embedding.md say of each type."""
    page = (ROOT / "docs/embedding.md").read_text()
    section = page.split("\n## The types\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", section, re.MULTILINE)
    return {name: {*re.findall(r"`(\w+)`", fields_of)} for name, fields_of in rows}


def public_fields(kind: type) -> set[str]:
    """Return what a host can read of a value: fields, properties, members of an enumeration."""
    names = {name for name, each in vars(kind).items() if isinstance(each, property)}
    if is_dataclass(kind):
        names |= {each.name for each in fields(kind)}
    names |= {*getattr(kind, "_fields", ()), *getattr(kind, "__members__", ())}
    return {name for name in names if not name.startswith("_")}


def test_the_page_for_hosts_lists_every_field_of_every_value() -> None:
    """Nothing that is gone, and nothing is missing; observations are in the telemetry's page."""
    exported = {name: getattr(stretto, name) for name in stretto.__all__}
    values = {
        name: public_fields(each)
        for name, each in exported.items()
        if isinstance(each, type)
        and (is_dataclass(each) or issubclass(each, (tuple, Enum, stretto.Metadata)))
        and not issubclass(each, (Observation, stretto.Handle))
    }
    assert len(values) > 20
    assert values == documented()


def inner_names(source: str) -> Iterator[str]:
    """Yield what a program imports from inside of the package."""
    for node in ast.walk(ast.parse(source)):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        yield from (name for name in names if name.startswith("stretto."))


@pytest.mark.parametrize(
    "path", [HOST, *sorted((ROOT / "examples").glob("*.py"))], ids=lambda path: path.name
)
def test_hosts_and_examples_need_no_other_name(path: Path) -> None:
    """Nothing from inside of the package."""
    assert [] == [*inner_names(path.read_text())]


def test_a_name_from_inside_would_be_noticed() -> None:
    """The twin."""
    assert ["stretto.a", "stretto.b.c"] == [
        *inner_names("import stretto\nimport stretto.a\nfrom stretto.b.c import d")
    ]


def type_errors(path: Path) -> list[str]:
    """Return what mypy says of a program, by the project's own strict settings."""
    command = [sys.executable, "-m", "mypy", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return [line for line in done.stdout.splitlines() if ": error: " in line]


@pytest.mark.timeout(MYPY_SECONDS_MAX)
def test_a_hosts_code_has_the_right_types(tmp_path: Path) -> None:
    """Hook, bus, authorize, observer, callback and settings, by `mypy --strict`; and a twin."""
    assert [] == type_errors(HOST)
    code = HOST.read_text()
    wrong = code.replace(
        "created: Sequence[tuple[stretto.CreatedGroup,", "created: list[tuple[int,"
    )
    assert wrong != code
    (tmp_path / "wrong_host.py").write_text(wrong)
    errors_found = type_errors(tmp_path / "wrong_host.py")
    assert any("Incompatible types in assignment" in each for each in errors_found)
