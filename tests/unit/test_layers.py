"""Imports go one way, also those for type checkers alone, and in every room."""

from __future__ import annotations

import ast
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grimp
import pytest

import stretto

if TYPE_CHECKING:
    from grimp import ImportGraph

PACKAGE = Path(stretto.__file__).parent
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
MODULE_LINES_MAX = 300
FUNCTION_LINES_MAX = 70


@pytest.fixture
def graph() -> ImportGraph:
    """Which module of the package imports which."""
    return grimp.build_graph("stretto", cache_dir=None)


@pytest.fixture(scope="module")
def linter() -> dict[str, Any]:
    """The contracts that `make layers` checks."""
    tools: dict[str, Any] = tomllib.loads(PYPROJECT.read_text())["tool"]
    linter: dict[str, Any] = tools["importlinter"]
    return linter


def circle(graph: ImportGraph) -> list[str]:
    """Return modules that import each other in a circle; nothing where there is none."""
    imported = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_modules_import_each_other_in_a_circle(graph: ImportGraph) -> None:
    """Not even to name a type: what forms a circle is read, tested and changed as one."""
    assert [] == circle(graph)


def test_an_import_for_type_checkers_alone_closes_a_circle(graph: ImportGraph) -> None:
    """The twin: the graph has such imports, and one more in the other direction is found."""
    below, above = "stretto.creation.attempt", "stretto.creation.ports"
    assert graph.direct_import_exists(importer=above, imported=below)
    graph.add_import(importer=below, imported=above)
    assert {below, above} == set(circle(graph))


def test_contracts_count_imports_for_type_checkers(linter: dict[str, Any]) -> None:
    """As the graph above does."""
    assert linter["exclude_type_checking_imports"] is False


def test_every_room_has_layers_that_leave_no_module_out(linter: dict[str, Any]) -> None:
    """A module that is added has to find its place."""
    layers = [each for each in linter["contracts"] if each["type"] == "layers"]
    contained = {container for each in layers for container in each["containers"]}
    rooms = {
        ".".join(("stretto", *path.parent.relative_to(PACKAGE).parts))
        for path in PACKAGE.rglob("__init__.py")
    }
    assert rooms == contained
    assert [] == [each["name"] for each in layers if not each["exhaustive"]]


def test_modules_and_functions_are_short() -> None:
    """What does not fit is two subjects."""
    long = []
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text()
        if source.count("\n") > MODULE_LINES_MAX:
            long.append(path.name)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno >= FUNCTION_LINES_MAX:
                    long.append(f"{path.name}: {node.name}")
    assert [] == long
