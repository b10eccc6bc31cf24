"""What an embedded service makes for itself: its schema, and a secret of its own."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from stretto import provision
from stretto.assembly.settings import ComponentSettings
from stretto.config import Settings
from stretto.own_secret import _make_secret, _own_secret
from stretto.provision import database_place
from stretto.start_errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

PEM_BEGIN = "-----BEGIN PUBLIC KEY-----"


def test_a_secret_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    """In a folder that is made as well; no draft stays behind."""
    path = tmp_path / "data" / "jwt-secret"
    with ThreadPoolExecutor(8) as threads:
        made = set(threads.map(_own_secret, [path] * 8))
    assert {path.read_text()} == made
    assert len(path.read_text()) >= 64
    assert path.stat().st_mode & 0o777 == 0o600
    assert [path] == list(path.parent.iterdir())


@pytest.mark.parametrize("is_dangling", [True, False])
def test_a_planted_link_is_neither_read_nor_written_through(
    is_dangling: bool, tmp_path: Path
) -> None:
    """The account that planted it knows what it leads to."""
    path, other = tmp_path / "jwt-secret", tmp_path / "other"
    if not is_dangling:
        other.write_text("known to others")
        other.chmod(0o600)
    path.symlink_to(other)
    with pytest.raises(ConfigurationError, match=r"cannot be used .* no link"):
        _own_secret(path)
    assert is_dangling != other.exists()


def test_a_planted_draft_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name cannot be foreseen, as the process's number can."""
    path, other = tmp_path / "jwt-secret", tmp_path / "other"
    (tmp_path / f"jwt-secret.{os.getpid()}").symlink_to(other)
    _make_secret(path)
    assert not other.exists()


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660, 0o602])
def test_a_secret_that_others_may_read_or_write_is_refused(mode: int, tmp_path: Path) -> None:
    """With what to do; once it is its owner's alone, it is taken."""
    path = tmp_path / "jwt-secret"
    path.write_text("s" * 64)
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match="Remove it"):
        _own_secret(path)
    path.chmod(0o600)
    assert "s" * 64 == _own_secret(path)


@pytest.mark.parametrize("content", [b"", b"s" * 31, b"\xff" * 64, PEM_BEGIN.encode() + b"\nAAAA"])
def test_a_secret_that_is_damaged_is_refused(content: bytes, tmp_path: Path) -> None:
    """Here, and not by each worker; once it is removed, another one is made."""
    path = tmp_path / "jwt-secret"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="Remove it"):
        _own_secret(path)
    path.unlink()
    assert _own_secret(path)


def test_a_secret_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That account can make tokens with it."""
    path = tmp_path / "jwt-secret"
    _own_secret(path)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        _own_secret(path)


@pytest.mark.parametrize(
    ("least", "workers", "writers"), [(200, 1, 2), (900, 64, 2), (700, 16, 32)]
)
async def test_an_embedded_database_has_room_for_all_workers(
    least: int, workers: int, writers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else some of them would find no connection, once all are busy."""
    given: list[int] = []

    @asynccontextmanager
    async def opened(
        *_: object, settings: Mapping[str, str] | None = None, **__: object
    ) -> AsyncIterator[Any]:
        given.extend(int(value) for value in (settings or {}).values())
        yield SimpleNamespace(dsn="", data_dir=tmp_path, bin_dir=tmp_path, is_new=False)

    monkeypatch.setattr(provision, "embedded_postgres", opened)
    component = ComponentSettings(writers=writers)
    settings = Settings(workers=workers, component=component)
    async with database_place(settings, lambda _: None, makes=True, migrates=False):
        pass
    (connections,) = given
    assert least <= connections < 2 * least


@pytest.mark.parametrize("migrates", [True, False])
async def test_an_embedded_database_is_migrated_unless_that_is_the_commands_own_work(
    migrates: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise `stretto migrate --plan` would have changed it before it looks."""
    migrated = []

    @asynccontextmanager
    async def opened(*_: object, **__: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(dsn="", data_dir=tmp_path, bin_dir=tmp_path, is_new=False)

    async def migrate(*_: object) -> None:
        migrated.append(True)

    monkeypatch.setattr(provision, "embedded_postgres", opened)
    monkeypatch.setattr(provision, "database_connection", opened)
    monkeypatch.setattr(provision, "migrate", migrate)
    async with database_place(Settings(), lambda _: None, makes=True, migrates=migrates):
        assert [True] * migrates == migrated
