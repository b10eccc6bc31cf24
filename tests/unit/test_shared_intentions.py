"""Intentions of several processes in one folder: what one does between two steps of another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stretto import ClientError, Intention, Intentions

if TYPE_CHECKING:
    from collections.abc import Callable

TEAM = Intention.of("Team", ["bob"], key="k", first_sent=1.5)
OTHER = Intention.of("Another team", key="k", first_sent=2.5)
NEXT = Intention.of("Next team", key="l", first_sent=3.5)

# What a program does that resumes a folder at its start.
FINISH_ALL = """
import sys
from stretto.client import Intentions
intentions = Intentions(sys.argv[1])
for intention in list(intentions):
    intentions.remove(intention)
"""
# What two programs do that want the same groups; it waits for the other one to be ready.
SHARE = """
import sys
from stretto.client import Intention, Intentions
intentions = Intentions(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(60):
    for key in "abc":
        intentions.add(Intention.of("Team", key=key, first_sent=1.0))
    for intention in intentions:
        intentions.remove(intention)
"""


class Between:
    """Calls another process's action once, before or after a step of this one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.was_called = False

    def before(self, owner: Any, name: str, action: Callable[[], object]) -> None:
        """Call the action before the function of this name."""
        real = getattr(owner, name)

        def step(*arguments: Any, **options: Any) -> Any:
            self._act(owner, name, real, action)
            return real(*arguments, **options)

        self._monkeypatch.setattr(owner, name, step)

    def after(self, owner: Any, name: str, action: Callable[[], object]) -> None:
        """Call the action when the function of this name returns or raises."""
        real = getattr(owner, name)

        def step(*arguments: Any, **options: Any) -> Any:
            try:
                found = real(*arguments, **options)
                # A directory is read step by step; here the step is all of it.
                return iter(list(found)) if name == "iterdir" else found
            finally:
                self._act(owner, name, real, action)

        self._monkeypatch.setattr(owner, name, step)

    def _act(self, owner: Any, name: str, real: Any, action: Callable[[], object]) -> None:
        self._monkeypatch.setattr(owner, name, real)
        assert not self.was_called
        self.was_called = True
        action()


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Between:
    """An action of another process, which the test gives."""
    return Between(monkeypatch)


def test_what_another_process_has_finished_is_not_yielded(tmp_path: Path) -> None:
    """Between two of this one's; the twin has what is still stored."""
    intentions = Intentions(tmp_path)
    for intention in (TEAM, NEXT):
        intentions.add(intention)
    found = iter(intentions)
    next(found)
    command = [sys.executable, "-c", FINISH_ALL, str(tmp_path)]
    subprocess.run(command, check=True)
    assert [] == list(found)
    for intention in (TEAM, NEXT):
        intentions.add(intention)
    found = iter(intentions)
    assert 2 == len({next(found).key, next(found).key})


def test_what_is_removed_once_it_is_listed_is_left_out(tmp_path: Path, between: Between) -> None:
    """Before its age is read; the others are yielded."""
    intentions = Intentions(tmp_path)
    for intention in (TEAM, NEXT):
        intentions.add(intention)
    between.after(Path, "iterdir", lambda: Intentions(tmp_path).remove(TEAM))
    assert [NEXT] == list(intentions)
    assert between.was_called


def test_what_is_removed_while_it_is_added_again_is_stored_anew(
    tmp_path: Path, between: Between
) -> None:
    """Also with another body: its key is free again."""
    intentions = Intentions(tmp_path)
    intentions.add(TEAM)
    between.after(os, "link", lambda: Intentions(tmp_path).remove(TEAM))
    assert OTHER == intentions.add(OTHER)
    assert between.was_called
    assert [OTHER] == list(intentions)


@pytest.mark.parametrize(("owner", "name"), [(tempfile, "mkstemp"), (os, "link"), (os, "open")])
def test_a_folder_that_is_removed_meanwhile_is_made_again(
    owner: Any, name: str, tmp_path: Path, between: Between
) -> None:
    """What was added is there when `add` returns."""
    folder = tmp_path / "a"
    folder.mkdir()
    intentions = Intentions(folder)
    between.before(owner, name, lambda: shutil.rmtree(folder))
    assert TEAM == intentions.add(TEAM)
    assert between.was_called
    assert [TEAM] == list(intentions)
    assert 1 == len(list(folder.iterdir()))


@pytest.mark.parametrize("is_named", [False, True])
def test_what_was_begun_long_ago_and_goes_on_is_begun_again(
    is_named: bool, tmp_path: Path, between: Between
) -> None:
    """This process stood still; another one took its file for one that was left."""

    def tidy() -> None:
        (begun,) = tmp_path.glob(".*")
        os.utime(begun, (0, 0))
        assert ([TEAM] if is_named else []) == list(Intentions(tmp_path))
        assert not begun.exists()

    (between.after if is_named else between.before)(os, "link", tidy)
    assert TEAM == Intentions(tmp_path).add(TEAM)
    assert between.was_called
    assert [TEAM] == list(Intentions(tmp_path))
    assert 1 == len(list(tmp_path.iterdir()))


def test_adding_ends_where_what_it_needs_is_always_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the error of its last try, and nothing is left."""

    def lose(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(os, "link", lose)
    with pytest.raises(FileNotFoundError):
        Intentions(tmp_path).add(TEAM)
    assert [] == list(tmp_path.iterdir())


def test_removing_needs_no_folder(tmp_path: Path) -> None:
    """Another process has tidied it away with its last intention."""
    folder = tmp_path / "a"
    intentions = Intentions(folder)
    intentions.add(TEAM)
    shutil.rmtree(folder)
    intentions.remove(TEAM)
    assert [] == list(tmp_path.iterdir())


def test_a_wish_that_took_the_place_of_another_is_not_removed_with_it(tmp_path: Path) -> None:
    """Another process gave the first one up, while this one still had it; the twin is the wish itself."""
    ours, others = Intentions(tmp_path), Intentions(tmp_path)
    ours.add(TEAM)
    others.remove(TEAM)
    others.add(OTHER)
    ours.remove(TEAM)
    assert [OTHER] == list(others)
    with pytest.raises(ClientError, match="key_reused"):
        ours.add(TEAM)
    ours.remove(OTHER)
    assert [] == list(others)


def names_on_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list that gets each folder whose names are flushed from now on."""
    flushed: list[Path] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if path.is_dir():
            flushed.append(path.relative_to(folder))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return flushed


def test_what_another_process_is_just_adding_is_on_the_disk_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name may be seen before that one has flushed it."""
    Intentions(tmp_path).add(TEAM)
    flushed = names_on_disk(tmp_path, monkeypatch)
    assert TEAM == Intentions(tmp_path).add(TEAM)
    assert [Path()] == flushed
    assert TEAM == next(iter(Intentions(tmp_path)))
    assert [Path()] * 2 == flushed


def test_folders_that_are_made_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in the one above it; those that are there already are not flushed again."""
    flushed = names_on_disk(tmp_path, monkeypatch)
    intentions = Intentions(tmp_path / "a/b")
    intentions.add(TEAM)
    assert [Path(), Path("a"), Path("a/b")] == flushed
    intentions.add(NEXT)
    assert [Path("a/b")] == flushed[3:]


def test_a_folder_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would look as if nothing were left to do."""
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file"):
        list(Intentions(tmp_path / "file"))
    listed = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path) == tmp_path:
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    # The tests may run as root, whom no permission keeps out.
    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(PermissionError, match=str(tmp_path)):
        list(Intentions(tmp_path))


def test_an_intention_of_another_user_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that may not be read is not taken for one that is gone."""
    Intentions(tmp_path).add(TEAM)

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(PermissionError, match=str(tmp_path)):
        list(Intentions(tmp_path))
    with pytest.raises(PermissionError, match=str(tmp_path)):
        Intentions(tmp_path).remove(TEAM)


def test_processes_that_want_and_finish_the_same_groups_at_once_fail_at_nothing(
    tmp_path: Path,
) -> None:
    """Whatever their steps are between each other; in the end nothing is left."""
    command = [sys.executable, "-c", SHARE, str(tmp_path / "a")]
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as one,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as two,
    ):
        for process in (one, two):
            assert process.stdout is not None
            assert "ready\n" == process.stdout.readline()
        for process in (one, two):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        errors = [process.communicate(timeout=60)[1] for process in (one, two)]
    assert ["", ""] == errors
    assert [0, 0] == [one.returncode, two.returncode]
    assert [] == list((tmp_path / "a").iterdir())
