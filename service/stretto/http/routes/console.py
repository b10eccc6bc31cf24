"""Routes of the console: a page that shows the guarantee at work, off unless it is asked for.

The page and its files are static: they hold no secret and load nothing from another host. With an
embedded database alone, a page on this very machine may be given a token for trials.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from ipaddress import ip_address
from typing import Final

from aiohttp import hdrs, web

from stretto.domain import UserId
from stretto.errors import NotFound, OriginRefused
from stretto.http.problems import COMMON_FIELDS
from stretto.http.service import json_response
from stretto.http.tokens.making import make_token
from stretto.http.tokens.settings import TokenSettings

# The user of `stretto serve`'s own example; an hour is enough to look around.
TRIAL_USER: Final = UserId("alice")
TOKEN_SECONDS: Final = 3600
_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    **COMMON_FIELDS,
    "Content-Security-Policy": _SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
    # Asked for each time, and answered 304 while it is the same: page and scripts are of one version.
    hdrs.CACHE_CONTROL: "no-cache",
}
# What a proxy adds to a request: then the peer's address is not the client's.
_PROXY_FIELDS: Final = re.compile(r"forwarded|x-forwarded-.*|x-real-ip|via", re.IGNORECASE)
# As a browser on this machine names it. Any other name may lead here for a foreign page's sake.
_OWN_HOST: Final = re.compile(r"(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::\d{1,5})?")


@dataclass(frozen=True, slots=True)
class _File:
    """A file as it is served, from memory."""

    body: bytes
    media_type: str
    tag: str

    @classmethod
    def of(cls, body: bytes, media_type: str) -> _File:
        """Return the file with its tag, which follows from its content."""
        return cls(body, media_type, f'"{sha256(body).hexdigest()[:32]}"')

    def answer(self, request: web.Request) -> web.Response:
        """Return the answer that has the file, or says that the client has it already."""
        headers = {**_HEADERS, hdrs.ETAG: self.tag}
        known = request.headers.get(hdrs.IF_NONE_MATCH, "")
        # A star is any version (RFC 9110, 13.1.2).
        if known == "*" or self.tag in known:
            return web.Response(status=304, headers=headers)
        return web.Response(
            body=self.body, content_type=self.media_type, charset="utf-8", headers=headers
        )


def _read(name: str) -> bytes:
    return (files("stretto.http") / "console" / name).read_bytes()


_PAGE: Final = _File.of(_read("index.html"), "text/html")
_OFFERING_PAGE: Final = _File.of(
    _PAGE.body.replace(b'id="offer" hidden', b'id="offer"'), "text/html"
)
_FILES: Final = {
    "console.css": _File.of(_read("console.css"), "text/css"),
    **{
        name: _File.of(_read(name), "text/javascript")
        for name in (
            "console.js",
            "answers.js",
            "events.js",
            "identity.js",
            "metrics.js",
            "plots.js",
        )
    },
}
_TOKENS: Final = web.AppKey("stretto.console.tokens", TokenSettings)


async def page(request: web.Request) -> web.Response:
    """`GET /`: the console."""
    return (_OFFERING_PAGE if _TOKENS in request.app else _PAGE).answer(request)


async def file(request: web.Request) -> web.Response:
    """`GET /console/{file}`: a file of the console."""
    found = _FILES.get(request.match_info["file"])
    if found is None:
        raise NotFound
    return found.answer(request)


# Beside those of the contract: the console may change in any version.
ROUTES: Final = (web.get("/", page), web.get("/console/{file}", file))


def offer_tokens(app: web.Application, tokens: TokenSettings) -> None:
    """Have the console offer a token for trials. Without this, there is no such route."""
    app[_TOKENS] = tokens
    app.router.add_post("/console/token", give_token)


async def give_token(request: web.Request) -> web.Response:
    """`POST /console/token`: a token for the console; raises `OriginRefused` for any other client."""
    if not _is_console_on_this_machine(request):
        raise OriginRefused(
            "Only the console in a browser on the service's own machine gets a token here, without"
            " a proxy in between. `stretto token alice` prints one."
        )
    tokens = request.app[_TOKENS]
    token = make_token(
        tokens.jwt_secret,
        TRIAL_USER,
        lifetime_seconds=TOKEN_SECONDS,
        audience=tokens.jwt_audience,
        issuer=tokens.jwt_issuer,
        # Where scopes are required, a token without any would be refused.
        scopes=tokens.trial_scopes,
    )
    response = json_response({"token": token})
    response.headers[hdrs.CACHE_CONTROL] = "no-store"
    return response


def _is_console_on_this_machine(request: web.Request) -> bool:
    """Whether it is sent by our own page, from this machine, and to a name of this machine.

    A browser sets `Origin`, `Sec-Fetch-Site` and `Host` itself. A foreign page is cross-site; one
    whose name was made to lead here (DNS rebinding) is of the same origin, but has that name.
    """
    headers = request.headers
    host = headers.get(hdrs.HOST, "")
    peer = request.transport and request.transport.get_extra_info("peername")
    return (
        # None of a client that has left, a path of a Unix socket.
        isinstance(peer, tuple)
        and ip_address(peer[0]).is_loopback
        and _OWN_HOST.fullmatch(host) is not None
        and headers.getall(hdrs.ORIGIN, []) == [f"http://{host}"]
        and headers.getall("Sec-Fetch-Site", []) == ["same-origin"]
        and not any(_PROXY_FIELDS.fullmatch(name) for name in headers)
    )
