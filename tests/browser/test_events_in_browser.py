"""A browser's own WebSocket, and a client for server-sent events made of its fetch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest_asyncio

from stretto.events.close_codes import CloseCode
from stretto.http.event_streams import SUBPROTOCOL
from support.api_client import token_of
from support.chromium import chromium

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Page

    from support.database import Connection
    from support.live_service import LiveService

# Both keep what they get in `received`, and `end` says how it ended.
WEBSOCKET = """([token, since]) => {
    window.received = [], window.end = null;
    const path = since ? `/v1/events?since=${since}` : "/v1/events";
    const place = new URL(path, location.href.startsWith("http") ? location.href : window.service);
    place.protocol = "ws:";
    window.session = new WebSocket(place, ["stretto.v1", `stretto.token.${token}`]);
    session.onmessage = message => received.push(JSON.parse(message.data));
    session.onclose = event => { window.end = event.code };
}"""
SSE = """async ([token, since]) => {
    window.received = [], window.end = null;
    const headers = {Accept: "text/event-stream", Authorization: `Bearer ${token}`};
    if (since) headers["Last-Event-ID"] = since;
    const answer = await fetch("/v1/events", {headers});
    window.type = answer.headers.get("Content-Type");
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    (async () => {
        let rest = "";
        for (let part; !(part = await reader.read()).done;) {
            const blocks = (rest + part.value).split("\\n\\n");
            rest = blocks.pop();
            for (const block of blocks) {
                const lines = block.split("\\n").map(line => line.split(": "));
                const fields = Object.fromEntries(lines.map(([n, ...v]) => [n, v.join(": ")]));
                const data = fields.data && JSON.parse(fields.data);
                if (fields.event === "close") window.end = data.code;
                else received.push({position: fields.id, ...(data && {event: data})});
            }
        }
    })();
}"""


@pytest_asyncio.fixture
async def page(live: LiveService) -> AsyncIterator[Page]:
    """A page of the service's own origin, in the system's browser."""
    async with chromium() as browser:
        page = await browser.new_page()
        await page.goto(live.api.url + "/livez")
        yield page


async def received(page: Page, count: int) -> list[dict[str, Any]]:
    """Wait until the page has received so much; return it."""
    await page.wait_for_function("count => received.length >= count", arg=count)
    found: list[dict[str, Any]] = await page.evaluate("received")
    return found


async def ended(page: Page) -> int:
    """Wait until the page's session has ended; return the code."""
    await page.wait_for_function("end !== null")
    code: int = await page.evaluate("end")
    return code


async def test_a_page_gets_events_resumes_and_is_sent_away(
    live: LiveService, page: Page, connection: Connection
) -> None:
    """Over both ways, with what a browser lets a page send."""
    for number, client in enumerate((WEBSOCKET, SSE)):
        await page.evaluate(client, [token_of("bob"), None])
        await received(page, 1)
        first = await live.create(f"first-{number}")
        await live.tail_once()
        seen = (await received(page, 2))[1]
        assert ("group.created", first) == (seen["event"]["type"], seen["event"]["subject"])
        if client is WEBSOCKET:
            assert SUBPROTOCOL == await page.evaluate("session.protocol")
        else:
            assert (await page.evaluate("type")).startswith("text/event-stream")
        await page.reload()
        await live.emptied()
        missed = await live.create(f"missed-{number}")
        await live.tail_once()
        await page.evaluate(client, [token_of("bob"), seen["position"]])
        await page.wait_for_function(
            "missed => received.some(each => each.event?.subject === missed)", arg=missed
        )
        for session in live.hub._all():
            session.close(CloseCode.TOKEN_ENDED)
        assert CloseCode.TOKEN_ENDED == await ended(page)
        await live.emptied()


async def test_a_page_learns_that_its_position_is_lost(live: LiveService, page: Page) -> None:
    """By a close code: a browser hides from its pages why a handshake was refused."""
    await page.evaluate(WEBSOCKET, [token_of("bob"), "7.1-00000000"])
    assert CloseCode.POSITION_LOST == await ended(page)
    await page.evaluate(SSE, [token_of("bob"), "7.1-00000000"])
    assert CloseCode.POSITION_LOST == await ended(page)
    await live.emptied()


async def test_a_page_of_another_origin_gets_no_session(live: LiveService, page: Page) -> None:
    """Although it has a token."""
    await page.goto("about:blank")
    await page.evaluate("url => { window.service = url }", live.api.url)
    await page.evaluate(WEBSOCKET, [token_of("bob"), None])
    assert await ended(page) == 1006
    assert (0, []) == (len(live.hub), await page.evaluate("received"))
