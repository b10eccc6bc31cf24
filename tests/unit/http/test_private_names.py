"""The private names of aiohttp that we stand on are there: an upgrade must not remove one unseen."""

from __future__ import annotations

import ast
import asyncio
import inspect
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp import StreamReader, TCPConnector, web, web_protocol, web_urldispatcher
from aiohttp.base_protocol import BaseProtocol
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawRequestMessage
from aiohttp.web_protocol import RequestHandler

import stretto
from stretto.http.front.chunks import ChunkCount, Framing
from stretto.http.front.connection import ClientConnection
from stretto.http.front.counted_heads import CountedHeads
from stretto.http.front.counting import CountedArrival
from stretto.http.front.fast_path import FastPathConnection
from stretto.http.front.parsing import PartedParsing
from stretto.http.front.queueing import BoundedQueue
from stretto.http.front.runner import ContractRunner, ContractServer
from stretto.http.front.unparsed_answers import UnparsedAnswers
from stretto.http.front.unparsed_checks import UnparsedChecks
from stretto.http.front.writing import BoundedWriting
from stretto.runtime import bounded_answers

if TYPE_CHECKING:
    from aiohttp.web_request import BaseRequest
    from aiohttp.web_response import StreamResponse

HTTP = Path(stretto.__file__).parent / "http"
# Whose private names these files may use, beside those that they define themselves.
OURS = {
    "connection.py": ClientConnection,
    "counted_heads.py": CountedHeads,
    "counting.py": CountedArrival,
    "fast_path.py": FastPathConnection,
    "parsing.py": PartedParsing,
    "unparsed_answers.py": UnparsedAnswers,
    "queueing.py": BoundedQueue,
    "writing.py": BoundedWriting,
    "runner.py": ContractServer,
}


def private_names(source: str) -> set[str]:
    """Return the private attributes and imports in a source, without those of Python itself."""
    names = {
        node.attr if isinstance(node, ast.Attribute) else node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute | ast.alias)
    }
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


async def no_handler(_: BaseRequest) -> StreamResponse:
    """Answer nothing: a server wants a handler."""
    raise NotImplementedError


def known_names(ours: type) -> set[str]:
    """Return what aiohttp gives its objects, and what our class adds."""
    handler = {*dir(RequestHandler), *RequestHandler.__slots__, *BaseProtocol.__slots__}
    server = {*dir(web.Server), *vars(web.Server(no_handler))}
    classes = (
        *(ours, CountedArrival, CountedHeads, UnparsedChecks, FastPathConnection, UnparsedAnswers),
        *(BoundedQueue, PartedParsing, BoundedWriting, ContractRunner),
    )
    defined = {name for kind in classes for name in (*getattr(kind, "__slots__", ()), *vars(kind))}
    return (
        handler
        | server
        | defined
        | set(dir(web_protocol))
        | {*web.BaseRequest.ATTRS, *dir(RawRequestMessage)}
    )


@pytest.mark.parametrize("file", OURS)
async def test_every_private_name_is_there(file: str) -> None:
    """Set in a constructor, in slots, or as a method."""
    names = private_names((HTTP / "front" / file).read_text())
    assert {"_connections", "_loop", "_messages"} & names
    own = {"_is_stopping", "_limits"}
    assert names - known_names(OURS[file]) - own == set()


async def test_a_name_that_is_gone_is_noticed() -> None:
    """The comparison sees it."""
    names = private_names("self._gone_with_the_next_minor")
    assert names - known_names(ClientConnection) == {"_gone_with_the_next_minor"}


@pytest.mark.parametrize("base", [RequestHandler, BaseProtocol])
def test_what_is_overridden_is_still_called_so(base: type) -> None:
    """A method of ours that overrides nothing would never be called."""
    ours = {"data_received", "eof_received", "finish_response", "force_close", "connection_made"}
    ours.add("_process_keepalive")
    if base is BaseProtocol:
        ours = {"pause_writing", "resume_writing", "_drain_helper"}
    assert ours <= set(vars(base))


def test_what_was_read_of_a_body_is_kept_where_aiohttp_looks_for_it() -> None:
    """`requests.py` puts it there."""
    private = private_names((HTTP / "requests.py").read_text()) - {"_read_arriving"}
    assert {"_read_bytes"} == private
    assert "_read_bytes" in inspect.getsource(web.BaseRequest.read)
    assert "_read_bytes" in web.BaseRequest.ATTRS


def test_what_a_websocket_stands_on_is_there() -> None:
    """It puts itself between a connection and aiohttp's reader of frames, and stops its pings."""
    names = {"_post_start", "_send_heartbeat", "_reset_heartbeat", "_cancel_heartbeat"}
    assert names <= set(vars(web.WebSocketResponse))
    # Else a byte that arrives would begin the timer again in another way.
    flush = web.WebSocketResponse._flush_heartbeat_reset
    assert "self._reset_heartbeat()" in inspect.getsource(flush)
    assert {"_message_tail", "_payload_parser"} <= set(RequestHandler.__slots__)


def test_what_a_request_keeps_of_its_head_is_where_it_is_dropped() -> None:
    """`front/head_memory.py` drops it there."""
    names = private_names((HTTP / "front/head_memory.py").read_text())
    kept = {"_message", "_headers", "_rel_url", "_cache", "_match_info"}
    assert kept == names - {"_replace"}
    assert kept <= {*web.Request.ATTRS}


def test_what_asks_for_a_body_is_there() -> None:
    """A route's own handler of `Expect` calls aiohttp's."""
    names = private_names((HTTP / "routes" / "groups.py").read_text())
    assert "_default_expect_handler" in names & {*dir(web_urldispatcher)}


def test_the_ends_of_chunks_are_where_they_are_counted() -> None:
    """`front/chunks.py` counts them; a body without them would have none."""
    assert {"_http_chunk_splits"} == private_names((HTTP / "front/chunks.py").read_text()) - {
        *ChunkCount.__slots__,
        *Framing.__slots__,
        "_read_line",
        "_unread_now",
    }
    assert "_http_chunk_splits" in StreamReader.__slots__


async def test_what_bounds_an_answer_is_called() -> None:
    """The connector makes connections of ours, and each part of an answer comes by them."""
    source = inspect.getsource(bounded_answers)
    own = {"_BoundedAnswers", "_body_bytes_max", "_bytes_left", "_is_answered", "_is_over", "_end"}
    assert {"_factory", "_payload"} == private_names(source) - own
    assert "self._factory" in inspect.getsource(TCPConnector._create_direct_connection)
    theirs = ResponseHandler(asyncio.get_running_loop())
    assert "_payload" in vars(theirs)
    assert not own & {*dir(theirs)}
    assert {"data_received", "set_response_params"} <= set(vars(ResponseHandler))
    assert "self.feed_data(" in inspect.getsource(ResponseHandler.data_received)
