from __future__ import annotations

import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import orjson
import pytest
from aiohttp import hdrs
from aiohttp.test_utils import make_mocked_request
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from stretto import errors
from stretto.documents import PROBLEM_CONTENT_TYPE, STATUS
from stretto.domain import NewGroup, UserId
from stretto.errors import StrettoError
from stretto.http.app import build_app
from stretto.http.openapi import OPENAPI
from stretto.http.problems import problem_response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from stretto.http.service import Service

ALICE = UserId("alice")
TOKEN = {"unauthenticated", "internal_error", "overloaded", "database_unavailable"}
OPERATIONS: dict[tuple[str, str], dict[str, Any]] = {
    (method.upper(), path): operation
    for path, item in OPENAPI["paths"].items()
    for method, operation in item.items()
}
CODES = {
    ("POST", "/v1/groups"): {
        *("key_missing", "key_invalid", "request_invalid", "body_too_large"),
        *("unsupported_media_type", "attempt_pending", "attempt_failed", "key_reused"),
        *("rate_limited", "hook_failed", *TOKEN),
    },
    ("GET", "/v1/groups"): {"request_invalid", *TOKEN},
    ("GET", "/v1/groups/{group_id}"): {"request_invalid", "not_found", *TOKEN},
    ("GET", "/v1/groups/{group_id}/members"): {"request_invalid", "not_found", *TOKEN},
    ("GET", "/v1/attempts/{key}"): {"key_invalid", "request_invalid", "not_found", *TOKEN},
    ("GET", "/v1/events"): {"request_invalid", "origin_refused", "rate_limited", *TOKEN},
    ("GET", "/livez"): {"internal_error"},
    ("GET", "/readyz"): {"overloaded", "database_unavailable", "internal_error"},
    ("GET", "/metrics"): {"internal_error"},
    ("GET", "/openapi.json"): {"internal_error"},
    ("GET", "/docs"): {"internal_error"},
    ("GET", "/docs/start.js"): {"internal_error"},
    ("GET", "/docs/{file}"): {"not_found", "internal_error"},
}


@asynccontextmanager
async def _never_opened() -> AsyncIterator[Service]:
    raise AssertionError
    yield


def routes() -> set[tuple[str, str]]:
    """Return every registered method and path; HEAD comes with GET and is told in words."""
    app = build_app(_never_opened)
    return {
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None and route.method != hdrs.METH_HEAD
    }


def validator(schema: dict[str, Any]) -> Any:
    """Return a validator that reads patterns as ECMA 262 does, and finds the components."""
    whole = {**schema, "components": OPENAPI["components"]}
    return OAS31Validator(whole, format_checker=OAS31Validator.FORMAT_CHECKER)


def problem_answers(responses: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return those that have a problem document, with their status."""
    for status, response in responses.items():
        if PROBLEM_CONTENT_TYPE in response.get("content", {}):
            yield int(status), response


def codes(responses: dict[str, Any]) -> set[str]:
    """Return the codes that stand in them."""
    return {
        code
        for _, response in problem_answers(responses)
        for code in response["content"][PROBLEM_CONTENT_TYPE]["schema"]["properties"]["code"][
            "enum"
        ]
    }


def described(node: object) -> Iterator[tuple[dict[str, Any], object]]:
    """Return every schema that has examples beside it, with each of them."""
    if isinstance(node, list):
        for child in node:
            yield from described(child)
    if not isinstance(node, dict):
        return
    if isinstance(node.get("schema"), dict):
        if "example" in node:
            yield node["schema"], node["example"]
        for each in node.get("examples", {}).values():
            yield node["schema"], each["value"]
    for child in node.values():
        yield from described(child)


def reusable() -> dict[str, Any]:
    """Return the answers that any path can give, by status."""
    answers = OPENAPI["components"]["responses"]
    return {"404": answers["NotFound"], "405": answers["MethodNotAllowed"]}


def test_the_document_is_valid_openapi() -> None:
    """Of version 3.1, as it is sent."""
    sent = orjson.loads(orjson.dumps(OPENAPI))
    assert list(OpenAPIV31SpecValidator(sent).iter_errors()) == []
    assert sent["openapi"].startswith("3.1.")


def test_every_route_stands_in_the_document_and_nothing_else_does() -> None:
    """What is not described cannot be relied on."""
    assert routes() == OPERATIONS.keys()


def test_every_code_stands_in_the_document_and_no_other_does() -> None:
    """The tree of errors and the document tell the same."""
    tree = {
        kind.code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, StrettoError)
    }
    told = codes(reusable()).union(*(codes(each["responses"]) for each in OPERATIONS.values()))
    assert tree == told
    assert tree == set(OPENAPI["components"]["schemas"]["Problem"]["properties"]["code"]["enum"])


@pytest.mark.parametrize("route", CODES, ids=" ".join)
def test_a_route_tells_the_codes_that_it_can_answer(route: tuple[str, str]) -> None:
    """Neither fewer nor more."""
    assert CODES[route] == codes(OPERATIONS[route]["responses"])


def test_the_table_of_codes_has_every_route() -> None:
    """A new route needs a new line above."""
    assert routes() == CODES.keys()


@pytest.mark.parametrize("route", CODES, ids=" ".join)
def test_a_problem_answer_is_narrowed_to_its_status(route: tuple[str, str]) -> None:
    """Its codes, types and advice are those of that status, each with an example."""
    for status, response in problem_answers({**OPERATIONS[route]["responses"], **reusable()}):
        content = response["content"][PROBLEM_CONTENT_TYPE]
        properties = content["schema"]["properties"]
        assert status == properties["status"]["const"]
        assert {status} == {STATUS[code] for code in properties["code"]["enum"]}
        assert len(properties["type"]["enum"]) == len(properties["code"]["enum"])
        assert len(properties["retry"]["enum"]) == 1
        assert properties["code"]["enum"] == list(content["examples"])


def test_a_problem_of_another_status_does_not_fit() -> None:
    """The narrowing does narrow."""
    responses = OPERATIONS["POST", "/v1/groups"]["responses"]
    pending = responses["409"]["content"][PROBLEM_CONTENT_TYPE]
    failed = responses["410"]["content"][PROBLEM_CONTENT_TYPE]
    document = pending["examples"]["attempt_pending"]["value"]
    assert validator(pending["schema"]).is_valid(document)
    assert not validator(failed["schema"]).is_valid(document)
    told_without_failure = {**failed["examples"]["attempt_failed"]["value"]}
    del told_without_failure["failure"]
    assert not validator(failed["schema"]).is_valid(told_without_failure)


@pytest.mark.parametrize(
    ("expected", "status"),
    [
        ({"Location", "Idempotency-Status", "Idempotent-Replayed"}, "201"),
        ({"WWW-Authenticate"}, "401"),
        ({"Retry-After"}, "409"),
        (set(), "410"),
        ({"Retry-After"}, "429"),
        (set(), "500"),
        ({"Retry-After"}, "503"),
    ],
)
def test_answers_tell_their_headers(expected: set[str], status: str) -> None:
    """Where a client must read them."""
    response = OPERATIONS["POST", "/v1/groups"]["responses"][status]
    assert expected == set(response.get("headers", {}))


def test_a_missing_token_and_a_wrong_method_are_told_with_their_headers() -> None:
    """As they are sent."""
    assert "WWW-Authenticate" in problem_response(errors.Unauthenticated()).headers
    assert {"Allow"} == OPENAPI["components"]["responses"]["MethodNotAllowed"]["headers"].keys()


def test_every_example_fits_its_schema() -> None:
    """Whoever copies one gets something that works."""
    found = list(described(OPENAPI))
    assert len(found) > 50
    wrong = [
        (value, e.message) for schema, value in found for e in validator(schema).iter_errors(value)
    ]
    assert wrong == []


def test_examples_of_requests_are_accepted() -> None:
    """By the parser itself."""
    operation = OPERATIONS["POST", "/v1/groups"]
    bodies = operation["requestBody"]["content"]["application/json"]["examples"]
    assert all(NewGroup.parse(ALICE, body["value"]) for body in bodies.values())


def test_operations_have_names_of_their_own() -> None:
    """Generated clients call them so."""
    names = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("route", CODES, ids=" ".join)
def test_only_the_versioned_routes_need_a_token(route: tuple[str, str]) -> None:
    """Health, metrics and the contract itself are open."""
    expected: list[object] = [{"token": []}] if route[1].startswith("/v1/") else []
    assert expected == OPERATIONS[route]["security"]


@pytest.mark.parametrize("route", CODES, ids=" ".join)
def test_every_operation_has_its_summary_tag_and_path_parameters(route: tuple[str, str]) -> None:
    """And its tag is described."""
    operation = OPERATIONS[route]
    in_path = {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"}
    assert operation["summary"]
    assert {*operation["tags"]} <= {tag["name"] for tag in OPENAPI["tags"]}
    assert set(re.findall(r"\{(\w+)\}", route[1])) == in_path


@pytest.mark.parametrize("character", [chr(code) for code in range(0x21, 0x7F)])
async def test_every_key_reaches_its_route(character: str) -> None:
    """Whatever a key may contain, its attempt can be asked for, percent-encoded."""
    path = f"/v1/attempts/{quote(f'a{character}b', safe='')}"
    request = make_mocked_request("GET", path)
    match = await build_app(_never_opened).router.resolve(request)
    assert match.http_exception is None
    assert match["key"] == f"a{character}b"
