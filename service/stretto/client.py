"""StrettoClient: creates groups over HTTP and retries as the contract allows.

It stands alone: a program that only calls a stretto service needs nothing else of this package. One
call is one attempt with one key; every retry of it sends the same key and the same body.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

import aiohttp
import orjson
import stamina

from stretto.domain import CreatedGroup
from stretto.errors import Retry

if TYPE_CHECKING:
    from collections.abc import Sequence

BACKOFF_SECONDS_MAX: Final = 2.0


@dataclass(frozen=True, slots=True)
class ClientAnswer:
    """A group, and whether another request with this key had created it before."""

    group: CreatedGroup
    is_replay: bool


class ClientError(Exception):
    """The service's refusal: `code` says why, `retry` what may be done."""

    def __init__(self, code: str, detail: str, retry: Retry) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.retry = retry


class _TryAgainError(Exception):
    """No answer, or one that asks for the same request again."""


class StrettoClient:
    """Calls the service at `base_url` as the user of `token`, over the given session."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str, token: str) -> None:
        self._session = session
        self._url = base_url.rstrip("/") + "/v1/groups"
        self._authorization = f"Bearer {token}"

    async def create_group(
        self,
        name: str,
        members: Sequence[str] = (),
        *,
        description: str | None = None,
        key: str | None = None,
        timeout_seconds: float = 60.0,
    ) -> ClientAnswer:
        """Create a group, retrying until the outcome is known or the time is up.

        Give the `key` where a crash of this program must not lose it. Raises `ClientError` for a
        refusal, and `TimeoutError` when the outcome is still unknown: call again with the same key.
        """
        key = key or str(uuid4())
        body = orjson.dumps({"name": name, "description": description, "members": list(members)})
        try:
            async for attempt in stamina.retry_context(
                on=_TryAgainError,
                attempts=None,
                timeout=timeout_seconds,
                wait_initial=0.1,
                wait_max=BACKOFF_SECONDS_MAX,
            ):
                with attempt:
                    return await self._send(key, body)
        except _TryAgainError as error:
            message = f"no outcome within {timeout_seconds} s; the attempt may still succeed"
            raise TimeoutError(message) from error
        raise AssertionError  # the loop returns or raises

    async def _send(self, key: str, body: bytes) -> ClientAnswer:
        headers = {
            "Authorization": self._authorization,
            "Idempotency-Key": key,
            "Content-Type": "application/json",
        }
        try:
            async with self._session.post(self._url, data=body, headers=headers) as response:
                answer = orjson.loads(await response.read())
                status, replayed = response.status, response.headers.get("Idempotent-Replayed")
        except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError) as error:
            raise _TryAgainError from error
        if status == HTTPStatus.CREATED:
            group = CreatedGroup(UUID(answer["group_id"]), UUID(answer["conversation_id"]))
            return ClientAnswer(group, is_replay=replayed == "true")
        retry = Retry(answer["retry"])
        if retry is Retry.SAME_KEY:
            raise _TryAgainError(answer["code"])
        raise ClientError(answer["code"], answer["detail"], retry)
