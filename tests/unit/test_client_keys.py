"""The key that StrettoClient sends is the key that it was given."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from stretto import ClientError, StrettoClient, group_id
from stretto.domain import KEY_CHARACTERS_MAX
from stretto.errors import Retry
from stretto.http.requests import read_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

OWNER = "alice"
KEYS = st.text(
    st.characters(min_codepoint=ord("!"), max_codepoint=ord("~")),
    min_size=1,
    max_size=KEY_CHARACTERS_MAX,
)


class _Session:
    """Answers with the group that the request names, without a network."""

    @asynccontextmanager
    async def request(
        self, _method: str, _url: str, *, headers: Mapping[str, str], **_: object
    ) -> AsyncIterator[SimpleNamespace]:
        group = group_id(OWNER, read_key(CIMultiDictProxy(CIMultiDict(headers))))

        async def iter_any() -> AsyncIterator[bytes]:
            yield orjson.dumps({"group_id": str(group), "conversation_id": str(group)})

        content = SimpleNamespace(iter_any=iter_any)
        yield SimpleNamespace(status=201, headers={}, content=content)


async def create(key: str) -> object:
    """Return the id of the group that a client has asked for."""
    client = StrettoClient(cast("Any", _Session()), "http://127.0.0.1", "token")
    answer = await client.create_group("Team", key=key)
    return answer.group.group_id


@given(KEYS | KEYS.map(lambda key: f'"{key[:-2]}"'))
@example('"6f1c2e90"')
@example('"')
@example('"\\"')
@example('\\"')
@example('"' * KEY_CHARACTERS_MAX)
def test_a_key_names_the_same_group_over_http_as_in_the_component(key: str) -> None:
    """Otherwise the same key would make two groups."""
    assert group_id(OWNER, key) == asyncio.run(create(key))


@pytest.mark.parametrize(
    "key", ["", " 6f1c2e90", "6f1c2e90 ", "6f1c\t2e90", "schlüssel", "k" * 256]
)
async def test_a_key_that_is_none_is_refused_and_not_sent(key: str) -> None:
    """HTTP strips blanks: another key would arrive."""
    with pytest.raises(ClientError) as refusal:
        await create(key)
    assert ("key_invalid", Retry.NEVER) == (refusal.value.code, refusal.value.retry)
