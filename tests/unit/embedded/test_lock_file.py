"""Who owns a server, who uses it, and who has to stop it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.embedded import lock_file
from stretto.embedded.lock_file import ServerLocks, server_locks

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_last_to_leave_stops_the_server(tmp_path: Path) -> None:
    """Whether or not it owns the server; until it is done, no other uses it."""
    path = tmp_path / "lock"
    with server_locks(path) as second, server_locks(path) as third:
        with server_locks(path) as first:
            assert all(each.try_use() for each in (first, second, third))
            assert [True, False, False] == [each.try_own() for each in (first, second, third)]
            assert not third.leave()
            assert not first.leave()
        assert second.leave()
        assert not third.try_use()
    with server_locks(path) as later:
        assert (True, True) == (later.try_use(), later.try_own())


def test_of_two_that_leave_at_once_one_stops_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner has found the other one among the users; the other waits for its lock."""
    answers, try_own = iter([False, False]), ServerLocks.try_own
    monkeypatch.setattr(
        ServerLocks, "try_own", lambda locks: next(answers, True) and try_own(locks)
    )
    with server_locks(tmp_path / "lock") as last:
        assert last.try_use()
        assert last.leave()


def test_no_client_is_waited_for_without_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of an owner that hangs is left to the next start."""
    monkeypatch.setattr(lock_file, "_LEAVE_SECONDS", 0.0)
    path = tmp_path / "lock"
    with server_locks(path) as owner, server_locks(path) as other:
        assert owner.try_own()
        assert other.try_use()
        assert not other.leave()
