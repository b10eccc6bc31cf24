"""The benchmark's own arithmetic: accounts, turns, ratios and goals; `make bench-smoke` runs it."""

from __future__ import annotations

import itertools
import os
import resource
import subprocess
import sys
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]
MODULES: Final = (
    *("accounts", "against", "costs", "goals", "machinery", "report", "where", "__main__"),
)
BURN: Final = "import time\nwhile time.process_time() < 0.3: pass"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of the benchmark."""
    monkeypatch.syspath_prepend(ROOT)
    return SimpleNamespace(
        **{name.strip("_"): import_module(f"loadtests.bench.{name}") for name in MODULES}
    )


def run_process(
    proc: Path, pid: int, ticks: tuple[int, int, int, int], children: tuple[int, ...] = ()
) -> None:
    """Give a process its files in `proc`; its name is as odd as a name can be."""
    threads = proc / str(pid) / "task"
    for thread in (pid, pid + 1):
        (threads / str(thread)).mkdir(parents=True, exist_ok=True)
        (threads / str(thread) / "children").write_text("")
    # The last thread has started them.
    (threads / str(pid + 1) / "children").write_text(" ".join(map(str, children)))
    front = f"{pid} (a) S 9 (b) S 1 2 3 4 5 6 7 8 9 10"
    (proc / str(pid) / "stat").write_text(f"{front} {' '.join(map(str, ticks))} 20 0 1")


def test_an_account_has_descendants_and_those_that_have_ended(bench: Any, tmp_path: Path) -> None:
    """User and system time of each, and what each has taken over from children that ended."""
    run_process(tmp_path, 10, (1, 2, 30, 40), children=(20, 40))
    run_process(tmp_path, 20, (100, 200, 0, 0), children=(30,))
    run_process(tmp_path, 30, (1000, 0, 0, 0))
    run_process(tmp_path, 40, (0, 5000, 0, 0))
    ticks = bench.accounts.TICKS_PER_SECOND
    assert 6373 == round(bench.accounts.cpu_seconds(10, tmp_path) * ticks)


def test_a_child_that_ends_during_the_reading_is_counted_once(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was listed, and is gone when its own account is read: the parent has it by then."""
    run_process(tmp_path, 10, (1, 2, 0, 0), children=(20,))

    def end_after_the_list(pid: int, proc: Path) -> list[int]:
        listed: list[int] = children(pid, proc)
        run_process(tmp_path, 10, (1, 2, 300, 0))
        return listed

    children = bench.accounts.children
    monkeypatch.setattr(bench.accounts, "children", end_after_the_list)
    ticks = bench.accounts.TICKS_PER_SECOND
    assert 303 == round(bench.accounts.cpu_seconds(10, tmp_path) * ticks)


def test_a_process_that_has_ended_has_no_account(bench: Any, tmp_path: Path) -> None:
    """Zero would be a figure."""
    with pytest.raises(bench.machinery.BenchError, match="process 10"):
        bench.accounts.cpu_seconds(10, tmp_path)


def test_an_account_is_what_the_kernel_says_otherwise(bench: Any) -> None:
    """Of this process, with a child that has ended."""

    def used() -> float:
        usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    usage, account = used(), bench.accounts.cpu_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", BURN], check=True)
    grown = bench.accounts.cpu_seconds(os.getpid()) - account
    assert grown > 0.25
    assert used() - usage == pytest.approx(grown, abs=0.1)


def test_a_machine_idles_while_it_waits_for_the_disk(bench: Any, tmp_path: Path) -> None:
    """Guests' time is part of the users'; lines of single processors follow."""
    machine = bench.accounts.Machine
    (tmp_path / "stat").write_text("cpu  100 0 50 800 50 0 0 0 70 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    before = machine.now(tmp_path)
    (tmp_path / "stat").write_text("cpu  130 5 60 820 60 5 10 10 99 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    assert 0.3 == pytest.approx(before.idle_share(machine.now(tmp_path)))


async def test_rest_begins_when_time_passes_unused(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads no further account then."""
    accounts = iter([1.0, 2.0, 2.5, 2.51, 9.0])
    monkeypatch.setattr(bench.accounts, "cpu_seconds", lambda _: next(accounts))
    monkeypatch.setattr(bench.accounts, "sleep", no_time)
    await bench.accounts.come_to_rest(1)
    assert [9.0] == list(accounts)


async def test_a_process_that_never_rests_fails_its_part(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it still does would be missing in its account."""
    accounts = itertools.count()
    monkeypatch.setattr(bench.accounts, "cpu_seconds", lambda _: float(next(accounts)))
    monkeypatch.setattr(bench.accounts, "sleep", no_time)
    with pytest.raises(bench.machinery.BenchError, match="does not come to rest"):
        await bench.accounts.come_to_rest(1)


async def no_time(_: float) -> None:
    """Do not wait."""


async def test_costs_are_per_operation_and_include_what_a_load_leaves_behind(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine idles only while the load runs."""
    seconds, ticks = {1: 5.0, 2: 7.0}, iter([(10, 100), (30, 200), (90, 300)])

    async def load(operations: int) -> int:
        seconds[1] += operations * 0.001
        return operations

    monkeypatch.setattr(bench.costs, "cpu_seconds", seconds.__getitem__)
    now = staticmethod(lambda: bench.accounts.Machine(*next(ticks)))
    monkeypatch.setattr(bench.accounts.Machine, "now", now)
    meter = bench.costs.Meter(service=1, postgres=2)
    assert 1000 == await meter.run(load, 1000)
    seconds[1] += 0.5
    seconds[2] += 0.25
    costs = meter.per_operation(2000)
    assert {"service_us": 750.0, "postgres_us": 125.0, "idle_share": 0.2} == pytest.approx(costs)


def test_two_revisions_take_turns_and_the_order_alternates(bench: Any) -> None:
    """Parts that only this revision has are measured once a round."""
    names, compared = ("floor", "create, 1", "replay"), ("create, ", "replay")
    turns = [list(bench.against.in_turn(names, number, compared)) for number in (0, 1)]
    ours, other = [("create, 1", False), ("replay", False)], [("create, 1", True), ("replay", True)]
    assert [("floor", False), ours[0], other[0], ours[1], other[1]] == turns[0]
    assert [("floor", False), other[0], ours[0], other[1], ours[1]] == turns[1]


def test_a_ratio_is_of_medians_and_its_spread_of_rounds(bench: Any) -> None:
    """One slow round moves the spread, not the ratio."""
    ratio = bench.against.Ratio.of([30.0, 33.0, 12.0], [20.0, 30.0, 10.0])
    assert (1.5, 1.1, 1.5) == (ratio.of_medians, ratio.least, ratio.most)
    assert "1.5 (1.1 - 1.5)" == str(ratio)
    # A count that may be zero has none.
    assert bench.against.Ratio.of([1.0, 2.0], [1.0, 0.0]) is None


def git(folder: Path, *arguments: str) -> str:
    """Run git as an author that it accepts; return what it printed."""
    author = ("-c", "user.name=a", "-c", "user.email=a@a.test", "-c", "commit.gpgsign=false")
    command = ("git", "-C", str(folder), *author, *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose last commit changed code and a comment of the requirements."""
    folder = tmp_path / "repository"
    (folder / "requirements").mkdir(parents=True)
    git(folder, "init", "--quiet")
    for code, comment in (("old", "of a"), ("new", "of b")):
        (folder / "code").write_text(code)
        (folder / "requirements/run.txt").write_text(
            f"a[b]==1.0 \\\n    --hash=1\n    # {comment}\n"
        )
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", code)
    return folder


def left_over(repository: Path) -> list[str]:
    """Return the trees of a repository beside its own."""
    return git(repository, "worktree", "list").splitlines()[1:]


def test_a_revision_is_checked_out_beside_the_tree(bench: Any, repository: Path) -> None:
    """In a folder that names the commit, and only while it is used."""
    with bench.against.checkout("HEAD~1", repository) as tree:
        assert "old" == (tree / "code").read_text()
        assert "new" == (repository / "code").read_text()
        assert git(repository, "rev-parse", "HEAD~1").startswith(tree.name)
        (tree / "made by its use").touch()
    assert not tree.exists()
    assert [] == left_over(repository)


def test_a_failed_measurement_leaves_no_tree(bench: Any, repository: Path) -> None:
    """Nor does an interrupted one."""
    with pytest.raises(KeyboardInterrupt), bench.against.checkout("HEAD", repository):
        raise KeyboardInterrupt
    assert [] == left_over(repository)


def test_a_revision_with_other_packages_is_not_measured(bench: Any, repository: Path) -> None:
    """It would run with ours, which is neither revision. What only ours requires is no matter."""
    (repository / "requirements/run.txt").write_text("a[b]==1.1\nc==2\n")
    with (
        pytest.raises(bench.machinery.BenchError, match=r"requires a\[b\]==1\.0$"),
        bench.against.checkout("HEAD", repository),
    ):
        pass
    assert [] == left_over(repository)


def test_a_revision_with_fewer_packages_is_measured(bench: Any, repository: Path) -> None:
    """It does not import the others."""
    with (repository / "requirements/run.txt").open("a") as requirements:
        requirements.write("c==2\n")
    with bench.against.checkout("HEAD", repository) as tree:
        assert (tree / "code").exists()


@pytest.mark.parametrize("revision", ["none", "--all", "HEAD:code"])
def test_what_is_no_revision_is_refused(bench: Any, repository: Path, revision: str) -> None:
    """With git's own words."""
    with (
        pytest.raises(bench.machinery.BenchError, match="git rev-parse"),
        bench.against.checkout(revision, repository),
    ):
        pass


def results(bench: Any, **more: float) -> dict[str, list[Any]]:
    """Return two rounds of all parts, some of them at both revisions; unnamed figures are 1."""
    before = bench.against.BEFORE
    names = [*bench.main.PARTS]
    names += [before + name for name in names if name.startswith(bench.main.COMPARED)]
    return {
        name: [
            bench.machinery.Measure(rate, 1.0, 2.0, 10, defaultdict(lambda: 1.0, more))
            for rate in ((100.0, 200.0) if name.startswith(before) else (300.0, 450.0))
        ]
        for name in names
    }


def test_every_goal_is_about_parts_that_are_measured(bench: Any) -> None:
    """A part's new name must not drop its goals."""
    assert [goal.name for goal in bench.goals.GOALS] == [
        row[0] for row in bench.report.goal_rows(results(bench))
    ]


def test_a_part_that_has_measured_nothing_meets_no_goal(bench: Any) -> None:
    """A second may be too short for one, and the other figures are shown all the same."""
    nothing = bench.goals._over(lambda _: 1.0, lambda _: 0.0)
    assert not nothing({}) >= 0.0


def test_a_goal_is_judged_beside_what_it_was_before(bench: Any) -> None:
    """Without the other revision there is no ratio to it, and the other goals stay."""
    name = "create, 1 process, 128 connections ÷ the same at the revision before"
    measured = results(bench)
    assert (name, "1", "≥ 1.5", "2.5", "met") in bench.report.goal_rows(measured)
    alone = {part: found for part, found in measured.items() if part in bench.main.PARTS}
    rows = bench.report.goal_rows(alone)
    assert len(bench.goals.GOALS) - 1 == len(rows)
    assert name not in [row[0] for row in rows]


@pytest.mark.parametrize(
    ("expected", "goal", "value"),
    [(True, "≥ 2", 2.0), (False, "≥ 2", 1.9), (True, "≤ 0.8", 0.8), (False, "≤ 0.8", 0.81)],
)
def test_a_bound_is_met_from_its_side(bench: Any, expected: bool, goal: str, value: float) -> None:
    """The bound itself is met."""
    assert expected == bench.goals.Goal("a", "1", goal, lambda _: value).is_met(value)


def test_the_page_gets_tables_and_pictures(bench: Any, tmp_path: Path) -> None:
    """Only between its marks; of the other revision only where it was measured."""
    page, marks = tmp_path / "page.md", bench.report._MARKS
    page.write_text(f"Before.\n{marks[0]}\nold figures\n{marks[1]}\nAfter.\n")
    measured = results(bench, idle_share=0.25, service_us=120.0)
    bench.report.publish(page, measured, {"before": "abc"})
    text = page.read_text()
    assert text.startswith("Before.\n")
    assert text.endswith("After.\n")
    assert "old figures" not in text
    assert "| replay | 2.5 (2.25 - 3) | 1 (1 - 1) | 1 (1 - 1) | " in text
    assert "| cost: replay | 120 (120 - 120) |  | 0.25 (0.25 - 0.25) |  |" in text
    pictures = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert ["page-against.svg", "page.svg"] == pictures
    assert all(f"]({name})" in text for name in pictures)


def test_a_page_of_one_revision_compares_nothing(bench: Any, tmp_path: Path) -> None:
    """No empty tables, no second picture."""
    page = tmp_path / "page.md"
    page.write_text("\n".join(bench.report._MARKS))
    bench.report.publish(page, {"floor": results(bench)["floor"]}, {})
    assert [page.with_suffix(".svg")] == list(tmp_path.glob("*.svg"))
    assert "WAL bytes" not in page.read_text()


def test_user_and_system_are_those_of_one_process_by_itself(bench: Any, tmp_path: Path) -> None:
    """Neither its children's nor those of children that have ended."""
    run_process(tmp_path, 10, (100, 200, 4000, 8000), children=(20,))
    run_process(tmp_path, 20, (1, 2, 0, 0))
    ticks = bench.accounts.TICKS_PER_SECOND
    assert (100, 200) == tuple(
        round(seconds * ticks) for seconds in bench.accounts.user_and_system(10, tmp_path)
    )


def test_a_sample_belongs_to_its_innermost_known_frame(bench: Any) -> None:
    """Frames of C without a known name belong to who has called them."""
    main, run = "thread (7): MainThread", "run (stretto/commands/running.py:41)"
    ask = "Mailbox.ask (stretto/runtime/mailbox.py:97)"
    stacks = {
        f"{main};{run};{ask};getpid (libc.so.6)": "stretto: runtime",
        f"{main};{run};{ask};write (libc.so.6)": "kernel",
        f"{main};{run};Protocol._send (asyncpg/protocol/protocol.pyx:9)": "asyncpg",
        f"{main};digest (stretto/domain.py:228);py_blake2b_new (blake2b_impl.c.h:46)": (
            "stretto: domain"
        ),
        f"{main};main (site.py:1)": "other",
    }
    lines = [*(f"{stack} 2" for stack in stacks), f"thread (8): log;{ask} 99"]
    assert dict.fromkeys(stacks.values(), 2) == bench.where.by_code(lines)
