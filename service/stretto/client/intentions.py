"""Wishes that outlive the program: stored before they are sent, with their key.

A program that creates a group and crashes before it knows the outcome must send the same key again.
One file per intention says which, in a folder of the program's own.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import orjson

from stretto.client.replies import ClientError
from stretto.domain import group_id
from stretto.errors import KeyInvalid, Retry
from stretto.identifiers import IdempotencyKey, UserId
from stretto.metadata import Metadata

_SUFFIX: Final = ".json"
# Of the file that `add` begins with: its name is no intention's.
_BEGUN: Final = ".begun-"
# Such a file is then taken for one of a program that was killed, and removed. An `add` that stood still
# for so long tries again by itself.
BEGUN_SECONDS_MAX: Final = 3600.0
# Each further one takes another process that removes something between two steps of the one before.
_ADD_TRIES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Intention:
    """One group that a user wants: the same key and body for every try.

    `first_sent` is when the user wanted it, in seconds since the epoch; None leaves the group's age
    unbounded.
    """

    key: str
    body: bytes
    first_sent: float | None = None

    @classmethod
    def of(  # noqa: PLR0913 the fields of a request
        cls,
        name: str,
        members: Sequence[str | Mapping[str, str]] = (),
        *,
        description: str | None = None,
        kind: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        key: str | None = None,
        first_sent: float | None = None,
    ) -> Intention:
        """Return the intention with these fields, with a new key unless one is given.

        Raises `ClientError` for a key that the service refuses, `TypeError` for members that are one
        text: each of its characters would be a member; and `ValueError` for metadata that no request
        can carry, and for a time that is none.
        """
        if first_sent is not None and not math.isfinite(first_sent):
            message = f"first_sent must be in seconds since the epoch, not {first_sent!r}"
            raise ValueError(message)
        if isinstance(members, (str, bytes, bytearray, Mapping)):
            message = f"members must be a list of user ids, such as ['bob'], not {members!r}"
            raise TypeError(message)
        # An empty key is one that the caller has lost: it is refused. A new one could create a
        # second group.
        if key is None:
            key = str(uuid4())
            first_sent = time.time() if first_sent is None else first_sent
        document: dict[str, object] = {
            "name": name,
            "description": description,
            "members": list(members),
        }
        if kind is not None:
            document["kind"] = kind
        if metadata is not None:
            # Not by orjson, which writes null for a number that is none.
            document["metadata"] = orjson.Fragment(Metadata(dict(metadata)).encode())
        return cls(str(checked_key(key)), orjson.dumps(document), first_sent)

    def headers(self) -> dict[str, str]:
        """Return the header fields that go with the body.

        The key is not sent as it is: blanks at its ends would be lost, and quotes would be taken off.
        """
        headers = {
            "Idempotency-Key": checked_key(self.key).header_field(),
            "Content-Type": "application/json",
        }
        if self.first_sent is not None:
            headers["Idempotency-First-Sent"] = f"@{self.first_sent:.0f}"
        return headers

    def group_id(self, owner_id: str) -> UUID:
        """Return the id that the owner's group will have: the token's `sub` says who that is."""
        return group_id(UserId(owner_id), checked_key(self.key))


class Intentions:
    """The intentions in a folder that nothing else writes in; it is made at the first `add`.

    `add` and `remove` return when the disk has what they did. Several processes of one user may share
    the folder, also send the same intention at the same time: it stays one group. No method takes a
    lock, so that a process that stands still keeps no other one waiting. What cannot be read or written
    raises an `OSError` that names the file.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)

    def add(self, intention: Intention) -> Intention:
        """Store an intention before it is sent; return the one that is stored under its key.

        That is the older one if this wish was stored before. Raises `ClientError` (`key_reused`) if the
        key is stored with another body.
        """
        for _ in range(_ADD_TRIES_MAX - 1):
            # Another process has removed what was stored under the key, or the folder.
            with suppress(FileNotFoundError):
                return self._add(intention)
        return self._add(intention)

    def remove(self, intention: Intention) -> None:
        """Forget an intention once the program has made use of its outcome.

        Another body that is stored under its key by now is another wish, and stays; one that another
        process stores at this very moment may go. Its key is spent: the service answers `key_reused`.
        """
        path = self._path(intention.key)
        with suppress(FileNotFoundError):
            if _read(path).body == intention.body:
                path.unlink()
        with suppress(FileNotFoundError):
            _flush(self._folder)

    def __iter__(self) -> Iterator[Intention]:
        """Yield what is stored, the oldest first; raises `ValueError` for a file that is none.

        What another process adds meanwhile may be left out, and what it removes is left out. What programs
        have left that were killed during an `add`, an hour ago or earlier, is removed.
        """
        try:
            # Not by `glob`, which finds nothing where it may not look.
            paths = list(self._folder.iterdir())
            # What is yielded is sent: the process that adds it may not have come to this yet.
            _flush(self._folder)
        except FileNotFoundError:
            return
        ages: dict[Path, int] = {}
        for path in paths:
            if path.name.startswith(_BEGUN):
                _remove_if_left(path)
            elif path.name.endswith(_SUFFIX) and not path.name.startswith("."):
                with suppress(FileNotFoundError):
                    ages[path] = path.stat().st_mtime_ns
        for path in sorted(ages, key=ages.__getitem__):
            try:
                intention = _read(path)
            except FileNotFoundError:
                continue
            yield intention

    def _add(self, intention: Intention) -> Intention:
        """Try `add` once; raises `FileNotFoundError` if another process has removed what it needs."""
        self._make_folder()
        path = self._path(intention.key)
        stored = intention
        content = orjson.dumps(
            {
                "key": intention.key,
                "first_sent": intention.first_sent,
                "body": intention.body.decode(),
            }
        )
        with _named(path), _written(self._folder, content) as name:
            try:
                # Unlike a renaming, this never replaces what another process has just stored.
                os.link(name, path)
            except FileExistsError:
                stored = _read(path)
        if stored.body != intention.body:
            raise ClientError("key_reused", "The key is stored with another body.", Retry.NEW_KEY)
        # Also for what another process has stored: it may not have come to this yet.
        _flush(self._folder)
        return stored

    def _make_folder(self) -> None:
        """Make the folder and those above it that are missing, also on the disk."""
        above = [self._folder, *self._folder.parents]
        for folder in reversed([folder for folder in above if not folder.exists()]):
            folder.mkdir(exist_ok=True)
            _flush(folder.parent)

    def _path(self, key: str) -> Path:
        # A key may hold slashes and be longer than a file's name.
        return self._folder / (sha256(key.encode()).hexdigest() + _SUFFIX)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Have an error of the disk name the path: what fails at an open file names none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def _written(folder: Path, content: bytes) -> Iterator[str]:
    """Yield the name of a file of this content, which the disk has and which ends with the block."""
    # Not `NamedTemporaryFile`, whose file stays for a while where its content cannot be written.
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=_BEGUN)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield name
    finally:
        # Fails, and has `add` try again, where another process has taken it for one that was left.
        Path(name).unlink()


def _remove_if_left(begun: Path) -> None:
    """Remove the file of an `add` that has not gone on for long."""
    # Where that cannot be, as in a folder that may only be read, it does no harm.
    with suppress(OSError):
        if time.time() - begun.stat().st_mtime > BEGUN_SECONDS_MAX:
            begun.unlink()


def _flush(folder: Path) -> None:
    """Have the disk know of the folder's names, not only of the files' content."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with _named(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checked_key(key: str) -> IdempotencyKey:
    """Return the key; raises `ClientError` for one that the service refuses."""
    try:
        return IdempotencyKey(key)
    except KeyInvalid as error:
        raise ClientError(error.code, error.detail, error.retry) from error


def _read(path: Path) -> Intention:
    try:
        with _named(path):
            content = path.read_bytes()
        stored = orjson.loads(content)
        return Intention(stored["key"], stored["body"].encode(), stored["first_sent"])
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        message = f"{path} holds no intention: move it away"
        raise ValueError(message) from error
