"""What routes answer, as OpenAPI responses: successes with their headers, and problems.

A problem's response follows from the errors themselves: status, code, advice, text and example.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from stretto.documents import PROBLEM_CONTENT_TYPE, STATUS, TYPE_PREFIX, problem
from stretto.protocol.attempt import AnswerStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stretto.errors import StrettoError

Document = dict[str, Any]


def _header(description: str, *, is_required: bool = True, **schema: Any) -> Document:
    return {"description": description, "required": is_required, "schema": schema}


_HEADERS: Final[Mapping[str, Document]] = {
    "Location": _header("Where the group is read.", type="string", format="uri-reference"),
    "Idempotency-Status": _header(
        "How this answer came about: `created`, or `recovered` from a leader that had gone, by this"
        " very request; `replayed` or `healed` from what another request had written.",
        enum=list(AnswerStatus),
    ),
    "Idempotent-Replayed": _header(
        "Present unless this request's own write created the group.",
        is_required=False,
        const="true",
    ),
    "Retry-After": _header("Seconds to wait.", type="integer", minimum=1),
    "WWW-Authenticate": _header("The scheme.", const="Bearer"),
    "Allow": _header("The methods that there are, separated by commas.", type="string"),
}
_PROBLEM_HEADERS: Final[Mapping[int, str]] = {
    401: "WWW-Authenticate",
    405: "Allow",
    409: "Retry-After",
    429: "Retry-After",
    503: "Retry-After",
}


def reference(schema: str) -> Document:
    """Return a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{schema}"}


def named(examples: Mapping[str, object]) -> Document:
    """Return examples by their names, as OpenAPI has them."""
    return {name: {"value": value} for name, value in examples.items()}


def success(
    description: str, schema: str, examples: Mapping[str, Document], *headers: str
) -> Document:
    """Return the response that has a JSON document, with examples by their name."""
    answer: Document = {
        "description": description,
        "content": {
            "application/json": {
                "schema": reference(schema),
                "examples": named(examples),
            }
        },
    }
    if headers:
        answer["headers"] = {name: _HEADERS[name] for name in headers}
    return answer


def file(description: str, media_type: str, **schema: Any) -> Document:
    """Return the response that has a file."""
    return {"description": description, "content": {media_type: {"schema": schema}}}


def problems(errors: Sequence[StrettoError]) -> dict[str, Document]:
    """Return the responses that tell such errors, by status; each error becomes an example."""
    of_status: dict[int, list[StrettoError]] = {}
    for error in errors:
        of_status.setdefault(STATUS[error.code], []).append(error)
    return {str(status): _problem(status, of_status[status]) for status in sorted(of_status)}


def _problem(status: int, errors: Sequence[StrettoError]) -> Document:
    documents = {error.code: problem(error) for error in errors}
    first, *others = documents.values()
    answer: Document = {
        "description": "\n".join(
            f"- `{error.code}`: {inspect.cleandoc(type(error).__doc__ or '')}" for error in errors
        ),
        "content": {
            PROBLEM_CONTENT_TYPE: {
                "schema": {
                    "allOf": [reference("Problem")],
                    "properties": {
                        "type": {"enum": [TYPE_PREFIX + code for code in documents]},
                        "status": {"const": status},
                        "code": {"enum": list(documents)},
                        "retry": {"enum": sorted({error.retry for error in errors})},
                    },
                    # What all of them tell, `errors` and `failure` among it.
                    "required": [name for name in first if all(name in other for other in others)],
                },
                "examples": named(documents),
            }
        },
    }
    if status in _PROBLEM_HEADERS:
        name = _PROBLEM_HEADERS[status]
        answer["headers"] = {name: _HEADERS[name]}
    return answer
