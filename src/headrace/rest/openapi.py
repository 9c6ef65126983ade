"""The OpenAPI 3.1 document of the REST API, written from the table that its requests are routed by (`wire/api.py`)."""

from __future__ import annotations

import inspect
import json
from typing import Any, get_type_hints

import msgspec

from headrace.rest import problems
from headrace.wire.api import (
    BYTES,
    DOCUMENT,
    OPERATIONS,
    SUM_HEADER,
    SUMS_HEADER,
    SUMS_WORD,
    Operation,
    Problem,
    Value,
)

_ABOUT = """The API of a Headrace node: what the `headrace` command does, and the files of the namespace, by HTTP.
Errors are told as RFC 9457 says, with a `code` of docs/errors.md. How to switch it on and who may ask: docs/rest.md."""
_HEADERS_OF_CONTENT = {
    "ETag": ("The version.", {"type": "string"}),
    SUMS_HEADER: (
        f"Where the request has `{SUMS_HEADER}: {SUMS_WORD}`: xxh3-64 of each piece of the range that lies within one "
        "block of 1 MiB, 16 hex digits each, with commas between.",
        {"type": "string"},
    ),
}
_ASKED_OF_CONTENT = {
    "Range": ("One range of bytes.", {"type": "string"}),
    "If-Match": ("Only this version; else 412.", {"type": "string"}),
    SUMS_HEADER: ("Checksums are wanted.", {"type": "string"}),
}
_SENT_WITH_CONTENT = {
    SUM_HEADER: (
        "xxh3-64 of the body, 16 hex digits; a body that does not match is not kept.",
        {"type": "string"},
    ),
}


def document() -> dict[str, Any]:
    """Version of the API, not of the program: the page is the same on every node that speaks v1."""
    types = [
        one for operation in OPERATIONS for one in (operation.body, operation.answer) if isinstance(one, type)
    ]
    _, schemas = msgspec.json.schema_components(
        [*dict.fromkeys(types), Problem], ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": "1",
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def text() -> str:
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def _operation(one: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.summary,
        "parameters": _parameters(one),
        "responses": {**_answers(one), "default": _problem()},
        "security": [] if one.open else [{"token": []}],
    }
    if one.body is not None:
        found["requestBody"] = {"required": one.body != BYTES, "content": _content(one.body)}
    if not found["parameters"]:
        del found["parameters"]
    return found


def _parameters(one: Operation) -> list[dict[str, Any]]:
    found = []
    hints = get_type_hints(one.query, include_extras=True)
    for field in msgspec.structs.fields(one.query):
        schema = msgspec.json.schema(hints[field.name])
        about = schema.pop("description", "")
        examples = schema.pop("examples", None)
        if not field.required:
            schema["default"] = field.default
        row = {
            "name": field.name,
            "in": "path" if field.name in one.path_names else "query",
            "required": field.required,
            "description": about,
            "schema": schema,
        }
        found.append({**row, "example": examples[0]} if examples else row)
    if one.answer == BYTES:
        found += [_header(name, *rest, sent=True) for name, rest in _ASKED_OF_CONTENT.items()]
    if one.body == BYTES:
        found += [_header(name, *rest, sent=True) for name, rest in _SENT_WITH_CONTENT.items()]
    return found


def _header(name: str, about: str, schema: dict[str, Any], *, sent: bool = False) -> dict[str, Any]:
    row = {"description": about, "schema": schema}
    return {"name": name, "in": "header", "required": False, **row} if sent else row


def _answers(one: Operation) -> dict[str, Any]:
    if one.answer is None:
        return {str(one.status): {"description": "Done."}}
    about = {"description": _about(one.answer), "content": _content(one.answer)}
    if one.answer != BYTES:
        found = {str(one.status): about}
        if one.name == "ready":
            found["503"] = _problem()
        return found
    headers = {name: _header(name, *rest) for name, rest in _HEADERS_OF_CONTENT.items()}
    ranged = {**headers, "Content-Range": _header("", "Which bytes, of how many.", {"type": "string"})}
    return {
        "200": {**about, "headers": headers},
        "206": {**about, "description": "The range.", "headers": ranged},
    }


def _content(kind: type[Value] | str) -> dict[str, Any]:
    if isinstance(kind, str):
        schema: dict[str, Any] = {"type": "object"} if kind == DOCUMENT else {}
        return {kind: {"schema": schema}}
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}


def _about(kind: type[Value] | str) -> str:
    if isinstance(kind, str):
        return "The bytes." if kind == BYTES else "The page."
    about = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
    return about if kind.__doc__ and not about.startswith("Base of all") else kind.__name__


def _problem() -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": "What is wrong.", "content": {problems.MEDIA_TYPE: {"schema": schema}}}
