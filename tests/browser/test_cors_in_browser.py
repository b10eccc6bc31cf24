"""What a page of an allowed origin can read of each answer, and that another can read none."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from stretto.codec import BODY_BYTES_MAX
from stretto.http.settings import StreamSettings
from support.chromium import chromium, origin_with
from support.full_service import full_service

if TYPE_CHECKING:
    from support.database import Connection

PAGES = {"/": b"<!doctype html>"}
FETCH = """async ([url, options]) => {
    try {
        const answer = await fetch(url, options);
        const text = await answer.text();
        const code = answer.ok ? null : JSON.parse(text).code;
        return [answer.status, code, answer.headers.get("Retry-After")];
    } catch (error) {
        return error.name;
    }
}"""
LONG = "x" * 8_000
REQUESTS: list[tuple[Any, str, dict[str, Any]]] = [
    ([200, None, None], "/v1/groups", {}),
    ([400, "request_invalid", None], "/v1/events", {}),
    # Its body would be refused behind the fast path.
    ([503, "overloaded", "1"], "/v1/groups", {"method": "POST", "body": "{}"}),
    ([404, "not_found", None], "/nowhere", {}),
    ([405, "method_not_allowed", None], "/livez", {"method": "DELETE"}),
    ([401, "unauthenticated", None], "/v1/groups", {"headers": {}}),
    (
        [413, "body_too_large", None],
        "/v1/groups",
        {"method": "POST", "body": " " * (BODY_BYTES_MAX + 1)},
    ),
    (
        [431, "head_too_large", None],
        "/livez",
        {
            "headers": dict.fromkeys(
                ("Idempotency-Key", "Last-Event-ID", "Prefer", "traceparent", "tracestate"), LONG
            )
        },
    ),
]


async def test_a_page_reads_every_answer_if_its_origin_is_allowed(
    server_url: str, connection: Connection
) -> None:
    """A problem with its code and for how long to wait; a page of another origin learns nothing."""
    async with AsyncExitStack() as stack:
        origins = [await stack.enter_async_context(origin_with(PAGES)) for _ in range(2)]
        streams = StreamSettings(origins=frozenset(origins[:1]))
        # First: the mailbox is full for a bounded time, and a browser takes long to start.
        page = await (await stack.enter_async_context(chromium())).new_page()
        full = await stack.enter_async_context(full_service(server_url, connection, streams))
        headers = {
            "Authorization": f"Bearer {full.token}",
            "Content-Type": "application/json",
            "Idempotency-Key": "k",
            "Idempotency-First-Sent": "@1763870400",
        }
        for is_allowed, origin in zip((True, False), origins, strict=True):
            await page.goto(origin)
            for expected, path, options in REQUESTS:
                request = [full.api.url + path, {"headers": headers, **options}]
                seen = await page.evaluate(FETCH, request)
                assert (expected if is_allowed else "TypeError") == seen
        await full.release()
