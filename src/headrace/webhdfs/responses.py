"""Build responses as Hadoop's clients read them: JSON with one outer name, and locations of data."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from headrace.http.messages import Response
from headrace.webhdfs.errors import RemoteError
from headrace.webhdfs.routes import WebHdfsCall

JSON = ("Content-Type", "application/json")
ENCODINGS: dict[str, Callable[[bytes], str]] = {
    "text": lambda value: '"' + value.decode("utf-8", "replace") + '"',
    "hex": lambda value: "0x" + value.hex(),
    "base64": lambda value: "0s" + base64.b64encode(value).decode(),
}
"""Encodings of an extended attribute's value, as in Hadoop's XAttrCodec."""


def of(name: str, value: Any) -> Response:
    return Response(200, [JSON], body=msgspec.json.encode({name: value}))


def of_rows(name: str, inner: str, batches: Iterator[list[Any]]) -> Response:
    """Return {name: {inner: [rows]}}, sent while batches are read: at least one batch, none of them empty."""
    return Response(200, [JSON], pieces=_json_of_rows(name, inner, batches))


def _json_of_rows(name: str, inner: str, batches: Iterator[list[Any]]) -> Iterator[bytes]:
    before = b'{"%b":{"%b":[' % (name.encode(), inner.encode())
    for rows in batches:
        yield before + msgspec.json.encode(rows)[1:-1]
        before = b","
    yield b"]}}"


def done(status: int = 200, *, headers: list[tuple[str, str]] | None = None) -> Response:
    """Return a response without a body."""
    return Response(status, headers or [])


def location(call: WebHdfsCall) -> Response:
    """Return the location of the bytes: as a redirect, or in the body where the client wants no redirect."""
    url = call.url_of_data()
    return of("Location", url) if call.flag("noredirect") else Response(307, [("Location", url)])


def failed(error: RemoteError) -> Response:
    message = error.message.encode("utf-8", "replace").decode()  # names that are not UTF-8
    fields = {"exception": error.name, "javaClassName": error.java_name, "message": message}
    return Response(error.status, [JSON], body=msgspec.json.encode({"RemoteException": fields}))
