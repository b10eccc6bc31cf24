"""Who gets a token from the console, and what its files may contain."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files
from unittest.mock import Mock

import jwt
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from stretto.errors import OriginRefused
from stretto.http.routes import console
from stretto.http.tokens.settings import TokenSettings

SECRET = "a secret for tests that is long enough"
TOKENS = TokenSettings(jwt_secret=SECRET, jwt_audience="chat", jwt_issuer="stretto")
FOLDER = files("stretto.http") / "console"
NAMES = sorted(each.name for each in FOLDER.iterdir())
OWN = {
    "Host": "127.0.0.1:8080",
    "Origin": "http://127.0.0.1:8080",
    "Sec-Fetch-Site": "same-origin",
}
PEER = ("127.0.0.1", 50_000)


def asking(
    headers: dict[str, str], peer: object = PEER, tokens: TokenSettings = TOKENS
) -> web.Request:
    """Return a request for a token."""
    app = web.Application()
    console.offer_tokens(app, tokens)
    transport = Mock(get_extra_info=lambda name: peer if name == "peername" else None)
    return make_mocked_request(
        "POST", "/console/token", headers=headers, app=app, transport=transport
    )


def named(host: str) -> dict[str, str]:
    """Return what a browser sends from a page that it has loaded from this host."""
    return {**OWN, "Host": host, "Origin": f"http://{host}"}


@pytest.mark.parametrize(
    ("headers", "peer"),
    [
        (OWN, PEER),
        (OWN, ("127.9.9.9", 1)),
        (named("localhost:9000"), PEER),
        (named("localhost"), ("::1", 50_000, 0, 0)),
        (named("[::1]:8080"), ("::1", 50_000, 0, 0)),
    ],
)
async def test_the_console_on_this_machine_gets_a_token(
    headers: dict[str, str], peer: object
) -> None:
    """It ends within the hour, and no cache keeps it."""
    response = await console.give_token(asking(headers, peer))
    assert isinstance(response.body, bytes)
    token = orjson.loads(response.body)["token"]
    claims = jwt.decode(token, SECRET, ["HS256"], audience="chat", issuer="stretto")
    assert ("alice", console.TOKEN_SECONDS) == (claims["sub"], claims["exp"] - claims["iat"])
    assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("requires", [True, False])
async def test_the_consoles_token_has_scopes_where_these_are_required(requires: bool) -> None:
    """The same as the one that `stretto token` prints: the service would refuse one without."""
    tokens = replace(TOKENS, jwt_require_scopes=requires)
    response = await console.give_token(asking(OWN, tokens=tokens))
    assert isinstance(response.body, bytes)
    token = orjson.loads(response.body)["token"]
    claims = jwt.decode(token, SECRET, ["HS256"], audience="chat", issuer="stretto")
    assert {*tokens.trial_scopes} == {*claims.get("scope", "").split()}
    assert requires is bool(tokens.trial_scopes)


@pytest.mark.parametrize("peer", [("192.0.2.7", 1), ("::ffff:192.0.2.7", 1, 0, 0), "", None])
async def test_a_client_of_another_machine_gets_none(peer: object) -> None:
    """Nor does one whose address is not known; what its header fields say does not count."""
    with pytest.raises(OriginRefused):
        await console.give_token(asking(OWN, peer))


@pytest.mark.parametrize(
    "host",
    [
        "rebound.example:8080",
        "localhost.example",
        "127.0.0.1.example",
        "127.0.0.1:8080@rebound.example",
        "192.0.2.7:8080",
        "0.0.0.0:8080",
        "",
    ],
)
async def test_a_foreign_name_that_leads_to_this_machine_gets_none(host: str) -> None:
    """A page whose name was made to resolve to 127.0.0.1 is of the same origin as the service."""
    with pytest.raises(OriginRefused):
        await console.give_token(asking(named(host)))


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://foreign.example"},
        {"Origin": "http://localhost:8080"},
        {"Origin": "https://127.0.0.1:8080"},
        {"Origin": "null"},
        {"Origin": None},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": None},
    ],
)
async def test_any_other_page_gets_none(headers: dict[str, str | None]) -> None:
    """Nor does a client that is no browser; `same-site` is another port of this machine."""
    sent = {name: value for name, value in {**OWN, **headers}.items() if value is not None}
    with pytest.raises(OriginRefused):
        await console.give_token(asking(sent))


@pytest.mark.parametrize(
    "field",
    ["Forwarded", "X-Forwarded-For", "x-forwarded-host", "X-Forwarded-Proto", "X-Real-IP", "Via"],
)
async def test_a_request_through_a_proxy_gets_none(field: str) -> None:
    """The peer's address is the proxy's then."""
    with pytest.raises(OriginRefused):
        await console.give_token(asking({**OWN, field: "x"}))


def test_every_file_of_the_folder_is_served() -> None:
    """And no other."""
    assert [*NAMES] == sorted(["index.html", *console._FILES])


@pytest.mark.parametrize("name", NAMES)
def test_a_file_needs_nothing_that_the_policy_forbids(name: str) -> None:
    """No inline script or style, no other host, no HTML out of text; its lines can be read."""
    text = (FOLDER / name).read_text()
    assert [] == re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
    assert [] == re.findall(r"\sstyle=|\son[a-z]+=|javascript:|<style|@import", text)
    scripts = re.findall(r"<script[^>]*>([^<]*)", text)
    assert [""] * len(scripts) == scripts
    # SVG's namespace is a name: nothing is loaded from there.
    hosts = {*re.findall(r"(?<=[\"'`(])(?:https?|wss?)?:?//[\w.]+", text)}
    assert hosts <= {"http://www.w3.org"}
    lines = [line for line in text.splitlines() if "data:image" not in line]
    assert max(map(len, lines)) <= 100
    if name.endswith(".js"):
        assert len(lines) < 300


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith((".html", ".js"))])
def test_what_a_file_names_is_there(name: str) -> None:
    """Relatively, so that it is found below a host's prefix too."""
    text = (FOLDER / name).read_text()
    local = re.findall(r'(?:src|href)="console/([^"]+)"|from "\./([^"]+)"', text)
    assert {first or second for first, second in local} <= {*NAMES}
    assert [] == re.findall(r'(?:src|href|fetch\(|import\()=?["`]/', text)


def test_a_page_offers_a_token_only_where_there_is_a_route_for_it() -> None:
    """The button is hidden in the file."""
    assert b'id="offer" hidden' in console._PAGE.body
    assert b'id="offer" hidden' not in console._OFFERING_PAGE.body
    assert b'id="offer"' in console._OFFERING_PAGE.body
