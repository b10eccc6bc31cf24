"""What the docs name is there: tests, links, lines of code, codes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stretto import store_errors
from stretto.assembly import component
from stretto.codec import STATUS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
DOCS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")]
DOCS += [*ROOT.glob("clients/*/README.md")]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
SOURCES = [
    *(path for folder in ("service", "tests") for path in (ROOT / folder).rglob("*.py")),
    *(ROOT / "tests/mutants").glob("*.toml"),
]


def broken_links(text: str, folder: Path) -> Iterator[str]:
    """Return links to files of ours, or to headings in them, that are not there."""
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        name, _, heading = link.partition("#")
        target = folder / name
        if not target.exists():
            yield link
        elif heading:
            page = target.read_text() if target.is_file() else text
            if heading not in headings(page):
                yield link


def headings(text: str) -> set[str]:
    """Return what links call the headings of a page."""
    lines = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


def foreign_lines(text: str) -> Iterator[str]:
    """Return pieces of code whose lines stand in no file of ours, one after the other.

    A piece ends with a blank line or with `...`; what a comment behind a line says is the page's.
    """
    for code in re.findall(r"```(?:python|toml)\n(.*?)```", text, flags=re.DOTALL):
        for piece in re.split(r"^(?:\s*|\s*\.\.\.)\n", code, flags=re.MULTILINE):
            lines = [re.sub(r"(?<=\S)  ?# .*", "", line).strip() for line in piece.splitlines()]
            if lines and not any(are_in_order(lines, source) for source in sources()):
                yield piece


def are_in_order(lines: list[str], source: list[str]) -> bool:
    """Return whether the source has all of the lines, and in this order."""
    rest = iter(source)
    return all(line in rest for line in lines)


@cache
def sources() -> list[list[str]]:
    """Return the lines of all code, without what they are indented by."""
    return [[line.strip() for line in path.read_text().splitlines()] for path in SOURCES]


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    """To a file, and to a heading in it."""
    assert [] == list(broken_links(path.read_text(), path.parent))


@pytest.mark.parametrize("link", ["no.md", "README.md#no-such-thing", "#no-such-thing", "docs/no"])
def test_a_broken_link_is_noticed(link: str) -> None:
    """The twin; a link to elsewhere is not checked here."""
    text = f"# Such a thing\n[a](#such-a-thing) [b](README.md) [c](https://no.test) [d]({link})"
    assert [link] == list(broken_links(text, ROOT))


def test_code_that_is_shown_to_contributors_is_ours() -> None:
    """An example that is gone teaches what is gone."""
    assert CONTRIBUTING.count("```python") >= 5
    assert [] == list(foreign_lines(CONTRIBUTING))


@pytest.mark.parametrize(
    ("old", "new"),
    [("assert_never(decision)", "assert_never(decided)"), ("tokens >= 1", "tokens >= 2")],
)
def test_code_that_is_not_ours_is_noticed(old: str, new: str) -> None:
    """The twin."""
    assert old in CONTRIBUTING
    assert [] != list(foreign_lines(CONTRIBUTING.replace(old, new)))


def test_operators_learn_what_every_code_means() -> None:
    """A new code needs a row."""
    text = (ROOT / "docs/operations.md").read_text()
    rows = text.split("## What answers mean to you", 1)[1].split("\n\n", 2)[1]
    statuses = {
        code: row.split("|")[1] for row in rows.splitlines() for code in re.findall(r"`(\w+)`", row)
    }
    assert [] == [code for code in STATUS if str(STATUS[code]) not in statuses.get(code, "")]


def test_every_test_that_security_claims_name_exists() -> None:
    """A claim without its test is a wish."""
    text = (ROOT / "docs/security.md").read_text()
    named = re.findall(r"`(test_\w+\.py)::(\w+)`", text)
    assert len(named) > 20
    sources: dict[str, str] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        # Unit and integration tests of one part have the same name.
        sources[path.name] = sources.get(path.name, "") + path.read_text()
    missing = [
        f"{file}::{test}" for file, test in named if f"def {test}(" not in sources.get(file, "")
    ]
    assert [] == missing
    rows = [line for line in text.splitlines() if line.startswith("| ") and line.count("|") == 3]
    assert [] == [row for row in rows if "test" not in row]


def test_the_index_of_what_tests_share_names_every_part() -> None:
    """A helper that is not found is written again."""
    text = (ROOT / "tests/support/__init__.py").read_text()
    parts = {path.stem for path in (ROOT / "tests/support").iterdir() if path.stem[0] != "_"}
    assert parts == {*re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)}


def test_every_kind_of_a_stores_error_is_in_the_telemetry() -> None:
    """What an alarm compares `kind` with."""
    text = (ROOT / "docs" / "telemetry.md").read_text("utf-8")
    listed = text.split("- `kind` is ", 1)[1].split("; see", 1)[0]
    kinds = {
        name
        for name, each in vars(store_errors).items()
        if isinstance(each, type)
        and issubclass(each, store_errors.StoreError)
        and each is not store_errors.StoreError
    }
    assert [] == sorted(name for name in kinds if f"`{name}`" not in listed)


def test_start_and_stop_are_the_same_lists_in_the_docs_and_in_the_code() -> None:
    """What happens in this order is a test of the component."""

    def lists(text: str) -> tuple[str, list[str]]:
        flat = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "")
        start = re.search(r"^Start: (.*?)\.", flat, re.DOTALL | re.MULTILINE)
        assert start is not None
        steps = re.findall(r"^\d+\. .*?[.;]$", flat, re.DOTALL | re.MULTILINE)
        return " ".join(start[1].split()), [" ".join(step.split()) for step in steps]

    text = (ROOT / "docs/ARCHITECTURE.md").read_text().split("## Life cycle", 1)[1]
    assert component.__doc__ is not None
    documented, done = lists(text.split("A load balancer notices", 1)[0]), lists(component.__doc__)
    assert len(done[1]) >= 13
    assert documented == done
