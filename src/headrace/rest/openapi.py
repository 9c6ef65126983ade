"""Generate the OpenAPI 3.1 document of the REST API, from the table that also routes its requests (`wire/api.py`)."""

from __future__ import annotations

import functools
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
    UPLOAD_HEADER,
    Operation,
    Problem,
    Value,
)

_DESCRIPTION = """The API of a Headrace node: what the `headrace` command does, and the files of the namespace, by HTTP.
Errors are problem details of RFC 9457, with a `code` of docs/errors.md. docs/rest.md says who has access."""
_CONTENT_HEADERS = {
    "ETag": ("The version of the file.", {"type": "string"}),
    SUMS_HEADER: (
        f"The xxh3-64 of each piece of the range that lies within one block of 1 MiB, as 16 hex digits each, separated "
        f"by commas. Sent if the request has `{SUMS_HEADER}: {SUMS_WORD}`.",
        {"type": "string"},
    ),
}
_READ_HEADERS = {
    "Range": ("Return only this range of bytes.", {"type": "string"}),
    "If-Match": ("Return only this version; respond 412 otherwise.", {"type": "string"}),
    "If-Range": ("Return the range of this version, and all bytes of another one.", {"type": "string"}),
    SUMS_HEADER: ("Request checksums of the response.", {"type": "string"}),
}
_WRITE_HEADERS = {
    SUM_HEADER: (
        "The xxh3-64 of the body, as 16 hex digits. A body that does not match is discarded.",
        {"type": "string"},
    ),
    UPLOAD_HEADER: (
        "32 hex digits, chosen by the client, with `replace=false`. A repeated request with them succeeds if the first "
        "one created the file.",
        {"type": "string"},
    ),
}


def document() -> dict[str, Any]:
    """Return the document. Its version is the API's, not the program's: every node that serves v1 has the same."""
    kinds = [kind for operation in OPERATIONS for kind in (operation.body, operation.answer)]
    types = [kind for kind in kinds if isinstance(kind, type)]
    _, schemas = msgspec.json.schema_components(
        [*dict.fromkeys(types), Problem], ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": "1",
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


@functools.cache
def text() -> str:
    """Return the document as JSON. It takes 30 ms to make, and strangers may request it."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def _operation(operation: Operation) -> dict[str, Any]:
    row: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": _parameters(operation),
        "responses": {**_answers(operation), "default": _problem()},
        "security": [] if operation.open else [{"token": []}],
    }
    if operation.body is not None:
        row["requestBody"] = {"required": operation.body != BYTES, "content": _content(operation.body)}
    if not row["parameters"]:
        del row["parameters"]
    return row


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    rows = []
    hints = get_type_hints(operation.query, include_extras=True)
    for field in msgspec.structs.fields(operation.query):
        schema = msgspec.json.schema(hints[field.name])
        description = schema.pop("description", "")
        examples = schema.pop("examples", None)
        if not field.required:
            schema["default"] = field.default
        row = {
            "name": field.name,
            "in": "path" if field.name in operation.path_names else "query",
            "required": field.required,
            "description": description,
            "schema": schema,
        }
        rows.append({**row, "example": examples[0]} if examples else row)
    if operation.answer == BYTES:
        rows += [_header(name, *rest, sent=True) for name, rest in _READ_HEADERS.items()]
    if operation.body == BYTES:
        rows += [_header(name, *rest, sent=True) for name, rest in _WRITE_HEADERS.items()]
    return rows


def _header(name: str, description: str, schema: dict[str, Any], *, sent: bool = False) -> dict[str, Any]:
    row = {"description": description, "schema": schema}
    return {"name": name, "in": "header", "required": False, **row} if sent else row


def _answers(operation: Operation) -> dict[str, Any]:
    if operation.answer is None:
        return {str(operation.status): {"description": "Done."}}
    body = {"description": _description(operation.answer), "content": _content(operation.answer)}
    if operation.answer != BYTES:
        answers = {str(operation.status): body}
        if operation.name == "ready":
            answers["503"] = _problem()
        return answers
    headers = {name: _header(name, *rest) for name, rest in _CONTENT_HEADERS.items()}
    ranged = {
        **headers,
        "Content-Range": _header("", "The range and the size of the file.", {"type": "string"}),
    }
    return {
        "200": {**body, "headers": headers},
        "206": {**body, "description": "The bytes of the range.", "headers": ranged},
    }


def _content(kind: type[Value] | str) -> dict[str, Any]:
    if isinstance(kind, str):
        schema: dict[str, Any] = {"type": "object"} if kind == DOCUMENT else {}
        return {kind: {"schema": schema}}
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}


def _description(kind: type[Value] | str) -> str:
    if isinstance(kind, str):
        return "The bytes." if kind == BYTES else "The page."
    text = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
    return text if kind.__doc__ and not text.startswith("Base of all") else kind.__name__


def _problem() -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": "The request failed.", "content": {problems.MEDIA_TYPE: {"schema": schema}}}
