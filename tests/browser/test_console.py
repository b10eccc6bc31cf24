"""The console in the system's browser: the guarantee made visible, and what a page must not do."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest_asyncio
from aiohttp import web
from playwright.async_api import expect

import stretto
from stretto.assembly.application import create_app
from stretto.domain import group_id
from stretto.http.front.serving import serving
from stretto.http.routes.console import offer_tokens
from stretto.http.tokens.settings import TokenSettings
from stretto.telemetry.metrics import Metrics
from support.api_client import SECRET, connected_api, token_of
from support.chromium import chromium

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page

    from support.database import Connection

PHONE = {"width": 360, "height": 740}
# What a plot says where there is no value.
NONE = "\u2013"
# A name of another party's that leads to this machine.
REBOUND = "rebound.test"
# WCAG 2.1, 1.4.3.
CONTRAST_MIN = 4.5
# Every text that is seen, with its contrast to what is behind it.
CONTRASTS = """() => {
    const channels = text => (text.match(/[\\d.]+/g) ?? []).map(Number);
    const luminance = rgb => rgb.slice(0, 3).map(each => each / 255)
        .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
        .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
    const behind = node => {
        for (; node; node = node.parentElement) {
            const color = channels(getComputedStyle(node).backgroundColor);
            if (color.length === 3 || color[3] > 0) return color;
        }
        return [255, 255, 255];
    };
    const found = [];
    for (const node of document.querySelectorAll("body *")) {
        const isText = [...node.childNodes].some(each => each.nodeType === 3 && each.data.trim());
        if (!isText && node.tagName !== "INPUT" || !node.checkVisibility()) continue;
        const [a, b] = [channels(getComputedStyle(node).color), behind(node)].map(luminance);
        const name = `${node.tagName}.${node.className}: ${node.textContent.slice(0, 30)}`;
        found.push([name, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]);
    }
    return found;
}"""
# How many requests the plot of the answers' times is made of.
COUNTED = """async text => {
    const { parsed, reading } = await import("/console/metrics.js");
    return reading(parsed(text), 0).buckets.at(-1)[1];
}"""


@pytest_asyncio.fixture
async def url(database_url: str) -> AsyncIterator[str]:
    """A service for trials: its console offers a token."""
    tokens = TokenSettings(jwt_secret=SECRET)
    app = create_app(dsn=database_url, tokens=tokens, console=True)
    offer_tokens(app, tokens)
    async with serving(app, host="127.0.0.1", port=0) as port:
        yield f"http://127.0.0.1:{port}"


@pytest_asyncio.fixture
async def browser() -> AsyncIterator[Browser]:
    """The system's browser."""
    async with chromium(f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1") as browser:
        yield browser


@asynccontextmanager
async def opened(browser: Browser, url: str, **options: Any) -> AsyncIterator[Page]:
    """Open the console; at the end, the browser must have had nothing to complain of."""
    page = await browser.new_page(**options)
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    # A violation of the policy is among them; so is a status of 400 and more, which some tests want.
    page.on("console", lambda line: said.append(line.text) if line.type == "error" else None)
    await page.goto(url + "/")
    yield page
    await page.close()
    wanted = ("status of 422", "status of 403", "status of 401", "status of 404")
    assert [] == [each for each in said if not any(words in each for words in wanted)]


async def sign_in(page: Page) -> None:
    """Take the token that the console offers, and wait for the session."""
    await page.get_by_role("button", name="Get a token").click()
    await expect(page.locator("#live-state")).to_contain_text("Live.")


async def press(page: Page, name: str, verdict: str) -> None:
    """Press a button of the form; wait for what is said of the answers."""
    await page.get_by_role("button", name=name).click()
    await expect(page.locator("#verdict")).to_contain_text(verdict)


async def test_however_a_key_is_sent_one_group_is_seen_and_there_is_one(
    browser: Browser, url: str, connection: Connection
) -> None:
    """Fifty at once, a lost answer and its retry, another body: all under the group foretold."""
    async with opened(browser, url) as page:
        await sign_in(page)
        key = await page.locator("#key").input_value()
        await expect(page.locator("#foretold")).to_have_text(str(group_id("alice", key)))
        await press(page, "Send 50 at once", "50 requests: ")
        await press(page, "Lose the answer", "2 requests: 1 lost, 1 replayed. One group.")
        await press(page, "Change the body", "2 requests: 1 replayed, 1 key_reused. One group.")
        card = page.locator("#groups article")
        assert await card.count() == 1
        await expect(card.locator(".id")).to_have_text(str(group_id("alice", key)))
        await expect(card.locator(".tally")).to_contain_text(
            "All 52 successes have the same bytes."
        )
        kinds = {"wrote": 1, "again": 51, "lost": 1, "refused": 1}
        for kind, count in kinds.items():
            await expect(card.locator(f".chip.{kind}")).to_have_count(count)
        await expect(card.locator(".problem")).to_contain_text("Take a new key.")
        await expect(page.locator("#events li")).to_have_count(1)
    names = await connection.fetch("SELECT name FROM chat_group")
    assert ["Team"] == [row["name"] for row in names]


async def test_a_session_that_is_cut_misses_nothing(browser: Browser, url: str) -> None:
    """What was created meanwhile comes when it resumes, once, and is marked."""
    async with opened(browser, url) as page, connected_api(url) as api:
        await sign_in(page)
        await press(page, "Create", "1 request: 1 created. One group.")
        await expect(page.locator("#events li")).to_have_count(1)
        await page.get_by_role("button", name="Cut the connection").click()
        await expect(page.locator("#live-state")).to_contain_text("Cut:")
        missed = (await api.create("missed", {"name": "While away"})).json["group_id"]
        await page.get_by_role("button", name="Resume").click()
        await expect(page.locator("#events li")).to_have_count(2)
        newest = page.locator("#events li").first
        await expect(newest).to_contain_text("missed, caught up")
        await expect(newest.locator(".id")).to_have_text(missed)
        later = (await api.create("later", {"name": "Live again"})).json["group_id"]
        await expect(page.locator("#events li").first.locator(".id")).to_have_text(later)
        await expect(page.locator("#events .lost")).to_have_count(1)


async def test_an_attempt_is_looked_up_by_its_key(browser: Browser, url: str) -> None:
    """With what this page has seen of it; an unknown key says so."""
    async with opened(browser, url) as page:
        await sign_in(page)
        await press(page, "Create", "1 request: 1 created. One group.")
        # The key that was sent last is filled in.
        await page.get_by_role("button", name="Look up").click()
        found = page.locator("#found")
        await expect(found).to_contain_text("succeeded")
        key = await page.locator("#key").input_value()
        await expect(found).to_contain_text(str(group_id("alice", key)))
        await expect(found.locator(".history li")).to_have_count(3)
        await expect(found).to_contain_text(f"stretto attempt --history alice {key}")
        # The next key has nothing of it.
        await page.get_by_role("button", name="New key").click()
        await press(page, "Create", "1 request: 1 created. One group.")
        await expect(found).to_have_text("An attempt is looked up by its key, by its owner alone.")
        await page.locator("#lookup-key").fill("unknown")
        await page.get_by_role("button", name="Look up").click()
        await expect(found).to_contain_text("404: ")
        await page.locator("#lookup-key").fill(key)
        await expect(found).not_to_contain_text("404: ")


async def test_what_is_no_token_opens_no_session(browser: Browser, url: str) -> None:
    """There is nothing to resume; an answer says that the token is at fault."""
    async with opened(browser, url) as page:
        await sign_in(page)
        await page.locator("#token").fill("garbage")
        await expect(page.locator("#live-state")).to_have_text("A session needs a token.")
        await expect(page.locator("#cut")).to_be_disabled()
        await expect(page.locator("#cut")).to_have_text("Cut the connection")
        await press(page, "Create", "1 request: 1 unauthenticated. No group yet.")
        await expect(page.locator(".group .problem")).to_contain_text("Take another token.")


async def test_what_has_happened_to_an_attempt_is_listed_in_its_order(
    browser: Browser, url: str, connection: Connection
) -> None:
    """In words, with time, code and trace, between the claim and the answers of this page."""
    async with opened(browser, url) as page:
        await sign_in(page)
        await press(page, "Create", "1 request: 1 created. One group.")
        key = await page.locator("#key").input_value()
        await connection.execute(
            """INSERT INTO attempt_trail (group_id, happened_at, what, instance, code, trace_id)
               SELECT group_id, claimed_at + make_interval(hours => number), what, 'host/7', code,
                      trace_id
               FROM attempt, (VALUES (-1, 'unknown', 'OutcomeUnknown', $2), (1, 'healed', NULL, NULL))
                             AS entry (number, what, code, trace_id)
               WHERE group_id = $1""",
            *(group_id("alice", key), "4bf92f3577b34da6a3ce929d0e0e4736"),
        )
        await page.get_by_role("button", name="Look up").click()
        steps = page.locator("#found .history li")
        trace = "trace 4bf92f3577b34da6a3ce929d0e0e4736"
        expected = [
            rf"^\d.* the outcome of a write was unknown \(OutcomeUnknown, {trace}\)$",
            r"^\d.* claimed$",
            r"^\d.* settled$",
            r"^\d.* settled, because its group exists$",
            "^This page got: 1 created$",
        ]
        await expect(steps).to_have_text([re.compile(each) for each in expected])
        await expect(page.locator("#found")).not_to_contain_text("host/7")


async def test_it_works_below_a_hosts_prefix(browser: Browser, database_url: str) -> None:
    """With a token that is pasted: nothing is offered there."""
    app = web.Application()
    tokens = TokenSettings(jwt_secret=SECRET)
    stretto.setup(app, "/apps/chat", dsn=database_url, tokens=tokens, console=True)
    async with (
        serving(app, host="127.0.0.1", port=0) as port,
        opened(browser, f"http://127.0.0.1:{port}/apps/chat") as page,
    ):
        await expect(page.locator("#offer")).to_be_hidden()
        await page.locator("#token").fill(token_of("carol"))
        await expect(page.locator("#live-state")).to_contain_text("Live.")
        # What is created before the first reading is no change that could be plotted.
        await expect(page.locator("#plots [data-plot=rate] b").first).not_to_have_text(NONE)
        await press(page, "Send 50 at once", "50 requests: 1 created, 49 replayed. One group.")
        key = await page.locator("#key").input_value()
        await expect(page.locator("#groups .id")).to_have_text(str(group_id("carol", key)))
        await expect(page.locator("#plots [data-plot=batch] b")).not_to_have_text(NONE)


async def test_a_foreign_name_that_leads_here_is_given_no_token(browser: Browser, url: str) -> None:
    """As after DNS rebinding. Such a page cannot compute ids either, and works without them."""
    async with opened(browser, url.replace("127.0.0.1", REBOUND)) as page:
        await page.get_by_role("button", name="Get a token").click()
        await expect(page.locator("#token-note")).to_contain_text("403: Only the console")
        await page.locator("#token").fill(token_of("carol"))
        await expect(page.locator("#foretold")).to_contain_text("over https")
        await press(page, "Create", "1 request: 1 created. One group.")
        key = await page.locator("#key").input_value()
        await expect(page.locator("#groups .id")).to_have_text(str(group_id("carol", key)))


async def test_the_plots_follow_what_happens(browser: Browser, url: str) -> None:
    """A burst shows in each of them; what nothing is known of is no zero."""
    async with opened(browser, url) as page:
        await sign_in(page)
        plots = page.locator("#plots")
        rate = plots.locator("[data-plot=rate] path").first
        await expect(rate).to_have_attribute("d", re.compile("^M"))
        await press(page, "Send 50 at once", "One group.")
        for name in ("latency", "batch"):
            value = plots.locator(f"[data-plot={name}] b").first
            await expect(value).not_to_have_text(NONE)
        lag = plots.locator("[data-plot=lag] b")
        await expect(lag.last).to_have_text(NONE)
        await expect(plots.locator("[data-plot=lag] .scale")).to_contain_text("0 ")


async def test_the_plot_of_the_answers_times_is_of_creations(browser: Browser, url: str) -> None:
    """A list of groups has the same route."""
    metrics = Metrics()
    for method, status in (("POST", 201), ("POST", 201), ("GET", 200)):
        metrics.count_request(method, "/apps/chat/v1/groups", status, 0.1)
    async with opened(browser, url) as page:
        assert 2 == await page.evaluate(COUNTED, metrics.exposition().decode())


async def test_it_fits_a_phone_and_can_be_read_in_both_schemes(browser: Browser, url: str) -> None:
    """No line is wider than the screen, no text is too pale."""
    for scheme in ("light", "dark"):
        async with opened(browser, url, viewport=PHONE, color_scheme=scheme) as page:
            await sign_in(page)
            await press(page, "Send 50 at once", "One group.")
            await press(page, "Lose the answer", "One group.")
            await press(page, "Change the body", "1 key_reused")
            await page.get_by_role("button", name="Look up").click()
            await expect(page.locator("#found")).to_contain_text("succeeded")
            assert PHONE["width"] == await page.evaluate("document.documentElement.scrollWidth")
            found = await page.evaluate(CONTRASTS)
            assert len(found) > 50
            assert [] == [each for each in found if each[1] < CONTRAST_MIN]


async def test_all_of_it_can_be_used_by_keyboard(browser: Browser, url: str) -> None:
    """In the order of the page, and what has the focus is seen."""
    async with opened(browser, url) as page:
        visited: list[str] = []
        for _ in range(20):
            await page.keyboard.press("Tab")
            name, outline = await page.evaluate(
                """() => {
                    const node = document.activeElement;
                    const name = node.id || node.value || node.textContent.trim();
                    return [name, getComputedStyle(node).outlineStyle];
                }"""
            )
            assert outline == "solid", name
            visited.append(name)
            if name == "offer":
                await page.keyboard.press("Enter")
                await expect(page.locator("#live-state")).to_contain_text("Live.")
            if name == "many":
                await page.keyboard.press("Space")
                await expect(page.locator("#verdict")).to_contain_text("One group.")
            if name == "cut":
                break
        expected = ["token", "offer", "name", "members", "key", "renew"]
        expected += ["create", "many", "lose", "reuse"]
        assert expected == [name for name in visited if name in expected]
        assert [*visited[-3:]] == ["lookup-key", "Look up", "cut"]
