"""Intentions: what was wanted survives the program, under one key."""

from __future__ import annotations

import errno
import os
import resource
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from stretto import ClientError, Intention, Intentions, group_id
from stretto.client.intentions import BEGUN_SECONDS_MAX
from stretto.errors import Retry

TEAM = Intention.of("Team", ["bob"], key="k", first_sent=1.5)


def test_what_was_stored_is_read_again_as_it_was(tmp_path: Path) -> None:
    """By another program, whatever characters its key has, the oldest first."""
    stored = [
        TEAM,
        Intention.of("Team", key="../" * 85, metadata={"b": 1, "a": [None, "é"]}),
        Intention.of("Team", kind="project"),
    ]
    intentions = Intentions(tmp_path / "a" / "b")
    for age, intention in enumerate(reversed(stored)):
        assert intention == intentions.add(intention)
        newest = max((tmp_path / "a/b").iterdir(), key=lambda path: path.stat().st_ctime_ns)
        os.utime(newest, ns=(-age, -age))
    assert stored == list(Intentions(tmp_path / "a" / "b"))
    assert None is not stored[2].first_sent
    assert [] == [path for path in tmp_path.iterdir() if path.name != "a"]


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    """A program asks for what was left before it has ever stored anything."""
    assert [] == list(Intentions(tmp_path / "none"))


def test_a_wish_that_is_stored_twice_keeps_its_first_time(tmp_path: Path) -> None:
    """Its age counts from there."""
    intentions = Intentions(tmp_path)
    intentions.add(TEAM)
    again = Intention.of("Team", ["bob"], key="k", first_sent=7.0)
    assert TEAM == intentions.add(again)
    assert [TEAM] == list(intentions)


def test_another_body_under_a_stored_key_is_refused(tmp_path: Path) -> None:
    """As the service would; what is stored stays."""
    intentions = Intentions(tmp_path)
    intentions.add(TEAM)
    with pytest.raises(ClientError) as refusal:
        intentions.add(Intention.of("Another team", key="k"))
    assert ("key_reused", Retry.NEW_KEY) == (refusal.value.code, refusal.value.retry)
    assert [TEAM] == list(intentions)


def test_what_is_done_is_forgotten(tmp_path: Path) -> None:
    """Also twice; another wish with the key is a new one."""
    intentions = Intentions(tmp_path)
    intentions.add(TEAM)
    for _ in range(2):
        intentions.remove(TEAM)
        assert [] == list(tmp_path.iterdir())
    other = Intention.of("Another team", key="k")
    assert other == intentions.add(other)


@pytest.mark.parametrize("stage", ["write", "fsync", "link"])
def test_a_crash_leaves_the_whole_intention_or_none(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was begun is not read; nothing half-written is ever in the place of one."""

    def crash(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    intentions = Intentions(tmp_path)
    with monkeypatch.context() as patch:
        if stage == "write":
            patch.setattr(orjson, "dumps", crash)
        else:
            patch.setattr(os, stage, crash)
        with pytest.raises(KeyboardInterrupt):
            intentions.add(TEAM)
    assert [] == list(intentions)
    (tmp_path / ".begun").write_bytes(b'{"key":')
    (tmp_path / ".begun.json").write_bytes(b'{"key":')
    assert [] == list(intentions)
    intentions.add(TEAM)
    assert [TEAM] == list(intentions)


def test_what_a_killed_program_has_begun_is_removed_after_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the folder is gone through; what may still go on stays, and so does what is not ours."""
    with monkeypatch.context() as patch:
        # As `kill -9` does: it lets nothing be tidied up.
        patch.setattr(Path, "unlink", lambda _: None)
        Intentions(tmp_path).add(TEAM)
    (stored,) = tmp_path.glob("[!.]*")
    (begun,) = tmp_path.glob(".*")
    (tmp_path / ".gitignore").touch()
    for path in tmp_path.iterdir():
        os.utime(path, (1e9, 1e9))
    for seconds, is_left in ((BEGUN_SECONDS_MAX, True), (BEGUN_SECONDS_MAX + 1, False)):
        monkeypatch.setattr(time, "time", lambda seconds=seconds: 1e9 + seconds)
        assert [TEAM] == list(Intentions(tmp_path))
        assert is_left == begun.exists()
    assert {stored, tmp_path / ".gitignore"} == set(tmp_path.iterdir())


def test_what_cannot_be_removed_keeps_nothing_from_being_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may only be read."""

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    Intentions(tmp_path).add(TEAM)
    begun = tmp_path / ".begun-x"
    begun.touch()
    os.utime(begun, (0, 0))
    # The tests may run as root, whom no permission keeps out.
    monkeypatch.setattr(Path, "unlink", refuse)
    assert [TEAM] == list(Intentions(tmp_path))
    assert begun.exists()


def test_it_is_on_the_disk_when_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the content, then the name, then the folder that has the name."""
    steps: list[str] = []
    fsync, link = os.fsync, os.link

    def flushed(descriptor: int) -> None:
        steps.append("folder" if Path(f"/proc/self/fd/{descriptor}").is_dir() else "file")
        fsync(descriptor)

    def linked(*arguments: Any) -> None:
        steps.append("name")
        link(*arguments)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "link", linked)
    intentions = Intentions(tmp_path)
    intentions.add(TEAM)
    intentions.remove(TEAM)
    assert ["file", "name", "folder", "folder"] == steps


def test_a_disk_that_is_full_is_named_with_the_file(tmp_path: Path) -> None:
    """And nothing stays of what could not be stored."""
    intentions = Intentions(tmp_path)
    long = Intention.of("Team", description="d" * 1000, key="k")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
    try:
        with pytest.raises(OSError, match="File too large") as failure:
            intentions.add(long)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    # Before anything else lets go of a file that nobody has closed.
    assert [] == list(tmp_path.iterdir())
    assert errno.EFBIG == failure.value.errno
    intentions.add(long)
    assert [failure.value.filename] == [str(path) for path in tmp_path.iterdir()]


@pytest.mark.parametrize("step", range(2))
def test_a_disk_that_fails_is_named_with_the_file(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's content cannot be brought there, or the folder's names."""
    left = [None] * step

    def flushed(_: int) -> None:
        if not left:
            raise OSError(errno.EIO, "Input/output error")
        left.pop()

    monkeypatch.setattr(os, "fsync", flushed)
    with pytest.raises(OSError, match="Input/output error") as failure:
        Intentions(tmp_path).add(TEAM)
    assert str(failure.value.filename).startswith(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"key": 1, "body": 2}', b'{"key":'])
def test_a_file_that_is_no_intention_is_named(content: bytes, tmp_path: Path) -> None:
    """A wish must not be lost without a word."""
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.json holds no intention: move it away"):
        list(Intentions(tmp_path))


def test_the_groups_id_is_known_before_it_is_sent() -> None:
    """From the owner and the key alone."""
    assert group_id("alice", "k") == TEAM.group_id("alice")
    with pytest.raises(ValueError, match="a user id has"):
        TEAM.group_id("")


@pytest.mark.parametrize("first_sent", [float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(first_sent: float) -> None:
    """A file cannot hold it, and the service refuses it: the group's age would be lost."""
    with pytest.raises(ValueError, match="first_sent must be in seconds since the epoch, not"):
        Intention.of("Team", first_sent=first_sent)
