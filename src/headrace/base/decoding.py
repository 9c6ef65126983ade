"""Decode JSON, msgpack and texts from outside: another node, a record, a client, a file.

msgspec raises its own DecodeError for most invalid input, but UnicodeDecodeError for text that is not UTF-8, and
RecursionError for deep nesting. These functions raise DecodeError for all of them, so that no caller forgets one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

Kind = TypeVar("Kind")


def decode_json(data: bytes, kind: type[Kind]) -> Kind:
    """Decode JSON. msgspec.DecodeError for anything else than JSON of that kind."""
    return decode_with(lambda body: msgspec.json.decode(body, type=kind), data)


def decode_msgpack(data: bytes, kind: type[Kind]) -> Kind:
    """Decode msgpack. msgspec.DecodeError for anything else than msgpack of that kind."""
    return decode_with(lambda body: msgspec.msgpack.decode(body, type=kind), data)


def convert_words(values: Mapping[str, object], kind: type[Kind]) -> Kind:
    """Convert values, with texts to numbers where the kind has numbers. msgspec.ValidationError, also for text that is
    not UTF-8."""
    try:
        return msgspec.convert(values, kind, strict=False)
    except UnicodeEncodeError as error:
        raise msgspec.ValidationError(str(error)) from error


def decode_with(decode: Callable[[bytes], Kind], data: bytes) -> Kind:
    """Decode with a method of an existing Decoder. msgspec.DecodeError."""
    try:
        return decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
