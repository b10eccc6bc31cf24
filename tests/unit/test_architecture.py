"""The tables of `docs/ARCHITECTURE.md` say what the code does."""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import fields
from fnmatch import fnmatch
from importlib import import_module
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stretto.config import SETTINGS
from stretto.events.close_codes import CloseCode
from stretto.runtime.backoff import Backoff
from support.routines import definition_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "service/stretto"
TEXT = (ROOT / "docs/ARCHITECTURE.md").read_text()

# A thousand may be set apart.
NUMBER = re.compile(r"(\d{1,3}(?:[ ,]\d{3})+|\d+(?:\.\d+)?)(?: ([A-Za-z]+|%))?")
BYTES = {"KiB": 1024, "MiB": 1024**2}
SECONDS = {"ms": 0.001, "s": 1, "min": 60, "h": 3600, "day": 86_400, "days": 86_400}
UNITS = BYTES | SECONDS | {"%": 0.01}
PLACE = re.compile(r"in `(?P<file>[\w/]+\.(?:py|sql))`|(?P<setting>settings? )|`(?P<name>[\w.]+)`")
# Names in a file, and code that stands in one of them.
DECISION = re.compile(
    r"(?P<names>`[\w.]+`(?:, `[\w.]+`)*) in `(?P<file>[\w/]+\.(?:py|sql))`(?:: `(?P<code>[^`]+)`)?"
)
DECISIONS_MIN = 53


def table(text: str, header: str) -> list[list[str]]:
    """Return the cells of the table with this header."""
    lines = text.split(f"{header}\n", 1)[1].split("\n\n", 1)[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def modules_that_differ(text: str) -> Iterator[str]:
    """Return modules that stand nowhere or twice, and names of none."""
    listed = [
        name
        for cells in table(text, "| module | what it owns |")
        for name in re.findall(r"`([^`]+)`", cells[0])
    ]
    drawn = [f"{name}.py" for line in drawn_layers(text) for name in line.split(" | ")]
    files = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*")
        if path.suffix in (".py", ".sql", ".json") and "migrations" not in path.parts
        if path.name != "__init__.py"
    ]
    for file in files:
        count = sum(fnmatch(file, name) for name in listed)
        if count > 1 or not (count or file in drawn):
            yield f"{file}: {count} times"
    yield from (name for name in listed if not any(fnmatch(file, name) for file in files))


def drawn_layers(text: str) -> list[str]:
    """Return the layers as they are drawn, without what is said of them."""
    drawing = text.split("Parts on one line do not import each other.\n\n", 1)[1].split("\n\n", 1)[
        0
    ]
    return [re.split(r" {2,}", line.strip())[0] for line in drawing.splitlines()]


def layers_that_differ(text: str) -> Iterator[str]:
    """Return the layers that are not drawn as the contract has them, from above."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    drawn = drawn_layers(text)
    if layers != drawn:
        yield from [*{*layers} ^ {*drawn}] or ["the order"]


def limits_that_differ(text: str) -> Iterator[str]:
    """Return limits that are elsewhere, have another value, or are in no row."""
    listed = set()
    for limit, value, where in table(text, "| limit | value | where |"):
        for file, name in places(where):
            listed.add((file, name))
            try:
                limits = values(file, name)
            except (AttributeError, KeyError, ModuleNotFoundError, StopIteration) as error:
                yield f"{limit}: {name} in {file}: {error!r}"
                continue
            named = numbers(value)
            if not all(any(abs(each - one) < 1e-9 for one in named) for each in limits):
                yield f"{limit}: {name} is {limits}"
    yield from (f"{name} in {file}" for file, name in constants() if (file, name) not in listed)


def places(where: str) -> Iterator[tuple[str, str]]:
    """Return file and name of each constant; the name alone of a setting."""
    waiting: list[str] = []
    are_settings = False
    for found in PLACE.finditer(where):
        if found["setting"]:
            are_settings = True
        elif found["file"]:
            yield from ((found["file"], name) for name in waiting)
            waiting = []
        elif are_settings:
            yield "", found["name"]
        else:
            waiting.append(found["name"])
    yield from (("no file", name) for name in waiting)


def values(file: str, name: str) -> list[float]:
    """Return what is a number there: a constant, the ends of a series, a default."""
    value: Any
    if file:
        module = import_module("stretto." + file.removesuffix(".py").replace("/", "."))
        kind, _, field = name.partition(".")
        value = getattr(module, kind)
        if field:
            value = next(each.default for each in fields(value) if each.name == field)
    else:
        value = SETTINGS[name.lower()].default
    if isinstance(value, Backoff):
        value = (value.seconds_first, value.seconds_max)
    several = (value[0], value[-1]) if isinstance(value, tuple) else (value,)
    return [float(each) for each in several if isinstance(each, Real)]


def numbers(cell: str) -> set[float]:
    """Return every number of the cell in its unit; one without stands in any: "7, 7, 30 days"."""
    found = NUMBER.findall(cell)
    units = {1, *(UNITS[unit] for _, unit in found if unit in UNITS)}
    return {
        float(re.sub("[ ,]", "", number)) * each
        for number, unit in found
        for each in ({UNITS[unit]} if unit in UNITS else units)
    }


def constants() -> Iterator[tuple[str, str]]:
    """Return every public constant that is named as a limit, and every back-off."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name = node.target.id
                is_limit = name.endswith("_MAX") or "Backoff(" in ast.unparse(node)
                if is_limit and not name.startswith("_"):
                    yield str(path.relative_to(PACKAGE)), name


def close_codes_that_differ(text: str) -> Iterator[str]:
    """Return the codes of which clients do not learn what to do; aiohttp has two more of its own."""
    rows = table(text, "| code | when | the client should |")
    listed = {int(code) for cells in rows for code in cells[0].split(", ")}
    yield from (str(code) for code in listed ^ {*map(int, CloseCode), 1007, 1009})


def decisions_that_are_gone(text: str) -> Iterator[str]:
    """Return behaviours without a place, and places whose file, name or code is not there."""
    rows = table(text, "| behaviour | decided by |")
    if len(rows) < DECISIONS_MIN:
        yield f"only {len(rows)} behaviours"
    for behaviour, where in rows:
        if "`" in DECISION.sub("", where) or not DECISION.search(where):
            yield f"{behaviour}: not a place: {where}"
        for found in DECISION.finditer(where):
            file, names = found["file"], re.findall(r"[\w.]+", found["names"])
            sources = {name: definition(file, name) for name in names}
            yield from (f"{behaviour}: no {name} in {file}" for name in names if not sources[name])
            code = " ".join((found["code"] or "").split())
            if not any(code in " ".join(source.split()) for source in sources.values()):
                yield f"{behaviour}: no {code!r} in {', '.join(names)}"


def definition(file: str, name: str) -> str:
    """Return the text of a statement, routine, class, function or constant; empty if there is none."""
    if file == "schema.sql":
        return definition_of(name)
    path = PACKAGE / file
    if not path.is_file():
        return ""
    text = path.read_text()
    if path.suffix == ".sql":
        statements = (part.partition("\n") for part in text.split("-- name: ")[1:])
        return next((statement for head, _, statement in statements if head == name), "")
    found: ast.AST = ast.parse(text)
    for part in name.split("."):
        named = [each for each in ast.iter_child_nodes(found) if part in names_of(each)]
        if not named:
            return ""
        found = named[0]
    return ast.get_source_segment(text, found) or ""


def names_of(node: ast.AST) -> list[str]:
    """Return what a statement of a module or a class defines."""
    match node:
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            return [name]
        case ast.AnnAssign(ast.Name(name)) | ast.Assign([ast.Name(name)]):
            return [name]
    return []


CHECKS: dict[str, Callable[[str], Iterator[str]]] = {
    "modules": modules_that_differ,
    "layers": layers_that_differ,
    "limits": limits_that_differ,
    "close codes": close_codes_that_differ,
    "decisions": decisions_that_are_gone,
}


@pytest.mark.parametrize("check", CHECKS)
def test_the_tables_say_what_the_code_does(check: str) -> None:
    """A change of one is a change of the other."""
    assert [] == list(CHECKS[check](TEXT))


@pytest.mark.parametrize(
    ("check", "old", "new"),
    [
        ("modules", "| `creation/attempt.py` |", "| `creation/attempts.py` |"),
        ("modules", "| `creation/attempt.py` |", "| `creation/flight.py` |"),
        ("modules", "    server  ", "    servers "),
        ("layers", "    http  ", "    https "),
        ("layers", "    domain | setting  ", "    "),
        ("limits", "| turns of a flight | 8 |", "| turns of a flight | 9 |"),
        ("limits", "8 | `TURNS_MAX`", "8 | `TURNS`"),
        ("limits", "`TURNS_MAX` in `creation/follower.py`", "`TURNS_MAX` in `creation/flight.py`"),
        ("limits", "| pause between looks | 5 ms to", "| pause between looks | 5 s to"),
        ("limits", "| lease | 5 s |", "| lease | 6 s |"),
        ("limits", "setting `LEASE_SECONDS`", "setting `LEASES`"),
        ("limits", "`CreatorSettings.outcomes_max`", "`CreatorSettings.outcomes`"),
        ("limits", "| 50 000 |", "| 60 000 |"),
        ("close codes", "| 4408 |", "| 4409 |"),
        ("decisions", "`decide` in `creation/attempt.py`", "`decides` in `creation/attempt.py`"),
        ("decisions", "`judge` in `webhook/rules.py`", "`judge` in `webhook/rule.py`"),
        ("decisions", "`judge` in `webhook/rules.py`", "`judge` of `webhook/rules.py`"),
        ("decisions", "`judge` in `webhook/rules.py`", "the rules"),
        ("decisions", "`Session.offer` in", "`Session.offers` in"),
        (
            "decisions",
            "`lease_bus`, `advance_bus` in `postgres/bus.sql`",
            "`lease` in `postgres/bus.sql`",
        ),
        ("decisions", "`ON CONFLICT DO NOTHING`", "`ON CONFLICT DO UPDATE`"),
        (
            "decisions",
            "| what the answer of a webhook's endpoint means | `judge` in `webhook/rules.py` |\n",
            "",
        ),
    ],
)
def test_a_table_that_is_wrong_is_noticed(check: str, old: str, new: str) -> None:
    """The twin."""
    assert old in TEXT
    assert [] != list(CHECKS[check](TEXT.replace(old, new, 1)))
