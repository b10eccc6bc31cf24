"""The chat of the examples: two users in two browsers, and what goes wrong on the way."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import orjson
import pytest_asyncio
from playwright.async_api import expect

from stretto.events.log import CommittedEvent
from support.api_client import connected_api
from support.chromium import chromium
from support.example_process import EXAMPLES, started

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest
    from playwright.async_api import Browser, Page, Route

    from support.api_client import Api
    from support.database import Connection

OPENED = "alice has created “Book club”."
GREETING = "Welcome, bob!"


@pytest_asyncio.fixture
async def browser() -> AsyncIterator[Browser]:
    """The system's browser."""
    async with chromium() as browser:
        yield browser


@pytest_asyncio.fixture
async def url(database_url: str, unused_tcp_port: int) -> AsyncIterator[str]:
    """The chat as its reader starts it."""
    async with started("chat", database_url, str(unused_tcp_port)) as process:
        assert process.stdout is not None
        while b"Running on" not in (line := await process.stdout.readline()):
            assert line, "the chat has ended"
        yield f"http://127.0.0.1:{unused_tcp_port}"


@asynccontextmanager
async def signed_in(browser: Browser, url: str, user: str) -> AsyncIterator[Page]:
    """Open the page as a user, in a browser of their own; it must have nothing to complain of."""
    context = await browser.new_context()
    page = await context.new_page()
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    await page.goto(url)
    await page.get_by_label("Your name").fill(user)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.locator("#chat")).to_be_visible()
    yield page
    await context.close()
    assert [] == said


async def create(page: Page, members: str) -> None:
    """Create a group by the form."""
    await page.get_by_label("New group").fill("Book club")
    await page.get_by_label("With").fill(members)
    await page.get_by_role("button", name="Create").click()


async def say(page: Page, text: str) -> None:
    """Send a message by the form."""
    await page.get_by_label("Message").fill(text)
    await page.get_by_role("button", name="Send").click()


async def test_two_users_talk(browser: Browser, url: str) -> None:
    """In a group that one creates and the other one sees come; each message once, in one order."""
    async with signed_in(browser, url, "alice") as alice, signed_in(browser, url, "bob") as bob:
        await create(alice, "bob")
        await bob.get_by_role("button", name="Book club").click()
        for page in (alice, bob):
            await expect(page.locator("#messages li")).to_have_text([OPENED, GREETING])
        await say(alice, "Hello!")
        await expect(bob.locator("#messages li").last).to_contain_text("Hello!")
        await say(bob, "<b>Hi</b>")
        said = ["Hello!", "bob<b>Hi</b>"]
        await expect(alice.locator("#messages li")).to_have_text([OPENED, GREETING, *said])
        # What is there is shown again, to a page that was not there.
        await bob.reload()
        await bob.get_by_role("button", name="Book club").click()
        await expect(bob.locator("#messages li")).to_have_count(4)


async def lose_once(page: Page, pattern: str) -> None:
    """Have the first answer to a POST there not arrive, although the work was done."""
    posts = 0

    async def lose(route: Route) -> None:
        nonlocal posts
        posts += route.request.method == "POST"
        if route.request.method == "POST" and posts == 1:
            await route.fetch()
            await route.abort("connectionreset")
        else:
            await route.continue_()

    await page.route(pattern, lose)


async def test_a_lost_answer_creates_and_says_nothing_twice(
    browser: Browser, url: str, connection: Connection
) -> None:
    """The page sends again by itself, with the same key and the same message's id."""
    async with signed_in(browser, url, "alice") as alice:
        await lose_once(alice, "**/chat/v1/groups")
        await create(alice, "bob")
        await expect(alice.locator("#messages li")).to_have_text([OPENED, GREETING])
        await lose_once(alice, "**/messages/*")
        await say(alice, "Hello!")
        await expect(alice.locator("#messages li").nth(2)).to_have_text("Hello!")
    assert 1 == await connection.fetchval("SELECT count(*) FROM chat_group")
    assert 3 == await connection.fetchval("SELECT count(*) FROM public.message")
    assert 3 == await connection.fetchval("SELECT next_offset FROM conversation")


async def test_a_page_that_is_left_before_the_answer_is_finished_by_the_next(
    browser: Browser, url: str, connection: Connection
) -> None:
    """The wish is in the browser's store; the group is shown before the service has it."""
    async with signed_in(browser, url, "alice") as alice:
        await alice.route("**/chat/v1/groups", lambda route: route.abort("failed"))
        await create(alice, "bob")
        await expect(alice.locator("#groups .pending")).to_have_text("Book club")
        assert 0 == await connection.fetchval("SELECT count(*) FROM chat_group")
        await alice.unroute("**/chat/v1/groups")
        await alice.reload()
        await alice.locator("#groups button:not(.pending)").click()
        await expect(alice.locator("#messages li")).to_have_text([OPENED, GREETING])
    assert 1 == await connection.fetchval("SELECT count(*) FROM chat_group")


async def as_user(api: Api, user: str) -> dict[str, str]:
    """Return the header fields of somebody who has signed in."""
    reply = await api.request("POST", "/login", user=None, json={"user": user})
    return {"Authorization": f"Bearer {reply.json['token']}"}


async def test_who_is_no_member_reads_and_says_nothing(url: str, connection: Connection) -> None:
    """And nobody takes the id of another's message."""
    async with connected_api(url) as api:
        alice, bob, mallory = [await as_user(api, user) for user in ("alice", "bob", "mallory")]
        fields = {**alice, "Idempotency-Key": "k"}
        group = await api.request(
            "POST",
            "/chat/v1/groups",
            user=None,
            headers=fields,
            json={"name": "Book club", "members": ["bob"]},
        )
        path = f"/messages/{group.json['conversation_id']}"
        message = {"id": str(uuid4()), "body": "Hello!"}
        replies = [
            await api.request("POST", path, user=None, headers=fields, json=message)
            for fields in (alice, alice, bob, mallory, {})
        ]
        assert [201, 201, 404, 404, 401] == [reply.status for reply in replies]
        assert replies[0].body == replies[1].body
        pages = [
            await api.get(f"{path}?from=1", user=None, headers=fields) for fields in (bob, mallory)
        ]
        read, hidden = [[message["body"] for message in page.json["messages"]] for page in pages]
        assert (1, []) == (read.count("Hello!"), hidden)
        for query, body in (("?from=x", None), ("?wait=nan", None), ("", "[]"), ("", "{")):
            method = "GET" if body is None else "POST"
            reply = await api.request(method, path + query, user=None, headers=bob, data=body)
            assert 400 == reply.status


async def test_the_greeting_comes_once_although_its_event_comes_twice(
    url: str, database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id follows from the event's; another event of the group would be greeted again."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "chat"))
    modules: list[Any] = [import_module(name) for name in ("groups", "messages")]
    for module in modules:
        monkeypatch.delitem(sys.modules, module.__name__)
    groups, messages = modules
    async with connected_api(url) as api:
        fields = {**await as_user(api, "alice"), "Idempotency-Key": "k"}
        await api.request(
            "POST", "/chat/v1/groups", user=None, headers=fields, json={"name": "Alone"}
        )
    conversation = await connection.fetchval("SELECT conversation_id FROM chat_group")
    data = {"owner_id": "alice", "conversation_id": str(conversation)}
    envelope = orjson.dumps({"type": "group.created", "data": data})
    same, other = [CommittedEvent(uuid4(), ("alice", "bob"), envelope) for _ in range(2)]
    async with asyncpg.create_pool(database_url, min_size=1, max_size=1) as pool:
        greeter = groups.Greeter(messages.Messages(), lambda: pool)
        for events, count in (([same, same], 1), ([same], 1), ([other], 2)):
            assert {} == await greeter.publish(events)
            bodies = await connection.fetch(
                "SELECT body FROM public.message WHERE message_offset > 0"
            )
            assert [GREETING] * count == [row["body"] for row in bodies]
