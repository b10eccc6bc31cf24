"""What the tests demand of the OpenAPI document: each proof returns what is wrong with one."""

from __future__ import annotations

import inspect
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from aiohttp import hdrs
from openapi_spec_validator import OpenAPIV31SpecValidator

from openapi.document import Document, at, operations, pointers, problems
from openapi.limits import LIMITS, TEXTS
from openapi.routes import ROUTES
from stretto.http.app import build_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aiohttp import web

    from stretto.http.service import Service

# Of the answers with such a status.
FIELDS: Final = {
    "201": {"Location", "Idempotency-Status", "Idempotent-Replayed"},
    "401": {"WWW-Authenticate"},
    "403": {"WWW-Authenticate"},
    "405": {"Allow"},
    "409": {"Retry-After"},
    "426": {"Upgrade", "Sec-WebSocket-Version"},
    "429": {"Retry-After"},
    "503": {"Retry-After"},
}
# Any path may answer the first; the second is sent as a line of a stream.
_UNREFERENCED: Final = {
    "/responses/HeadTooLarge",
    "/responses/MethodNotAllowed",
    "/responses/RequestTooSlow",
    "/schemas/SessionEnd",
}
_LIMITING: Final = {
    *("minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum"),
    *("default", "enum", "const"),
}
# What is no schema, and the schemas of problems, which have a proof of their own.
_NO_LIMITS: Final = re.compile(r"/properties$|/examples?(/|$)|^/components/responses/\w+/content/")


def app() -> web.Application:
    """Return the application, which is not started."""
    return build_app(_never_opened)


def app_routes() -> dict[str, web.AbstractRoute]:
    """Return every registered route; HEAD comes with GET, as the document says in words."""
    return {
        f"{route.method} {route.resource.canonical}": route
        for route in app().router.routes()
        if route.resource is not None and route.method != hdrs.METH_HEAD
    }


@asynccontextmanager
async def _never_opened() -> AsyncIterator[Service]:
    raise AssertionError
    yield


def it_is_openapi(document: Document) -> Iterator[str]:
    """Of version 3.1."""
    yield from (fault.message for fault in OpenAPIV31SpecValidator(document).iter_errors())
    if not document["openapi"].startswith("3.1."):
        yield document["openapi"]


def it_has_every_route_and_no_other(document: Document) -> Iterator[str]:
    """What is not described cannot be relied on."""
    yield from operations(document).keys() ^ app_routes().keys()


def operations_answer_as_their_routes_do(document: Document) -> Iterator[str]:
    """With every success and every code, neither fewer nor more."""
    found: dict[str, set[str]] = {
        name: {*operation["responses"]} for name, operation in operations(document).items()
    }
    for name, status, _, codes in problems(document):
        if name in found:
            found[name] = found[name] - {status} | codes
    for name, answers in found.items():
        expected = {*ROUTES[name].successes.split(), *ROUTES[name].codes.split()}
        yield from (f"{name}: {each}" for each in answers ^ expected)


def operations_read_what_their_routes_read(document: Document) -> Iterator[str]:
    """Parameters of the path and the query, and header fields."""
    for name, operation in operations(document).items():
        expected = {("path", part) for part in re.findall(r"{(\w+)}", name)}
        expected |= {("query", part) for part in ROUTES[name].query.split()}
        expected |= {("header", part) for part in ROUTES[name].fields.split()}
        found = {(each["in"], each["name"]) for each in operation["parameters"]}
        yield from (f"{name}: {part} in the {where}" for where, part in found ^ expected)


def queries_are_those_that_handlers_read(document: Document) -> Iterator[str]:
    """A parameter that the handler does not know is refused: it must not be offered."""
    routes = app_routes()
    for name, operation in operations(document).items():
        source = inspect.getsource(routes[name].handler)
        read = re.search(r'read_query\(request((?:, "\w+")*)\)', source)
        known = set(re.findall(r"\w+", read[1])) if read else set()
        offered = {each["name"] for each in operation["parameters"] if each["in"] == "query"}
        yield from (f"{name}: {each}" for each in known ^ offered)


def answers_name_their_header_fields(document: Document) -> Iterator[str]:
    """Where a client must read them."""
    everything = [operation["responses"] for operation in operations(document).values()]
    everything += [{status: answer} for _, status, answer, _ in problems(document)]
    for answers in everything:
        for status, answer in answers.items():
            expected = FIELDS.get(status, set())
            yield from (f"{status}: {each}" for each in expected ^ {*answer.get("headers", {})})


def limits_are_those_of_the_code(document: Document) -> Iterator[str]:
    """Every bound and every closed list of values, each with its line in the table."""
    found = {
        pointer: limits
        for pointer, node in pointers(document)
        if not _NO_LIMITS.search(pointer)
        and (limits := {name: value for name, value in node.items() if name in _LIMITING})
    }
    yield from (each for each in found | LIMITS if found.get(each) != LIMITS.get(each))


def texts_name_the_limits(document: Document) -> Iterator[str]:
    """Where no schema can."""
    for pointer, parts in TEXTS.items():
        text = at(document, pointer) + "\n"
        yield from (f"{pointer}: {part}" for part in parts if part not in text)


def operations_can_be_found(document: Document) -> Iterator[str]:
    """Each has a name of its own, which generated clients use, a summary, and a tag with a text."""
    ids = [operation["operationId"] for operation in operations(document).values()]
    yield from (each for each in ids if ids.count(each) > 1)
    tags = {tag["name"] for tag in document["tags"] if tag["description"]}
    for name, operation in operations(document).items():
        if not operation["summary"] or len(operation["tags"]) != 1:
            yield name
        yield from (f"{name}: {tag}" for tag in {*operation["tags"]} - tags)


def only_versioned_routes_need_a_token(document: Document) -> Iterator[str]:
    """Health, metrics and the contract itself are open."""
    for name, operation in operations(document).items():
        expected: list[object] = [{"token": []}] if " /v1/" in name else []
        if operation["security"] != expected:
            yield name


def every_component_is_used(document: Document) -> Iterator[str]:
    """What nothing refers to would rot."""
    references = {node["$ref"] for _, node in pointers(document) if "$ref" in node}
    for kind in ("headers", "parameters", "responses", "schemas"):
        there = {f"/{kind}/{name}" for name in document["components"][kind]} - _UNREFERENCED
        yield from (each for each in there if f"#/components{each}" not in references)
