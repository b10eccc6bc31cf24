"""The OpenAPI document says what the code does; each proof has changes that it must notice."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from aiohttp.test_utils import make_mocked_request

from openapi import problems_and_examples, proofs
from openapi.document import PATH, REMOVED, canonical, changed, operations, read
from openapi.problems_and_examples import validator
from openapi.routes import ROUTES
from stretto.http.openapi import DOCUMENT
from stretto.http.routes import attempts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from openapi.document import Document

    Proof = Callable[[Document], Iterator[str]]

OPENAPI = read()
PROOFS: dict[str, Proof] = {
    name: proof
    for module in (proofs, problems_and_examples)
    for name, proof in vars(module).items()
    if getattr(proof, "__module__", "") == module.__name__
    and getattr(proof, "__annotations__", {}).get("return") == "Iterator[str]"
}
CREATE = "/paths/~1v1~1groups/post"
LIST = "/paths/~1v1~1groups/get"
EVENTS = "/paths/~1v1~1events/get"
PROBLEM = "content/application~1problem+json"
UNAVAILABLE = f"/components/responses/Unavailable/{PROBLEM}"
PENDING = f"/components/responses/AttemptPending/{PROBLEM}"
CREATED = f"{CREATE}/responses/201/content/application~1json/examples/created/value"
BODIES = f"{CREATE}/requestBody/content/application~1json/examples"
STREAM = f"{EVENTS}/responses/200/content/text~1event-stream/examples"
# Of each proof: places, and what must not stand there.
WRONG: dict[str, list[tuple[str, object]]] = {
    "it_is_openapi": [("/info/title", REMOVED), ("/openapi", "3.0.3")],
    "it_has_every_route_and_no_other": [
        (LIST, REMOVED),
        ("/paths/~1v2", {"get": {"responses": {}}}),
    ],
    "operations_answer_as_their_routes_do": [
        (f"{CREATE}/responses/409", REMOVED),
        (f"{LIST}/responses/404", {"$ref": "#/components/responses/NotFound"}),
        (f"{LIST}/responses/204", {"description": "Nothing."}),
        (f"{PENDING}/schema/properties/code/enum", ["attempt_pending", "origin_refused"]),
    ],
    "operations_read_what_their_routes_read": [
        (f"{CREATE}/parameters/0", REMOVED),
        (f"{EVENTS}/parameters/0/in", "header"),
        ("/components/parameters/GroupId/name", "id"),
    ],
    "queries_are_those_that_handlers_read": [
        ("/components/parameters/Limit/name", "size"),
        (f"{EVENTS}/parameters/0", REMOVED),
    ],
    "it_has_every_code_and_no_other": [
        (f"{UNAVAILABLE}/schema/properties/code/enum/0", "bored"),
        (f"{CREATE}/responses/422", REMOVED),
    ],
    "problems_are_narrowed_to_their_status": [
        (f"{PENDING}/schema/properties/status/const", 410),
        (f"{PENDING}/schema/properties/type/enum/0", "urn:stretto:problem:attempt_failed"),
        (f"{PENDING}/schema/properties/retry/enum/0", "new-key"),
        (f"{PENDING}/schema/properties/retry", REMOVED),
        (f"/components/responses/KeySpent/{PROBLEM}/schema/required", REMOVED),
        (f"{PENDING}/schema/required", ["failure"]),
        ("/components/schemas/Problem/required/0", REMOVED),
    ],
    "problems_say_what_their_codes_say": [
        ("/components/responses/AttemptPending/description", "Later."),
        (f"{UNAVAILABLE}/examples/overloaded", REMOVED),
        (f"{UNAVAILABLE}/examples/overloaded/value/code", "database_unavailable"),
        (f"{PENDING}/examples/attempt_pending/value/detail", "Later."),
        (f"{PENDING}/examples/attempt_pending/value/retry", "never"),
    ],
    "answers_name_their_header_fields": [
        ("/components/responses/AttemptPending/headers", REMOVED),
        ("/components/responses/MethodNotAllowed/headers", REMOVED),
        (f"{CREATE}/responses/201/headers/Location", REMOVED),
        ("/components/responses/KeyUnusable/headers", {"Retry-After": {}}),
    ],
    "limits_are_those_of_the_code": [
        ("/components/schemas/NewGroup/properties/name/maxLength", 63),
        ("/components/schemas/NewGroup/properties/members/maxItems", REMOVED),
        ("/components/schemas/Failure/properties/detail/maxLength", 1024),
        ("/components/schemas/SessionEnd/properties/code/enum/0", REMOVED),
        ("/components/parameters/Limit/schema/default", 20),
    ],
    "texts_name_the_limits": [
        (f"{CREATE}/requestBody/description", "At most 1 MB of JSON."),
        (f"{EVENTS}/description", "Close codes are numbers."),
    ],
    "operations_can_be_found": [
        (f"{LIST}/operationId", "createGroup"),
        (f"{LIST}/summary", ""),
        (f"{LIST}/tags/0", "lists"),
        (f"{LIST}/tags", []),
        ("/tags/0/description", ""),
    ],
    "only_versioned_routes_need_a_token": [
        (f"{LIST}/security", []),
        ("/paths/~1livez/get/security", [{"token": []}]),
    ],
    "every_component_is_used": [
        ("/components/headers/Retry-Before", {}),
        ("/components/schemas/Club", {}),
    ],
    "examples_fit_their_schemas": [
        (f"{CREATED}/group_id", "group-1"),
        (f"{CREATED}/conversation_id", REMOVED),
        ("/components/parameters/GroupId/example", "group-1"),
        (f"{UNAVAILABLE}/examples/overloaded/value/status", 500),
    ],
    "examples_of_requests_are_accepted": [
        (f"{BODIES}/least/value", {"title": "Team"}),
        (f"{CREATE}/parameters/0/examples/quoted/value", '"another"'),
    ],
    "examples_name_the_ids_that_follow_from_the_key": [
        (f"{CREATED}/group_id", "00000000-0000-0000-0000-000000000000"),
        (f"{CREATE}/parameters/0/examples/bare/value", "!"),
    ],
    "lines_of_the_stream_carry_what_the_schemas_say": [
        (f"{STREAM}/event/value", "id: 1.1-00000000\ndata: {}\n\n"),
        (f"{STREAM}/close/value", 'event: close\ndata: {"code": 1, "reason": ""}\n\n'),
    ],
}


@pytest.mark.parametrize("proof", PROOFS)
def test_the_document_agrees_with_the_code(proof: str) -> None:
    """A change of one is a change of the other."""
    assert [] == list(PROOFS[proof](OPENAPI))


@pytest.mark.parametrize(
    ("proof", "pointer", "value"),
    [(proof, *change) for proof, changes in WRONG.items() for change in changes],
)
def test_a_wrong_document_is_noticed(proof: str, pointer: str, value: object) -> None:
    """The twin: a proof that finds no error in anything is none."""
    assert [] != list(PROOFS[proof](changed(OPENAPI, pointer, value)))


def test_every_proof_has_its_twins() -> None:
    """And no list of changes is left over."""
    assert PROOFS.keys() == WRONG.keys()


def test_the_table_of_routes_has_every_route() -> None:
    """A new route needs a new line there."""
    assert operations(OPENAPI).keys() == ROUTES.keys()


def test_the_document_is_written_in_its_one_form() -> None:
    """`make format` writes it so: a diff shows what has changed, and nothing else."""
    assert PATH.read_text() == canonical(OPENAPI)


def test_another_form_is_not_the_one_form() -> None:
    """The twin: fields that are not sorted, and what would fit in a line in several."""
    backwards = dict(reversed(OPENAPI.items()))
    assert [*backwards] != sorted(backwards)
    assert canonical(OPENAPI) == canonical(backwards)
    assert '{"a": 1, "b": [2]}\n' == canonical({"b": [2], "a": 1})


def test_the_document_is_served_as_it_is() -> None:
    """Byte by byte."""
    assert PATH.read_bytes() == DOCUMENT


def test_a_problem_of_another_status_does_not_fit() -> None:
    """The narrowing does narrow."""
    answers = operations(OPENAPI)["POST /v1/groups"]["responses"]
    pending, failed = (answers[status]["content"] for status in ("409", "410"))
    (pending_schema, document), (failed_schema, failure) = (
        (content["schema"], next(iter(content["examples"].values()))["value"])
        for each in (pending, failed)
        for content in each.values()
    )
    assert validator(OPENAPI, pending_schema).is_valid(document)
    assert not validator(OPENAPI, failed_schema).is_valid(document)
    without_reason = {name: value for name, value in failure.items() if name != "failure"}
    assert not validator(OPENAPI, failed_schema).is_valid(without_reason)


@pytest.mark.parametrize("character", [chr(code) for code in range(0x21, 0x7F)])
async def test_every_key_reaches_its_route(character: str) -> None:
    """Whatever a key may contain, its attempt can be asked for, percent-encoded."""
    path = f"/v1/attempts/{quote(f'a{character}b', safe='')}"
    for target, handler in (
        (path, attempts.read_attempt),
        (f"{path}/history", attempts.read_history),
    ):
        match = await proofs.app().router.resolve(make_mocked_request("GET", target))
        assert (None, handler) == (match.http_exception, match.handler)
        assert match["key"] == f"a{character}b"
