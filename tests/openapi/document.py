"""The OpenAPI document as the tests read it: its parts, its one written form, changed copies."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import stretto
from stretto.codec import PROBLEM_CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator

Document = dict[str, Any]

PATH: Final = Path(stretto.__file__).parent / "http/openapi.json"
LINE_CHARACTERS_MAX: Final = 100
REMOVED: Final = object()


def read() -> Document:
    """Return the document as it is in the package."""
    document: Document = json.loads(PATH.read_bytes())
    return document


def canonical(document: Document) -> str:
    """Return the one way to write the document: names sorted, a line for whatever fits in one.

    A change of one value changes one line, and no two people order the fields in two ways.
    """
    return _written(document, indent=0, column=0) + "\n"


def _shown(line: str) -> str:
    """Return JSON in which every character that would not show in the file is escaped."""
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line)


def _written(value: object, *, indent: int, column: int) -> str:
    line = _shown(json.dumps(value, ensure_ascii=False, sort_keys=True))
    # One character more is for the comma.
    if not isinstance(value, dict | list) or column + len(line) < LINE_CHARACTERS_MAX:
        return line
    margin = " " * (indent + 2)
    if isinstance(value, dict):
        heads = [f"{margin}{json.dumps(name)}: " for name in sorted(value)]
        values = [value[name] for name in sorted(value)]
    else:
        heads, values = [margin] * len(value), value
    lines = (
        head + _written(each, indent=indent + 2, column=len(head))
        for head, each in zip(heads, values, strict=True)
    )
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return "\n".join((opening, ",\n".join(lines), " " * indent + closing))


def at(document: Document, pointer: str) -> Any:
    """Return what stands at a JSON pointer (RFC 6901)."""
    node: Any = document
    for part in _parts(pointer):
        node = node[int(part) if isinstance(node, list) else part]
    return node


def changed(document: Document, pointer: str, value: object = REMOVED) -> Document:
    """Return a copy with another value at the pointer, or with none."""
    copy = deepcopy(document)
    *parents, last = _parts(pointer)
    node = at(copy, "".join(f"/{_escaped(part)}" for part in parents))
    key = int(last) if isinstance(node, list) else last
    if value is REMOVED:
        del node[key]
    else:
        node[key] = value
    return copy


def pointers(node: object, pointer: str = "") -> Iterator[tuple[str, Document]]:
    """Return every object in the document with its place."""
    children: Any = ()
    if isinstance(node, dict):
        yield pointer, node
        children = node.items()
    elif isinstance(node, list):
        children = enumerate(node)
    for name, child in children:
        yield from pointers(child, f"{pointer}/{_escaped(str(name))}")


def followed(document: Document, node: Document) -> Document:
    """Return what a reference stands for; anything else as it is."""
    while "$ref" in node:
        node = at(document, node["$ref"].removeprefix("#"))
    return node


def operations(document: Document) -> dict[str, Document]:
    """Return every operation as `GET /path`, its answers and parameters without references."""
    return {
        f"{method.upper()} {path}": {
            **operation,
            "parameters": [followed(document, each) for each in operation.get("parameters", [])],
            "responses": {
                status: followed(document, answer)
                for status, answer in operation["responses"].items()
            },
        }
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }


def problems(document: Document) -> Iterator[tuple[str, str, Document, set[str]]]:
    """Return every answer that is a problem document: its operation, status, itself, its codes.

    Those that any path can give belong to no operation.
    """
    components = document["components"]["responses"]
    of_any = {
        "404": components["NotFound"],
        "405": components["MethodNotAllowed"],
        "408": components["RequestTooSlow"],
        "431": components["HeadTooLarge"],
    }
    answers = {name: operation["responses"] for name, operation in operations(document).items()}
    for name, of_operation in {"any path": of_any, **answers}.items():
        for status, answer in of_operation.items():
            if PROBLEM_CONTENT_TYPE in answer.get("content", {}):
                schema = answer["content"][PROBLEM_CONTENT_TYPE]["schema"]
                yield name, status, answer, {*schema["properties"]["code"]["enum"]}


def _parts(pointer: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _escaped(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")
