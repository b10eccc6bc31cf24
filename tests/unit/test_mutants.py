"""The lists of mutants fit the tree, and what tries them can distinguish a good test from a bad one."""

from __future__ import annotations

import asyncio
import io
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from mutants import trial
from mutants.mutant import PACKAGE, ROOT, Mutant, MutantInvalid, faults, read_mutants
from mutants.report import Report
from mutants.scratch import Scratch
from mutants.trial import Broken, Noticed, Outcome, Survived, failing, try_mutant

MUTANTS_MIN = 150
# Of every folder of the package, of its statements, and of the schema.
ROOM_MIN = 5

ENTRY = """
[[mutant]]
file = "one.py"
why = "adds one too much"
old = "return 1"
new = "return 2"
tests = ["test_one.py::test_one"]
"""


def mutant(old: str = "return 1", new: str = "return 2", test: str = "test_one") -> Mutant:
    """A change of the small tree."""
    return Mutant("list:1", "one.py", "adds one", old, new, (f"test_one.py::{test}",))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A function, a test that looks at what it returns, and tests that do not."""
    (tmp_path / "one.py").write_text("def one():\n    return 1\n")
    (tmp_path / "test_one.py").write_text(
        "from threading import Event\n\n"
        "from one import one\n\n\n"
        "def test_one():\n    assert one() == 1\n\n\n"
        "def test_nothing():\n    one()\n\n\n"
        "def test_waiting():\n    assert one() == 1 or Event().wait()\n\n\n"
        "def test_failing():\n    assert one() == 3\n"
    )
    (tmp_path / "code_under_test.py").symlink_to("one.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p xdist -p pytest_timeout\n")
    return tmp_path


@pytest.fixture
def copy(tree: Path) -> Scratch:
    """The small tree in the place of a copy, tried with few plugins of pytest."""
    few = {"PYTHONPATH": str(tree), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return Scratch(tree, {**os.environ, **few})


def test_every_mutant_fits_the_tree() -> None:
    """Its text occurs once and its tests exist: a list does not rot unseen."""
    assert [] == [fault for each in read_mutants() for fault in faults(each)]


def test_no_change_is_listed_twice() -> None:
    """Nor does one count twice."""
    changes = Counter((each.file, each.old, each.new) for each in read_mutants())
    assert [] == [change for change, count in changes.items() if count > 1]


def test_every_room_has_its_mutants() -> None:
    """What is not changed for a try is not known to be tested."""
    rooms = Counter(each.room for each in read_mutants())
    assert MUTANTS_MIN <= rooms.total()
    folders = {path.parent.name for path in (ROOT / PACKAGE).glob("*/__init__.py")}
    for room in (*folders, "schema.sql", "statements"):
        assert ROOM_MIN <= rooms[room], room


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ENTRY.replace("why", "reason"), "unknown fields: reason"),
        (ENTRY.replace('why = "adds one too much"', ""), "why must be a text"),
        (ENTRY.replace('"adds one too much"', '""'), "must not be empty"),
        (ENTRY.replace('["test_one.py::test_one"]', "[]"), "at least one id"),
        (ENTRY + 'survives = ""', "must not be empty"),
        ("[mutants]", "only [[mutant]] may stand there"),
        ("[[mutant]", "list.toml"),
    ],
)
def test_badly_written_list_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """An unknown field would be a rule without effect."""
    (tmp_path / "list.toml").write_text(text)
    with pytest.raises(MutantInvalid) as caught:
        read_mutants(tmp_path)
    assert said in str(caught.value)


def test_written_list_is_read(tmp_path: Path) -> None:
    """The twin: as it stands above, nothing is wrong with it."""
    (tmp_path / "list.toml").write_text(ENTRY + 'survives = "equal"')
    (read,) = read_mutants(tmp_path)
    assert ("list:1", "one.py", "equal") == (read.name, read.file, read.survives)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (mutant(old="return 5"), "old occurs 0 times"),
        (mutant(old="n"), "old occurs 2 times"),
        (mutant(new="return 1"), "new is the same as old"),
        (mutant(new="return ("), "is no Python"),
        (mutant(test="test_two"), "there is no test test_two"),
        (Mutant("list:1", "no.py", "-", "a", "b", ("no_test.py",)), "there is no no.py"),
    ],
)
def test_mutant_that_does_not_fit_says_why(tree: Path, changed: Mutant, said: str) -> None:
    """The code moves on; its mutants have to follow."""
    assert any(said in fault for fault in faults(changed, tree))
    assert [] == list(faults(mutant(), tree))


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        (mutant(), Noticed(is_hang=False)),
        (mutant(test="test_nothing"), Survived()),
        (mutant(test="test_waiting"), Noticed(is_hang=True)),
        (mutant(new="return 1\n\n\nraise ImportError"), Broken),
        (mutant(old="return 5"), Broken),
    ],
)
async def test_trial_distinguishes_a_test_that_notices_from_one_that_does_not(
    copy: Scratch,
    changed: Mutant,
    outcome: Outcome | type[Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the tree is as it was afterwards."""
    monkeypatch.setattr(trial, "TEST_SECONDS_MAX", 2)
    before = (copy.tree / "one.py").read_text()
    found = await try_mutant(copy, changed)
    assert outcome in (found, type(found))
    assert before == (copy.tree / "one.py").read_text()


async def test_tests_that_fail_without_a_mutant_are_named(copy: Scratch) -> None:
    """What they notice is worth nothing."""
    assert ["test_one.py::test_failing"] == await failing(copy, ["test_one.py"])


async def test_cancelled_trial_leaves_nothing_behind(copy: Scratch) -> None:
    """Neither the change nor the process."""
    os.mkfifo(copy.tree / "started")
    begin = "open('started', 'w').write(str(__import__('os').getpid()))"
    changed = mutant(new=f"{begin}; return 2", test="test_waiting")
    trying = asyncio.create_task(try_mutant(copy, changed))
    pid = int(await asyncio.to_thread((copy.tree / "started").read_text))
    trying.cancel()
    with suppress(asyncio.CancelledError):
        await trying
    assert "return 1" in (copy.tree / "one.py").read_text()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("outcomes", "is_good"),
    [
        ([Noticed(is_hang=False)] * 19 + [Noticed(is_hang=True)], True),
        ([Noticed(is_hang=False)] * 19 + [Survived()], False),
        ([Noticed(is_hang=False)] * 19 + [Broken("-")], False),
    ],
)
def test_report_is_good_only_without_survivor_or_broken_mutant(
    outcomes: list[Outcome], is_good: bool
) -> None:
    """However many are noticed."""
    report = Report(len(outcomes), io.StringIO())
    for outcome in outcomes:
        report.note(mutant(), outcome, 0)
    assert is_good == report.conclude()


@pytest.mark.parametrize(("noticed", "is_good"), [(19, True), (18, False)])
def test_survivors_with_a_reason_are_few(noticed: int, is_good: bool) -> None:
    """At least 95 % of the mutants must be noticed."""
    output = io.StringIO()
    report = Report(20, output)
    equal = Mutant("list:1", "one.py", "-", "a", "b", ("test_one.py",), survives="equal")
    for number in range(20):
        if number < noticed:
            report.note(mutant(), Noticed(is_hang=False), 0)
        else:
            report.note(equal, Survived(), 0)
    assert is_good == report.conclude()
    assert f"noticed {noticed} of 20" in output.getvalue()


def test_reason_of_a_mutant_that_is_noticed_is_wrong() -> None:
    """A reason that no longer holds does not stay."""
    report = Report(1, io.StringIO())
    equal = Mutant("list:1", "one.py", "-", "a", "b", ("test_one.py",), survives="equal")
    report.note(equal, Noticed(is_hang=False), 0)
    assert not report.conclude()
