"""Decode JSON, msgpack and texts from outside: another node, a record, a client, a file.

msgspec raises its own DecodeError for most invalid input, but UnicodeDecodeError for text that is not UTF-8, and
RecursionError for deep nesting. These functions raise DecodeError for all of them, so that no caller forgets one.

msgspec describes a type to itself at its first use. Where two threads describe the same type, the process ends with a
segmentation fault (msgspec 0.22). So each type is described here, by one thread at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

Kind = TypeVar("Kind")

_describing = threading.Lock()
_described: set[Any] = set()


def describe(kind: Any) -> None:
    """Make msgspec describe a type, and those that it contains."""
    if kind not in _described:
        with _describing:
            msgspec.msgpack.Decoder(kind)
            _described.add(kind)


def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder for many messages of one kind. kind: a type or a union of types."""
    describe(kind)
    return msgspec.msgpack.Decoder(kind)


def decode_json(data: bytes, kind: type[Kind]) -> Kind:
    """Decode JSON. msgspec.DecodeError for anything else than JSON of that kind."""
    describe(kind)
    return decode_with(lambda body: msgspec.json.decode(body, type=kind), data)


def decode_msgpack(data: bytes, kind: type[Kind]) -> Kind:
    """Decode msgpack. msgspec.DecodeError for anything else than msgpack of that kind."""
    describe(kind)
    return decode_with(lambda body: msgspec.msgpack.decode(body, type=kind), data)


def convert_words(values: Mapping[str, object], kind: type[Kind]) -> Kind:
    """Convert values, with texts to numbers where the kind has numbers. msgspec.ValidationError, also for text that is
    not UTF-8."""
    describe(kind)
    try:
        return msgspec.convert(values, kind, strict=False)
    except UnicodeEncodeError as error:
        raise msgspec.ValidationError(str(error)) from error


def convert(values: object, kind: type[Kind]) -> Kind:
    """Convert values as a JSON or TOML parser returns them. msgspec.ValidationError."""
    describe(kind)
    return msgspec.convert(values, kind)


def decode_with(decode: Callable[[bytes], Kind], data: bytes) -> Kind:
    """Decode with a method of an existing Decoder. msgspec.DecodeError."""
    try:
        return decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
