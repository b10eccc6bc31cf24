"""`clients/js` in the system's browser: what it sends, how it retries, how a session goes on."""

from __future__ import annotations

import json
import random
import re
import time
from contextlib import AsyncExitStack
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio

from stretto.domain import group_id
from stretto.events.close_codes import CloseCode
from stretto.http.settings import StreamSettings
from support.api_client import TEAM, api_for, token_of
from support.chromium import chromium, origin_with
from support.live_service import live_service
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page, Request, Route

# One browser for all scripts: it takes longer to start than any of them.
pytestmark = pytest.mark.asyncio(loop_scope="module")

CLIENT: Final = Path(__file__).parents[2] / "clients/js"
# No host has this name: what is sent there, the tests answer.
SERVICE: Final = "https://chat.invalid"
GROUP: Final = {"group_id": "g", "conversation_id": "c"}
CREATED: Final = (201, {"Idempotency-Status": "created"}, GROUP)
PAGE: Final = b"""<!doctype html><script type="module">
import * as client from "/stretto.js";
Object.assign(window, client);
window.isReady = true;
</script>"""
FILES: Final = {"/": PAGE, "/stretto.js": (CLIENT / "stretto.js").read_bytes()}
# A client whose token function counts; `outcome` says how a promise has ended.
START: Final = """([url, token, owner]) => {
    window.asked = [];
    window.client = new Stretto({
        url, owner, token: isRefused => { asked.push(isRefused); return token }});
    window.outcome = promise => promise.then(
        group => group, ({name, code, retry}) => ({name, code, retry}));
    window.stored = async () => {
        const database = await new Promise(then => {
            const opening = indexedDB.open(`stretto ${url}/v1/`, 1);
            opening.onsuccess = () => then(opening.result);
        });
        const intentions = database.transaction("intentions").objectStore("intentions");
        const all = await new Promise(then => {
            intentions.getAll().onsuccess = event => then(event.target.result);
        });
        database.close();
        return all;
    };
}"""
SEND: Final = """async ({group, key}) => {
    window.intention = await client.intend(group, {key});
    const ended = await outcome(intention.send());
    return [ended, await intention.done(), (await stored()).length];
}"""
EVENTS: Final = """async ({options, count}) => {
    const events = client.events(options), got = [];
    window.events = events;
    try {
        for await (const event of events) {
            got.push(event.id);
            if (got.length === count) break;
        }
    } catch (error) {
        got.push(error.code);
    }
    return [got, events.lastEventId ?? null];
}"""

Answer = tuple[int, dict[str, str], Any]


class Script:
    """Answers a page's requests one after the other, and keeps them."""

    def __init__(self, *answers: Answer | None) -> None:
        self.answers = [*answers]
        self.requests: list[Request] = []
        self.at: list[float] = []

    async def answer(self, route: Route) -> None:
        """Give the next answer; None is none. Behind the last one, a request is refused."""
        self.requests.append(route.request)
        self.at.append(time.monotonic())
        answer = self.answers.pop(0) if self.answers else problem(400, "unexpected", "never")
        if answer is None:
            await route.abort("connectionreset")
            return
        status, headers, body = answer
        exposed = {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "*"}
        text = body if isinstance(body, str) else json.dumps(body)
        await route.fulfill(status=status, headers=exposed | headers, body=text)


def problem(status: int, code: str, retry: str, **headers: str) -> Answer:
    """Return a problem document of the service."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, fields, {"code": code, "detail": "why", "retry": retry}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def origin() -> AsyncIterator[str]:
    """Where the page comes from."""
    async with origin_with(FILES) as origin:
        yield origin


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """The system's browser."""
    async with chromium() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser, origin: str) -> AsyncIterator[Page]:
    """A page of another origin than the service's, with alice's client and an empty store."""
    page = await opened(browser, origin)
    await page.evaluate(START, [SERVICE, token_of("alice"), None])
    yield page
    await page.context.close()


async def opened(browser: Browser, origin: str) -> Page:
    """Open a page that has the client, in a profile of its own."""
    page = await (await browser.new_context()).new_page()
    await page.goto(origin)
    await page.wait_for_function("window.isReady")
    return page


async def scripted(page: Page, *answers: Answer | None) -> Script:
    """Have the page's requests answered by a script."""
    script = Script(*answers)
    await page.unroute_all()
    await page.route(f"{SERVICE}/**", script.answer)
    return script


async def sent(page: Page, group: Any = TEAM, key: str | None = None) -> Any:
    """Send a creation; return its outcome, whether it was done, and how many are stored then."""
    return await page.evaluate(SEND, {"group": group, **({"key": key} if key else {})})


async def test_ids_are_those_of_the_service(page: Page) -> None:
    """Whatever owner and key are."""
    dice = random.Random(1)
    visible = [*map(chr, range(0x21, 0x7F))]
    pairs = [
        [
            f"x{''.join(dice.choices([' ', *visible], k=size))}x",
            "".join(dice.choices(visible, k=255)),
        ]
        for size in range(100)
    ]
    found = await page.evaluate("pairs => Promise.all(pairs.map(each => groupId(...each)))", pairs)
    assert [str(group_id(owner, key)) for owner, key in pairs] == found


async def test_a_creation_is_stored_before_it_is_sent_and_dropped_when_it_is_done(
    page: Page,
) -> None:
    """What is sent is what is stored, byte for byte."""
    script = await scripted(page, CREATED)
    group = {"name": "Té\u2028am", "members": ["bob"]}
    key, foretold, stored = await page.evaluate(
        """async group => {
            window.intention = await client.intend(group);
            return [intention.key, intention.groupId, await stored()];
        }""",
        group,
    )
    assert [] == script.requests
    assert str(group_id("alice", key)) == foretold
    ((record),) = stored
    assert (foretold, "alice", key) == (record["groupId"], record["owner"], record["key"])
    assert group == json.loads(record["body"])
    ended = await page.evaluate(
        """async () => {
            const group = await intention.send();
            const left = (await stored()).length;
            return [group, left, await intention.done(), (await stored()).length];
        }"""
    )
    assert [{"groupId": "g", "conversationId": "c", "isReplay": False}, 1, True, 0] == ended
    (request,) = script.requests
    headers = request.headers
    assert record["body"] == request.post_data
    assert (key, f"@{record['at'] // 1000}", f"Bearer {token_of('alice')}"[:20]) == (
        headers["idempotency-key"],
        headers["idempotency-first-sent"],
        headers["authorization"][:20],
    )


async def test_an_equal_body_is_the_same_intention_until_it_is_done(page: Page) -> None:
    """Two clicks are one creation; a group that is wanted again later is another."""
    script = await scripted(page, CREATED, CREATED)
    keys = await page.evaluate(
        """async group => {
            const two = await Promise.all([client.intend(group), client.intend(group)]);
            await Promise.all(two.map(each => each.send()));
            const third = await client.intend(group);
            await third.send();
            await third.done();
            const later = await client.intend(group);
            await later.send();
            return [...two, third, later].map(each => each.key);
        }""",
        TEAM,
    )
    assert 1 == len({*keys[:3]})
    assert keys[3] not in keys[:3]
    assert [keys[0], keys[3]] == [request.headers["idempotency-key"] for request in script.requests]


async def test_a_key_of_the_application_is_the_same_intention_for_ever(page: Page) -> None:
    """Also after it is done; with another body it is refused before anything is sent."""
    script = await scripted(page, CREATED, CREATED, CREATED)
    for _ in range(2):
        ended, is_done, left = await sent(page, key="draft-1")
        assert ("g", True, 0) == (ended["groupId"], is_done, left)
    assert ["draft-1"] * 2 == [request.headers["idempotency-key"] for request in script.requests]
    refused = await page.evaluate(
        """async group => {
            await client.intend(group, {key: "draft-2"});
            return outcome(client.intend({name: "Other"}, {key: "draft-2"}));
        }""",
        TEAM,
    )
    assert {"name": "StrettoError", "code": "key_reused", "retry": "new-key"} == refused
    for key in ('"quoted"', "two words", "", "ü", "x" * 256):
        refused = await page.evaluate(
            "([group, key]) => outcome(client.intend(group, {key}))", [TEAM, key]
        )
        assert refused["name"] == "TypeError", key


@pytest.mark.parametrize("nothing", ["undefined", "() => {}", "Symbol()"])
async def test_what_json_leaves_out_is_not_stored(nothing: str, page: Page) -> None:
    """It could never be sent, nor could `resume` go on with the others; the twin is a group."""
    await scripted(page, CREATED)
    intend = f"outcome(client.intend({nothing}, {{key: 'k'}}))"
    assert "TypeError" == (await page.evaluate(intend))["name"]
    assert [] == await page.evaluate("client.resume()")
    ended, *_ = await sent(page, key="k")
    assert "g" == ended["groupId"]


@pytest.mark.parametrize(
    "passing",
    [
        None,
        problem(503, "overloaded", "same-key"),
        problem(409, "attempt_pending", "same-key"),
        problem(500, "internal_error", "same-key"),
        (502, {}, "<html>Bad gateway</html>"),
        (429, {}, ""),
        (201, {}, "<html>Sign in to this network</html>"),
        (200, {}, "<html>Sign in to this network</html>"),
        (302, {"Location": "https://portal.invalid/"}, ""),
    ],
    ids=["reset", "503", "409", "500", "502", "429", "201", "200", "302"],
)
async def test_what_is_not_certain_is_sent_again_with_the_same_key(
    passing: Answer | None, page: Page
) -> None:
    """And the same time of the first sending, and the same body."""
    script = await scripted(page, passing, CREATED)
    ended, is_done, left = await sent(page)
    assert ("g", True, 0) == (ended["groupId"], is_done, left)
    names = ("idempotency-key", "idempotency-first-sent")
    first, second = [request.headers for request in script.requests]
    assert [first[name] for name in names] == [second[name] for name in names]
    assert script.requests[0].post_data == script.requests[1].post_data


async def test_it_waits_as_long_as_the_service_asks(page: Page) -> None:
    """The twin asks for nothing."""
    script = await scripted(page, problem(503, "overloaded", "same-key", Retry_After="2"), CREATED)
    await sent(page)
    assert 2.0 <= script.at[1] - script.at[0]
    script = await scripted(page, problem(503, "overloaded", "same-key"), CREATED)
    await sent(page)
    assert script.at[1] - script.at[0] < 2.0


@pytest.mark.parametrize(
    ("answer", "code", "retry"),
    [
        (problem(410, "attempt_failed", "new-key"), "attempt_failed", "new-key"),
        (problem(400, "request_invalid", "never"), "request_invalid", "never"),
        (problem(403, "creation_refused", "never"), "creation_refused", "never"),
    ],
)
async def test_a_refusal_is_final_and_the_page_learns_why(
    answer: Answer, code: str, retry: str, page: Page
) -> None:
    """It is not sent again, and is stored until the page has used it."""
    script = await scripted(page, answer)
    ended, is_done, left = await sent(page)
    assert {"name": "StrettoError", "code": code, "retry": retry} == ended
    assert (1, True, 0) == (len(script.requests), is_done, left)


async def test_a_page_that_no_service_sends_ends_the_sending_and_settles_nothing(
    page: Page,
) -> None:
    """As a firewall's, after an answer that was lost: there may be a group."""
    script = await scripted(page, None, (403, {}, "<html>Forbidden</html>"), CREATED)
    ended, is_done, left = await sent(page)
    assert {"name": "StrettoError", "code": "http_403", "retry": "same-key"} == ended
    assert (2, False, 1) == (len(script.requests), is_done, left)
    ended = await page.evaluate("outcome(intention.send())")
    assert ("g", True) == (ended["groupId"], await page.evaluate("intention.done()"))


async def test_a_refused_token_is_asked_for_again_once(page: Page) -> None:
    """A second one in a row ends the sending; the intention stays, for the next token."""
    refused = problem(401, "unauthenticated", "never")
    script = await scripted(page, refused, CREATED, refused, refused, CREATED)
    ended, is_done, left = await sent(page, key="a")
    assert ("g", [False, False, True]) == (ended["groupId"], await page.evaluate("asked"))
    ended, is_done, left = await sent(page, key="b")
    assert ("unauthenticated", False, 1) == (ended["code"], is_done, left)
    ended = await page.evaluate("outcome(intention.send())")
    assert ("g", 5) == (ended["groupId"], len(script.requests))


async def test_a_token_of_another_user_sends_nothing(page: Page) -> None:
    """The key would make another group; nor does another user's client send what is stored."""
    script = await scripted(page, CREATED)
    await page.evaluate("async group => { await client.intend(group) }", TEAM)
    await page.evaluate(START, [SERVICE, token_of("bob"), "alice"])
    ended = await page.evaluate(
        "async () => { const [one] = await client.resume(); return outcome(one.send()) }"
    )
    assert ("other_owner", []) == (ended["code"], script.requests)
    await page.evaluate(START, [SERVICE, token_of("bob"), None])
    assert 0 == await page.evaluate("async () => (await client.resume()).length")
    await page.evaluate(START, [SERVICE, token_of("alice"), None])
    ended = await page.evaluate(
        "async () => { const [one] = await client.resume(); return outcome(one.send()) }"
    )
    assert ("g", 1) == (ended["groupId"], len(script.requests))


async def test_what_the_token_function_throws_ends_the_sending_and_nothing_else(page: Page) -> None:
    """As for a user who is signed out."""
    script = await scripted(page, CREATED)
    ended = await page.evaluate(
        """async ([url, group]) => {
            const token = () => { throw new RangeError("signed out") };
            const other = new Stretto({url, owner: "alice", token});
            const intention = await other.intend(group);
            return [await outcome(intention.send()), await intention.done()];
        }""",
        [SERVICE, TEAM],
    )
    assert ("RangeError", False) == (ended[0]["name"], ended[1])
    assert 1 == await page.evaluate("async () => (await client.resume()).length")
    await until(lambda: script.requests)


@pytest.mark.parametrize("hours_ahead", [-48, 48])
async def test_a_wrong_clock_keeps_no_group_from_being_created(
    hours_ahead: int, page: Page
) -> None:
    """The answer's date says how wrong it is; a request that is really old stays refused."""
    now = time.time()
    refusal = problem(
        422,
        "first_sent_out_of_range",
        "new-key",
        Date=formatdate(now - hours_ahead * 3600, usegmt=True),
    )
    script = await scripted(page, refusal, CREATED)
    ended, *_ = await sent(page)
    assert ended["groupId"] == "g"
    times = [int(request.headers["idempotency-first-sent"][1:]) for request in script.requests]
    assert abs(times[0] - now) < 60
    assert abs(times[1] - (now - hours_ahead * 3600)) < 60
    truly_old = problem(
        422, "first_sent_out_of_range", "new-key", Date=formatdate(now, usegmt=True)
    )
    script = await scripted(page, truly_old)
    ended, is_done, _ = await sent(page, key="old")
    assert ("first_sent_out_of_range", True) == (ended["code"], is_done)


async def test_a_clock_that_was_ahead_keeps_no_group_from_being_created(page: Page) -> None:
    """As of a device that was offline, and has stored an intention before its clock was set right."""
    script = await scripted(page, CREATED)
    now = time.time()
    ended = await page.evaluate(
        """async group => {
            const clock = Date.now;
            Date.now = () => clock() + 86_400_000;
            const intention = await client.intend(group);
            Date.now = clock;
            return await outcome(intention.send());
        }""",
        TEAM,
    )
    assert ended["groupId"] == "g"
    (request,) = script.requests
    assert abs(int(request.headers["idempotency-first-sent"][1:]) - now) < 60


async def test_a_clock_that_is_set_between_two_tries_keeps_no_group_from_being_created(
    page: Page,
) -> None:
    """The correction that the first answer has told is of the clock before."""
    now = time.time()
    refusal = problem(422, "first_sent_out_of_range", "new-key", Date=formatdate(now, usegmt=True))
    script = await scripted(page, refusal, refusal, CREATED)
    ended = await page.evaluate(
        """async group => {
            const clock = Date.now, fetched = window.fetch;
            Date.now = () => clock() + 86_400_000;
            let tries = 0;
            window.fetch = (...request) => {
                if (++tries !== 2) return fetched(...request);
                Date.now = clock;
                return Promise.reject(new TypeError("the network is away"));
            };
            const intention = await client.intend(group);
            return await outcome(intention.send());
        }""",
        TEAM,
    )
    assert ended["groupId"] == "g"
    assert abs(int(script.requests[-1].headers["idempotency-first-sent"][1:]) - now) < 60


async def test_where_clocks_of_the_service_differ_each_try_waits_for_longer(page: Page) -> None:
    """Each answer seems to correct the one before: without a pause the tries would never end."""
    now = time.time()
    dates = [formatdate(now + hours * 3600, usegmt=True) for hours in (1, 2)]
    refusals = [problem(422, "first_sent_out_of_range", "new-key", Date=date) for date in dates]
    script = await scripted(page, *refusals, CREATED)
    await page.evaluate("() => { Math.random = () => 1 }")
    ended, *_ = await sent(page)
    assert ended["groupId"] == "g"
    first, second, third = script.at
    assert second - first >= 0.5
    assert third - second >= 1


@pytest.mark.parametrize("is_in_pause", [True, False])
async def test_what_is_forgotten_is_waited_for_no_longer(is_in_pause: bool, page: Page) -> None:
    """Neither within a pause of an hour, nor within a try; and no pause goes on behind it."""
    ended = await page.evaluate(
        """async ([group, isInPause]) => {
            const timed = window.setTimeout, ended = window.clearTimeout;
            window.hours = new Map();
            window.setTimeout = (work, milliseconds) => {
                const timer = timed(work, milliseconds);
                if (milliseconds >= 3_600_000) hours.set(timer, "goes on"), began();
                return timer;
            };
            window.clearTimeout = timer => {
                if (hours.has(timer)) hours.set(timer, "ended");
                ended(timer);
            };
            let began, answer;
            const pause = new Promise(then => began = then);
            const busy = {status: 503, headers: {"Retry-After": "3600"}};
            const isTried = new Promise(tried => {
                window.fetch = () => new Promise(then => {
                    answer = () => then(new Response("{}", busy));
                    tried();
                });
            });
            const intention = await client.intend(group);
            const sending = outcome(intention.send());
            await isTried;
            if (isInPause) answer(), await pause;
            await intention.forget();
            const late = new Promise(then => timed(then, 5000, {name: "hangs"}));
            const {name} = await Promise.race([sending, late]);
            if (!isInPause) answer();
            await pause;
            return name;
        }""",
        [TEAM, is_in_pause],
    )
    assert "AbortError" == ended
    await page.wait_for_function("[...hours.values()].join() === 'ended'", timeout=5000)


async def test_an_intention_that_is_forgotten_is_sent_no_more(page: Page) -> None:
    """Its promise ends, so that nothing waits for it."""
    await scripted(page, *[problem(503, "overloaded", "same-key")] * 50)
    ended = await page.evaluate(
        """async group => {
            const intention = await client.intend(group);
            const ended = outcome(intention.send());
            await intention.forget();
            return [(await ended).name, (await stored()).length];
        }""",
        TEAM,
    )
    assert ["AbortError", 0] == ended


@pytest.mark.parametrize("wait", ["token", "turn"])
async def test_what_is_forgotten_before_it_is_sent_leaves_its_key_to_the_edited_draft(
    wait: str, page: Page
) -> None:
    """While the token function is offline, or while another tab has its turn."""
    script = await scripted(page, CREATED)
    edited = TEAM | {"name": "edited"}
    ended = await page.evaluate(
        """async ([url, token, group, edited, wait, lock]) => {
            let asks, goOn;
            const isAsked = new Promise(then => asks = then);
            const goesOn = new Promise(then => goOn = then);
            const client = new Stretto({url, owner: "alice", token: () => {
                asks();
                return wait === "token" ? goesOn.then(() => token) : token;
            }});
            const isWaiting = async count => {
                while ((await navigator.locks.query()).pending.length < count);
            };
            if (wait === "turn") {
                await new Promise(then => {
                    navigator.locks.request(lock, () => { then(); return goesOn });
                });
            }
            const first = await client.intend(group, {key: "draft"});
            const forgotten = outcome(first.send());
            await (wait === "token" ? isAsked : isWaiting(1));
            await first.forget();
            const second = await client.intend(edited, {key: "draft"});
            const sent = outcome(second.send());
            if (wait === "turn") await isWaiting(2);
            goOn();
            // Turns are given in the order in which they were asked for: the forgotten one had its own.
            return [(await forgotten).name, (await sent).groupId];
        }""",
        [SERVICE, token_of("alice"), TEAM, edited, wait, f"stretto {group_id('alice', 'draft')}"],
    )
    assert ["AbortError", "g"] == ended
    assert [edited] == [json.loads(request.post_data or "") for request in script.requests]


async def second_tab(page: Page, origin: str) -> Page:
    """Open another page with alice's client, and with the same store."""
    tab = await page.context.new_page()
    await tab.goto(origin)
    await tab.wait_for_function("window.isReady")
    await tab.evaluate(START, [SERVICE, token_of("alice"), None])
    return tab


@pytest.mark.parametrize(("end", "sent"), [("forget", 0), ("done", 1)])
async def test_what_is_forgotten_while_intentions_are_resumed_does_not_come_back(
    end: str, sent: int, page: Page
) -> None:
    """They were read before it was dropped: it is the same intention, which is not sent once more."""
    script = await scripted(page, CREATED)
    is_same = await page.evaluate(
        """async ([url, token, group, end]) => {
            const rows = new Map();
            let isRead, goOn, resumed;
            const read = new Promise(then => isRead = then);
            const goesOn = new Promise(then => goOn = then);
            // As of IndexedDB: what was asked first is answered first.
            const store = {
                keep: async record => (rows.set(record.groupId, record), record),
                all: async () => {
                    const found = [...rows.values()];
                    isRead();
                    await goesOn;
                    return found;
                },
                drop: async id => {
                    rows.delete(id);
                    goOn();
                    await resumed;
                },
            };
            const client = new Stretto({url, owner: "alice", token: () => token, store});
            const intention = await client.intend(group);
            if (end === "done") await intention.send();
            resumed = client.resume();
            await read;
            await intention[end]();
            const [again] = await resumed;
            await outcome(again.send());
            return again === intention;
        }""",
        [SERVICE, token_of("alice"), TEAM, end],
    )
    assert (True, sent) == (is_same, len(script.requests))


async def test_what_another_tab_has_finished_is_sent_again_and_harms_nothing(
    page: Page, origin: str
) -> None:
    """Between the reading of the store and the sending: the outcome is the same group."""
    script = await scripted(page, CREATED, CREATED)
    await page.evaluate("async group => { await client.intend(group) }", TEAM)
    tab = await second_tab(page, origin)
    await page.evaluate("async () => { [window.intention] = await client.resume() }")
    await tab.evaluate(
        """async group => {
            const intention = await client.intend(group);
            await intention.forget();
        }""",
        TEAM,
    )
    ended = await page.evaluate(
        "async () => [await outcome(intention.send()), await intention.done(), await stored()]"
    )
    assert (["g", True, []], 1) == ([ended[0]["groupId"], *ended[1:]], len(script.requests))


async def test_a_tab_that_stands_still_in_its_turn_keeps_no_other_from_sending(page: Page) -> None:
    """An `alert` does it; the others wait for as long as a try may take, and send beside it."""
    script = await scripted(page, CREATED)
    name = f"stretto {group_id('alice', 'k')}"
    await page.evaluate(
        """name => new Promise(then => {
            navigator.locks.request(name, () => { then(); return new Promise(() => {}) });
            window.waits = [];
            AbortSignal.timeout = milliseconds => {
                const controller = new AbortController();
                waits.push([milliseconds, controller]);
                return controller.signal;
            };
        })""",
        name,
    )
    await page.evaluate(
        """async group => {
            window.intention = await client.intend(group, {key: "k"});
            window.sending = intention.send();
        }""",
        TEAM,
    )

    async def is_waiting() -> bool:
        pending = await page.evaluate("navigator.locks.query()")
        return [name] == [each["name"] for each in pending["pending"]]

    await until(is_waiting)
    assert [] == script.requests
    assert 15_000 == await page.evaluate("waits[0][0]")
    await page.evaluate("waits[0][1].abort()")
    assert "g" == (await page.evaluate("sending"))["groupId"]
    assert len(script.requests) == 1


async def test_a_wish_that_took_the_place_of_another_in_a_second_tab_is_another(
    page: Page, origin: str
) -> None:
    """The first tab neither drops it with its own, nor has its own sent for it."""
    script = await scripted(page, CREATED, problem(422, "key_reused", "new-key"))
    await page.evaluate(
        """async group => {
            window.intention = await client.intend(group, {key: "k"});
            await intention.send();
        }""",
        TEAM,
    )
    tab = await second_tab(page, origin)
    other = {"name": "Another team"}
    await tab.evaluate(
        """async ([group, other]) => {
            const intention = await client.intend(group, {key: "k"});
            await intention.forget();
            await client.intend(other, {key: "k"});
        }""",
        [TEAM, other],
    )
    assert await page.evaluate("intention.done()")
    ((record),) = await tab.evaluate("stored()")
    assert other == json.loads(record["body"])
    ended = await page.evaluate(
        """async other => {
            const intention = await client.intend(other, {key: "k"});
            const ended = await outcome(intention.send());
            return [intention.body, ended.code, await intention.done(), (await stored()).length];
        }""",
        other,
    )
    assert [other, "key_reused", True, 0] == ended
    assert [TEAM, other] == [request.post_data_json for request in script.requests]


async def test_a_wish_with_a_settled_key_is_not_answered_by_the_first_one(
    page: Page, origin: str
) -> None:
    """Where another tab has dropped that, this one still has its outcome."""
    script = await scripted(page, CREATED, problem(422, "key_reused", "new-key"))
    await page.evaluate(
        "async group => { await (await client.intend(group, {key: 'k'})).send() }", TEAM
    )
    tab = await second_tab(page, origin)
    await tab.evaluate(
        "async group => { await (await client.intend(group, {key: 'k'})).forget() }", TEAM
    )
    ended, *_ = await sent(page, {"name": "Another team"}, key="k")
    assert ("key_reused", 2) == (ended["code"], len(script.requests))


async def test_a_store_that_is_taken_away_is_an_error(page: Page) -> None:
    """Nothing waits for it for ever; the twin is the store as it was."""
    await scripted(page, CREATED)
    ended = await page.evaluate(
        """async group => {
            const real = IDBDatabase.prototype.transaction;
            // As it is while the user clears what the site has stored.
            IDBDatabase.prototype.transaction = () => {
                throw new DOMException("closing", "InvalidStateError");
            };
            const late = new Promise(then => setTimeout(then, 5000, {name: "hangs"}));
            const ended = await Promise.race([outcome(client.intend(group)), late]);
            IDBDatabase.prototype.transaction = real;
            return ended.name;
        }""",
        TEAM,
    )
    assert "InvalidStateError" == ended
    ended, *_ = await sent(page)
    assert "g" == ended["groupId"]


def stream(*blocks: str) -> Answer:
    """Return a session that ends after these blocks."""
    text = "".join(f"{block}\n\n" for block in blocks)
    return 200, {"Content-Type": "text/event-stream"}, text


def event(position: str, name: str) -> str:
    """Return an event as the service writes it."""
    return f'id: {position}\ndata: {{"id":"{name}","note":"\u2028 {{}} \u00e9"}}'


async def test_a_session_resumes_where_it_was_and_gives_each_event_once(page: Page) -> None:
    """However it ends: cut, refused for a while, told to come again, with an old token."""
    refused = problem(401, "unauthenticated", "never")
    ended = 'event: close\ndata: {"code":4401,"reason":"over"}'
    script = await scripted(
        page,
        stream("retry: 10\nid: p0", event("p1", "a"), ":", "id: p2"),
        problem(503, "overloaded", "same-key"),
        stream(event("p1", "a"), event("p3", "b"), ended),
        refused,
        None,
        stream('event: close\ndata: {"code":1012,"reason":"again"}'),
        stream("id: p3", event("p4", "b"), event("p5", "c")),
    )
    # The service refuses once, after the token that was asked for anew.
    script.answers.insert(3, stream("id: p3"))
    got, position = await page.evaluate(EVENTS, {"options": {}, "count": 3})
    assert (["a", "b", "c"], "p5") == (got, position)
    positions = [request.headers.get("last-event-id") for request in script.requests]
    assert [None, "p2", "p2", "p3", "p3", "p3", "p3", "p3"] == positions
    # After a refusal another token is asked for, once: the one that it gives was refused by nobody.
    assert [False, False, False, True, False, True, False, False] == await page.evaluate("asked")


async def test_a_token_that_has_ended_is_replaced_once_while_the_service_is_away(
    page: Page,
) -> None:
    """Each try would ask the issuer; the twin is the new token's own refusal, and the next one's."""
    ended = 'event: close\ndata: {"code":4401,"reason":"over"}'
    refused = problem(401, "unauthenticated", "never")
    await scripted(page, stream(ended), None, None, refused, refused)
    got, _ = await page.evaluate(EVENTS, {"options": {}, "count": 1})
    assert ["unauthenticated"] == got
    assert [False, True, False, False, True] == await page.evaluate("asked")


async def test_a_session_whose_history_is_lost_says_so(page: Page) -> None:
    """It does not go on by itself: the page has to read its groups first."""
    lost = 'event: close\nid\ndata: {"code":4410,"reason":"gone"}'
    script = await scripted(page, stream(lost), stream("id: p9", event("p10", "a")))
    options = {"lastEventId": "old"}
    got, position = await page.evaluate(EVENTS, {"options": options, "count": 1})
    assert (["history_lost"], "") == (got, position)
    got, position = await page.evaluate(EVENTS, {"options": {}, "count": 1})
    assert (["a"], "p10") == (got, position)
    await page.evaluate("events.ready")
    assert 2 == len(script.requests)


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([problem(400, "request_invalid", "never")], "request_invalid"),
        ([problem(401, "unauthenticated", "never")] * 2, "unauthenticated"),
        ([problem(403, "insufficient_scope", "never")], "insufficient_scope"),
        ([(403, {"Content-Type": "text/html"}, "<html>")], "http_403"),
        # A page that answers everything below it, as single-page applications have one.
        ([(200, {"Content-Type": "text/html"}, "<html>")], "http_200"),
    ],
)
async def test_a_session_that_is_refused_for_good_ends(
    answers: list[Answer], code: str, page: Page
) -> None:
    """Else it would ask for ever."""
    script = await scripted(page, *answers)
    assert [[code], "p"] == await page.evaluate(
        EVENTS, {"options": {"lastEventId": "p"}, "count": 1}
    )
    assert len(answers) == len(script.requests)


async def test_a_session_ends_with_its_signal(page: Page) -> None:
    """Also while it waits for the service to come back."""
    await scripted(page, *[problem(503, "overloaded", "same-key", Retry_After="60")] * 2)
    assert [] == await page.evaluate(
        """async () => {
            const got = [], stop = new AbortController();
            setTimeout(() => stop.abort(), 200);
            for await (const event of client.events({signal: stop.signal})) got.push(event);
            return got;
        }"""
    )


async def test_a_session_that_ends_while_a_token_is_asked_for_never_begins(page: Page) -> None:
    """Its signal had ended before anything listened to it."""
    script = await scripted(page, stream(event("p1", "a"), event("p2", "b")))
    got = await page.evaluate(
        """async ([url, token]) => {
            const got = [], stop = new AbortController();
            const askOnce = async () => {
                stop.abort();
                return token;
            };
            const client = new Stretto({url, owner: "alice", token: askOnce});
            for await (const event of client.events({signal: stop.signal})) got.push(event.id);
            return got;
        }""",
        [SERVICE, token_of("alice")],
    )
    assert ([], []) == (got, script.requests)


async def test_nothing_comes_after_the_signal(page: Page) -> None:
    """Not even what had come with the event before it."""
    await scripted(page, stream(event("p1", "a"), event("p2", "b")))
    assert [["a"], "p1"] == await page.evaluate(
        """async () => {
            const got = [], stop = new AbortController();
            const events = client.events({signal: stop.signal});
            for await (const event of events) {
                got.push(event.id);
                stop.abort();
            }
            return [got, events.lastEventId];
        }"""
    )


async def test_what_the_token_function_throws_ends_a_session(page: Page) -> None:
    """It is the page's to handle; the position is kept."""
    script = await scripted(page)
    assert [["no token"], "p"] == await page.evaluate(
        """async url => {
            const token = () => {
                throw new TypeError("no token");
            };
            const client = new Stretto({url, owner: "alice", token}), got = [];
            const events = client.events({lastEventId: "p"});
            try {
                for await (const event of events) got.push(event.id);
            } catch (error) {
                got.push(error.message);
            }
            return [got, events.lastEventId];
        }""",
        SERVICE,
    )
    assert [] == script.requests


@pytest.mark.asyncio(loop_scope="function")
async def test_a_live_session_survives_its_ends_and_its_silence(database_url: str) -> None:
    """With the real service, from a page of another origin."""
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(origin_with(FILES))
        streams = StreamSettings(origins=frozenset({origin}))
        live = await stack.enter_async_context(live_service(database_url, streams=streams))
        page = await opened(await stack.enter_async_context(chromium()), origin)
        await page.evaluate(START, [live.api.url, token_of("bob"), None])
        await page.evaluate(
            """() => {
                window.got = [], window.stop = new AbortController();
                window.events = client.events({signal: stop.signal, silence: 3000});
                (async () => {
                    for await (const event of events) got.push(event.subject);
                    window.isOver = true;
                })();
            }"""
        )
        await page.evaluate("events.ready")
        expected = [await live.create("first")]
        await live.tail_once()
        await page.wait_for_function("got.length === 1")
        for code in (CloseCode.EVENTS_MISSED, CloseCode.TOKEN_ENDED):
            for session in live.hub._all():
                session.close(code)
            expected.append(await live.create(f"behind-{int(code)}"))
            await until(lambda: len(live.hub) == 1)
            await live.tail_once()
            await page.wait_for_function("count => got.length === count", arg=len(expected))
        # Nothing is heard for longer than the page waits: it connects again by itself.
        (silent,) = live.hub._all()
        await until(lambda: silent not in live.hub._all())
        expected.append(await live.create("last"))
        await until(lambda: len(live.hub) == 1)
        await live.tail_once()
        await page.wait_for_function("count => got.length === count", arg=len(expected))
        assert expected == await page.evaluate("got")
        await page.evaluate("stop.abort()")
        await page.wait_for_function("window.isOver")
        await live.emptied()


@pytest.mark.asyncio(loop_scope="function")
async def test_every_snippet_of_its_readme_runs(database_url: str) -> None:
    """One after the other, as an application has them."""
    text = (CLIENT / "README.md").read_text()
    snippets = re.findall(r"```js\n(.*?)```", text, flags=re.DOTALL)
    assert len(snippets) >= 3
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(origin_with(FILES))
        streams = StreamSettings(origins=frozenset({origin}))
        api = await stack.enter_async_context(api_for(database_url, streams=streams))
        script = "\n".join(snippets)
        for said, meant in {
            '"stretto-client"': '"/stretto.js"',
            "https://chat.example": api.url,
        }.items():
            assert said in script
            script = script.replace(said, meant)
        page = await opened(await stack.enter_async_context(chromium()), origin)
        failed: list[str] = []
        page.on("pageerror", lambda error: failed.append(str(error)))
        await page.evaluate(
            """token => {
                Object.assign(window, {
                    session: {userId: "alice", token: async () => token},
                    draft: {id: "6f1c", name: "Team", members: ["bob"]},
                    button: document.createElement("button"),
                    seen: {shown: [], pending: [], applied: [], read: 0, explained: []},
                });
                Object.assign(window, {
                    show: group => seen.shown.push(group.groupId),
                    showPending: id => seen.pending.push(id),
                    explain: error => seen.explained.push(String(error)),
                    apply: event => seen.applied.push(event.subject),
                    readGroups: () => { seen.read += 1 },
                });
            }""",
            token_of("alice"),
        )
        await page.add_script_tag(content=script, type="module")
        await page.wait_for_function("seen.read === 1")
        await page.evaluate("button.click(); button.click()")
        await page.wait_for_function("seen.applied.length === 1 && seen.shown.length === 1")
        seen = await page.evaluate("seen")
        id_ = str(group_id("alice", "6f1c"))
        assert {
            "shown": [id_],
            "pending": [id_] * 2,
            "applied": [id_],
            "read": 1,
            "explained": [],
        } == seen
        assert [] == failed
