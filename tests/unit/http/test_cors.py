"""What a browser lets pages send and read is what the contract has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import hdrs

from openapi import document
from openapi.routes import ROUTES
from stretto.http.cors import ANSWER_FIELDS, METHODS, REQUEST_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterator

# A page cannot read these: they are of a handshake, whose answer no page gets.
OF_HANDSHAKES = {hdrs.UPGRADE, hdrs.SEC_WEBSOCKET_VERSION}


def fields_of_answers(part: Any) -> Iterator[str]:
    """Return the name of each field of an answer that is described in a part of the document."""
    if isinstance(part, dict):
        yield from part.get("headers", {})
        for each in part.values():
            yield from fields_of_answers(each)


def test_a_page_may_send_whatever_a_route_reads() -> None:
    """By every method that there is."""
    fields = {field for route in ROUTES.values() for field in route.fields.split()}
    assert fields
    assert set() == fields - {*REQUEST_FIELDS}
    assert set() == {route.partition(" ")[0] for route in ROUTES} - {*METHODS}


def test_a_page_may_read_whatever_the_contract_names() -> None:
    """Else a `Retry-After` is there, and the page that should wait does not see it."""
    fields = {*fields_of_answers(document.read())} - OF_HANDSHAKES
    assert hdrs.RETRY_AFTER in fields
    assert set() == fields - {*ANSWER_FIELDS}
