"""What the tests demand of the document's problems and examples: proofs, as those in `proofs.py`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from openapi_schema_validator import OAS31Validator

from openapi.document import Document, operations, pointers, problems
from stretto import errors
from stretto.codec import PROBLEM_CONTENT_TYPE, STATUS, TYPE_PREFIX, problem
from stretto.domain import IdempotencyKey, NewGroup, UserId, event_id, group_id
from stretto.errors import (
    AttemptFailed,
    ChangeRefused,
    CreationRefused,
    Failure,
    FieldError,
    InternalError,
    ParameterError,
    RequestInvalid,
    StrettoError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

OWNER: Final = UserId("alice")
ERRORS: Final[dict[str, type[StrettoError]]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type)
    and issubclass(kind, StrettoError)
    # No route changes a group: that is an error of a host's calls alone.
    and kind not in (StrettoError, ChangeRefused)
}
# What every problem has.
_MEMBERS: Final = problem(InternalError()).keys()


def validator(document: Document, schema: Document) -> Any:
    """Return a validator that reads patterns as ECMA 262 does, and finds the components."""
    whole = {**schema, "components": document["components"]}
    return OAS31Validator(whole, format_checker=OAS31Validator.FORMAT_CHECKER)


def it_has_every_code_and_no_other(document: Document) -> Iterator[str]:
    """The tree of errors and the document say the same."""
    found = {code for _, _, _, codes in problems(document) for code in codes}
    yield from found ^ ERRORS.keys()


def problems_are_narrowed_to_their_status(document: Document) -> Iterator[str]:
    """Codes, types and advice are those of the status; what all of its codes have is required."""
    base = {*document["components"]["schemas"]["Problem"]["required"]}
    yield from base ^ _MEMBERS
    for name, status, answer, found in problems(document):
        content = answer["content"][PROBLEM_CONTENT_TYPE]
        codes = content["schema"]["properties"]["code"]["enum"]
        expected = {
            "code": {"enum": codes},
            "retry": {"enum": sorted({ERRORS[code].retry for code in found & ERRORS.keys()})},
            "status": {"const": int(status)},
            "type": {"enum": [TYPE_PREFIX + code for code in codes]},
        }
        if content["schema"]["properties"] != expected:
            yield f"{name} {status}: {content['schema']['properties']}"
        yield from (f"{name} {status}: {each}" for each in found if STATUS.get(each) != int(status))
        values = [each["value"].keys() for each in content["examples"].values()]
        extra = set.intersection(*map(set, values)) - _MEMBERS
        yield from (
            f"{name} {status}: {e}" for e in extra ^ {*content["schema"].get("required", ())}
        )


def problems_say_what_their_codes_say(document: Document) -> Iterator[str]:
    """Each code has its text, and for an example the very document that such an error becomes."""
    for name, status, answer, codes in problems(document):
        lines = {f"- `{code}`: {ERRORS[code].message}" for code in codes & ERRORS.keys()}
        place = f"{name} {status}"
        yield from (f"{place}: {each}" for each in lines ^ {*answer["description"].split("\n")})
        examples = answer["content"][PROBLEM_CONTENT_TYPE]["examples"]
        yield from (f"{place}: {code}" for code in examples.keys() ^ codes)
        for code, example in examples.items():
            if (
                problem(_error(example["value"])) != example["value"]
                or example["value"]["code"] != code
            ):
                yield f"{place}: {example['value']}"


def examples_fit_their_schemas(document: Document) -> Iterator[str]:
    """A copied one works."""
    for pointer, node in pointers(document):
        if "schema" in node:
            values = [each["value"] for each in node.get("examples", {}).values()]
            values += [node["example"]] if "example" in node else []
            for value in values:
                faults = validator(document, node["schema"]).iter_errors(value)
                yield from (f"{pointer}: {fault.message}" for fault in faults)


def examples_of_requests_are_accepted(document: Document) -> Iterator[str]:
    """By the parser itself; both spellings of the key are one key."""
    create = operations(document)["POST /v1/groups"]
    for name, example in create["requestBody"]["content"]["application/json"]["examples"].items():
        try:
            NewGroup.parse(OWNER, example["value"])
        except RequestInvalid as refusal:
            yield f"{name}: {refusal}"
    if len(_keys(document)) != 1:
        yield f"keys: {_keys(document)}"


def examples_name_the_ids_that_follow_from_the_key(document: Document) -> Iterator[str]:
    """As a client works them out before it sends anything."""
    group = group_id(OWNER, min(_keys(document)))
    for pointer, node in pointers(document):
        if "/examples/" in pointer:
            expected = {"group_id": group}
            if "data" in node:
                expected["id"] = event_id(UUID(node["data"]["conversation_id"]))
            for name in expected.keys() & node.keys():
                if node[name] != str(expected[name]):
                    yield f"{pointer}/{name}: {node[name]}"


def lines_of_the_stream_carry_what_the_schemas_say(document: Document) -> Iterator[str]:
    """Their data is JSON inside a text, which no schema describes."""
    stream = operations(document)["GET /v1/events"]["responses"]["200"]["content"]
    examples = stream["text/event-stream"]["examples"]
    for name, schema in (("event", "Event"), ("close", "SessionEnd")):
        data = json.loads(examples[name]["value"].partition("\ndata: ")[2])
        described = document["components"]["schemas"][schema]
        faults = validator(document, described).iter_errors(data)
        yield from (f"{name}: {fault.message}" for fault in faults)


def _keys(document: Document) -> set[str]:
    examples = operations(document)["POST /v1/groups"]["parameters"][0]["examples"]
    return {IdempotencyKey.parse(each["value"]) for each in examples.values()}


def _error(document: Document) -> StrettoError:
    """Return the error that such a document would come from."""
    kind = ERRORS.get(document["code"], StrettoError)
    if kind is RequestInvalid:
        faults = (
            FieldError(**each) if "pointer" in each else ParameterError(**each)
            for each in document["errors"]
        )
        return RequestInvalid([*faults])
    if issubclass(kind, (AttemptFailed, CreationRefused)):
        return kind(Failure(**document["failure"]))
    return kind()
