from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from stretto import errors
from stretto.codec import PROBLEM_CONTENT_TYPE, STATUS, TYPE_PREFIX, problem
from stretto.creation.flight import public_error
from stretto.errors import (
    AttemptFailed,
    AttemptPending,
    BodyTooLarge,
    ChangeRefused,
    CreationRefused,
    Failure,
    FieldError,
    KeyMissing,
    Overloaded,
    RequestInvalid,
    StrettoError,
    Unauthenticated,
)
from stretto.http.app import build_app
from stretto.http.cors import Cors
from stretto.http.problems import problem_of, problem_of_exception, problem_response
from stretto.http.service import SERVICE, answer_problems
from stretto.store_errors import Locked, Unreachable
from stretto.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.http.service import Service

MEMBERS = {"type", "title", "status", "detail", "code", "retry"}
SAMPLES: list[StrettoError] = [
    RequestInvalid([FieldError("/name", "is required")])
    if kind is RequestInvalid
    else kind(Failure("quota", "No more groups."))
    if issubclass(kind, (AttemptFailed, ChangeRefused, CreationRefused))
    else kind()
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, StrettoError)
]


def document_of(response: web.StreamResponse) -> dict[str, Any]:
    """Return the problem document that an answer has."""
    assert isinstance(response, web.Response)
    assert isinstance(response.body, bytes)
    assert response.content_type == PROBLEM_CONTENT_TYPE
    document: dict[str, Any] = orjson.loads(response.body)
    assert response.status == document["status"]
    return document


def test_every_code_of_the_tree_has_a_status_and_no_other_has() -> None:
    """An error without a status would crash the wrapper that answers it."""
    assert {error.code for error in SAMPLES} == STATUS.keys()


def test_one_status_asks_for_one_recovery() -> None:
    """Clients that know nothing but the status do the right thing."""
    advice: dict[int, set[str]] = {}
    for error in SAMPLES:
        advice.setdefault(STATUS[error.code], set()).add(error.retry)
    assert {1} == {len(retries) for retries in advice.values()}


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_a_problem_has_all_its_members(error: StrettoError) -> None:
    """Those of RFC 9457 and our own two; more only where there is more to say."""
    document = document_of(problem_response(error))
    assert document.keys() >= MEMBERS
    assert document.keys() - MEMBERS <= {"errors", "failure"}
    assert TYPE_PREFIX + error.code == document["type"]
    assert STATUS[error.code] == document["status"]
    assert error.code == document["code"]
    assert error.retry == document["retry"]
    assert all(isinstance(document[name], str) for name in MEMBERS - {"status"})
    assert document["title"]
    assert document["detail"]


def test_the_detail_is_the_errors_message_unless_there_is_more_to_say() -> None:
    """One place for each text, from which `help()` has it too."""
    assert KeyMissing.message == KeyMissing.__doc__ == problem(KeyMissing())["detail"]
    assert problem(KeyMissing("Where is it?"))["detail"] == "Where is it?"


def test_every_error_has_a_message_of_its_own() -> None:
    """One that forgets it would be answered as its base class is."""
    assert [] == [kind for kind in StrettoError.__subclasses__() if "message" not in vars(kind)]


def test_an_invalid_request_is_reported_with_every_error() -> None:
    """By place, and once more in words for people."""
    faults = [FieldError("/name", "is required"), FieldError("", "must be an object")]
    document = document_of(problem_response(RequestInvalid(faults)))
    assert document["errors"] == [
        {"pointer": "/name", "detail": "is required"},
        {"pointer": "", "detail": "must be an object"},
    ]
    assert document["detail"] == "/name: is required; body: must be an object"


def test_a_failed_attempt_is_reported_with_its_failure() -> None:
    """The client learns why before it takes a new key."""
    document = document_of(problem_response(AttemptFailed(Failure("quota", "No more groups."))))
    assert document["failure"] == {"code": "quota", "detail": "No more groups."}


@pytest.mark.parametrize("kind", [AttemptPending, Overloaded])
def test_how_long_to_wait_stands_in_a_header(kind: type[StrettoError]) -> None:
    """In whole seconds (RFC 9110, 10.2.3)."""
    assert problem_response(kind(retry_after_seconds=3)).headers["Retry-After"] == "3"


def test_an_error_that_needs_no_wait_has_no_such_header() -> None:
    """A client that honours it must not be held up by an error of its own."""
    assert "Retry-After" not in problem_response(KeyMissing()).headers


def test_only_a_missing_token_names_the_scheme() -> None:
    """As RFC 9110, 11.6.1 wants it of a 401, and of nothing else."""
    assert problem_response(Unauthenticated()).headers["WWW-Authenticate"] == "Bearer"
    assert "WWW-Authenticate" not in problem_response(KeyMissing()).headers


@pytest.mark.parametrize(
    ("expected", "exception"),
    [
        ("not_found", web.HTTPNotFound()),
        ("method_not_allowed", web.HTTPMethodNotAllowed("PUT", ["POST", "GET"])),
        ("body_too_large", web.HTTPRequestEntityTooLarge(max_size=1, actual_size=2)),
        ("unsupported_media_type", web.HTTPUnsupportedMediaType()),
        ("request_invalid", web.HTTPBadRequest()),
        ("request_invalid", web.HTTPExpectationFailed()),
        ("internal_error", web.HTTPInternalServerError()),
        ("internal_error", web.HTTPBadGateway()),
    ],
)
def test_aiohttps_own_errors_become_problems(expected: str, exception: web.HTTPException) -> None:
    """No client ever sees a bare error page."""
    assert expected == document_of(problem_of_exception(exception))["code"]


def test_a_wrong_method_still_gets_the_right_ones() -> None:
    """RFC 9110, 15.5.6 demands the header."""
    exception = web.HTTPMethodNotAllowed("PUT", ["POST", "GET"])
    assert problem_of_exception(exception).headers["Allow"] == "GET, POST"


def test_a_redirect_stays_what_it_is() -> None:
    """It is no error."""
    redirect = web.HTTPFound("/elsewhere")
    assert redirect is problem_of_exception(redirect)


def _idle() -> Service:
    parts = SimpleNamespace(metrics=Metrics(), tracing=None, cors=Cors(frozenset()))
    return cast("Service", parts)


@asynccontextmanager
async def idle_service() -> AsyncIterator[Service]:
    """Open a service that counts, and can do nothing else."""
    yield _idle()


async def test_an_unknown_path_is_a_problem() -> None:
    """Over HTTP, through the routes that there are."""
    async with TestClient(TestServer(build_app(idle_service))) as client:
        response = await client.get("/v2/groups")
        assert (response.status, response.content_type) == (404, PROBLEM_CONTENT_TYPE)
        assert orjson.loads(await response.read())["code"] == "not_found"


async def test_an_unknown_method_is_a_problem_with_the_known_ones() -> None:
    """Over HTTP, through the routes that there are."""
    async with TestClient(TestServer(build_app(idle_service))) as client:
        response = await client.delete("/v1/groups")
        assert (response.status, response.content_type) == (405, PROBLEM_CONTENT_TYPE)
        assert orjson.loads(await response.read())["code"] == "method_not_allowed"
        assert response.headers["Allow"] == "GET, HEAD, POST"


@pytest.mark.parametrize(
    ("expected", "raised"),
    [
        ((413, "body_too_large", None), BodyTooLarge()),
        ((503, "overloaded", "2"), Overloaded(retry_after_seconds=2)),
        ((503, "database_unavailable", "1"), Unreachable("password of a user")),
        # Of the history that a session has missed.
        ((503, "database_unavailable", "1"), Locked("lock timeout")),
        ((500, "internal_error", None), ZeroDivisionError("password of a user")),
    ],
)
async def test_whatever_a_handler_raises_is_a_problem(
    expected: tuple[int, str, str | None], raised: Exception
) -> None:
    """And an unforeseen error shows nothing of its insides; a host has the same answer for it."""

    async def handler(_: web.Request) -> web.Response:
        raise raised

    app = web.Application(middlewares=[answer_problems])
    app[SERVICE] = _idle()
    app.router.add_get("/", handler)
    async with TestClient(TestServer(app)) as client:
        response = await client.get("/")
        body = await response.read()
        code = orjson.loads(body)["code"]
        assert expected == (response.status, code, response.headers.get("Retry-After"))
        assert b"password" not in body
        own = problem_of(raised)
        assert (own.status, own.body) == (response.status, body)
        assert own.headers.items() <= dict(response.headers).items()


@pytest.mark.parametrize("raised", [Unreachable("gone"), public_error(Unreachable("gone"))])
async def test_the_log_says_why_the_database_could_not_do_it(
    raised: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a read, and of a creation, whose flight has made the error for its client."""
    app = web.Application(middlewares=[answer_problems])
    app[SERVICE] = _idle()

    async def handler(_: web.Request) -> web.Response:
        raise raised

    app.router.add_get("/", handler)
    async with TestClient(TestServer(app)) as client:
        assert 503 == (await client.get("/")).status
    (record,) = [each for each in caplog.records if each.name == "stretto"]
    assert ("request.database_unavailable", "gone") == (
        record.__dict__["event"],
        record.__dict__["cause"],
    )
