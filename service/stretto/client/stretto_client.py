"""`StrettoClient`: what one user can ask of a service.

One call is one attempt with one key; every retry of it sends the same key and the same body.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from stretto.client.calls import Calls
from stretto.client.intentions import Intention, checked_key
from stretto.client.replies import foreign, read_answer, read_document
from stretto.client.sessions import SILENCE_SECONDS, Session

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
    from uuid import UUID

    import aiohttp

    from stretto.client.calls import Token
    from stretto.client.replies import ClientAnswer
    from stretto.client.sessions import Received

CALL_SECONDS: Final = 60.0
PAGE_ITEMS: Final = 200
_UNKNOWN: Final = "; the attempt may still succeed"


class StrettoClient:
    """Calls the service at `base_url` as the user of `token`, over the given session.

    A token that ends before the program does is given as an async function that returns one. What it
    raises ends the call, or `events`, and is the caller's to handle. Raises `aiohttp.InvalidURL` for a
    `base_url` that is neither http nor https. One that is empty or begins with a slash is relative to the
    session's own.

    The session's connector limits its connections, to 100 unless it was given another `limit`. Each
    `events` holds one of them, also where many clients share the session: for more of them, give the
    session an `aiohttp.TCPConnector(limit=0)`.

    Every call tries again while the service cannot be reached or asks for it; each retry is in the log
    `stretto`, at debug. It raises `ClientError` for a refusal, and `TimeoutError` when the time is up.
    """

    def __init__(self, session: aiohttp.ClientSession, base_url: str, token: Token) -> None:
        self._calls = Calls(session, base_url, token)

    async def create_group(  # noqa: PLR0913 the fields of a request
        self,
        name: str,
        members: Sequence[str | Mapping[str, str]] = (),
        *,
        description: str | None = None,
        kind: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        key: str | None = None,
        first_sent: float | None = None,
        timeout_seconds: float = CALL_SECONDS,
    ) -> ClientAnswer:
        """Create a group, retrying until the outcome is known or the time is up.

        A member is a user id, or `{"user_id": "bob", "role": "admin"}`. `metadata` is any JSON object.
        Give the `key` where a crash of this program must not lose it. Keep beside it when it was
        `first_sent`, in seconds since the epoch, and give both: then a call that comes much too late
        creates nothing. `Intentions` keep both. After a `TimeoutError` the outcome is unknown: call
        again with the same key. Raises `TypeError` and `ValueError` as `Intention.of` does.
        """
        intention = Intention.of(
            name,
            members,
            description=description,
            kind=kind,
            metadata=metadata,
            key=key,
            first_sent=first_sent,
        )
        return await self.send(intention, timeout_seconds=timeout_seconds)

    async def send(
        self, intention: Intention, *, timeout_seconds: float = CALL_SECONDS
    ) -> ClientAnswer:
        """Create the group of an intention, as often as it is called the same one."""
        return await self._calls.call(
            "POST",
            "groups",
            read_answer,
            headers=intention.headers(),
            body=intention.body,
            timeout_seconds=timeout_seconds,
            warning=_UNKNOWN,
        )

    async def read_group(
        self, group_id: UUID | str, *, timeout_seconds: float = CALL_SECONDS
    ) -> dict[str, Any]:
        """Return a group of the user as the API's document `Group`."""
        return await self._read(f"groups/{_segment(group_id)}", {}, timeout_seconds)

    async def read_attempt(
        self, key: str, *, timeout_seconds: float = CALL_SECONDS
    ) -> dict[str, Any]:
        """Return what has become of a key of the user as the API's document `Attempt`."""
        field = checked_key(key).header_field()
        # As it is, such a segment would lead to another path.
        segment = f'"{field}"' if field in {".", ".."} else field
        return await self._read(f"attempts/{_segment(segment)}", {}, timeout_seconds)

    def groups(self, *, timeout_seconds: float = CALL_SECONDS) -> AsyncIterator[dict[str, Any]]:
        """Yield the user's groups, the newest first, as documents `Group`; each page has its time."""
        return self._items("groups", "groups", timeout_seconds)

    def members(
        self, group_id: UUID | str, *, timeout_seconds: float = CALL_SECONDS
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the members of a group of the user, as the API's `Members` lists them."""
        return self._items(f"groups/{_segment(group_id)}/members", "members", timeout_seconds)

    def events(
        self, position: str | None = None, *, silence_seconds: float = SILENCE_SECONDS
    ) -> AsyncGenerator[Received, None]:
        """Yield the user's events from a position on, for as long as the caller takes them.

        The session is resumed after each end of its connection, and after so long without a sign of
        life; it has no end of its own. Store the position of what was handled, and begin there next
        time. Without a position of your own, take the first one, then read your groups: from then on
        you know all. An event may come twice, with the same `id`. Close the generator
        (`contextlib.aclosing`) to end the session. Raises `ClientError`, with the code
        `position_lost` if the history at the position is gone: read your groups and begin afresh. Raises
        `TimeoutError` if all connections of the `aiohttp` session stay in use for 30 s.
        """
        return Session(self._calls, position, silence_seconds).received()

    async def _read(
        self, path: str, params: Mapping[str, str | int], timeout_seconds: float
    ) -> dict[str, Any]:
        return await self._calls.call(
            "GET", path, read_document, params=params, timeout_seconds=timeout_seconds
        )

    async def _items(
        self, path: str, name: str, timeout_seconds: float
    ) -> AsyncIterator[dict[str, Any]]:
        params: dict[str, str | int] = {"limit": PAGE_ITEMS}
        while True:
            page = await self._read(path, params, timeout_seconds)
            # The last page says that there is no next one.
            items, cursor = page.get(name), page.get("next_cursor", False)
            if not isinstance(items, list) or not isinstance(cursor, str | None):
                raise foreign(HTTPStatus.OK)
            for item in items:
                yield item
            if cursor is None:
                return
            params["cursor"] = cursor


def _segment(value: object) -> str:
    """Return a value as one segment of a path."""
    return quote(str(value), safe="")
