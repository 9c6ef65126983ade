"""Decodes JSON, msgpack and words that came from outside: another node, a record, a client, a file.

msgspec raises its own DecodeError for most of what is wrong, but UnicodeDecodeError for text that is none, and
RecursionError for what is nested too deep. Here all of them are a DecodeError, so that no caller forgets one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

Kind = TypeVar("Kind")


def decode_json(data: bytes, kind: type[Kind]) -> Kind:
    """msgspec.DecodeError for what is no JSON of that kind."""
    return decode_with(lambda body: msgspec.json.decode(body, type=kind), data)


def decode_msgpack(data: bytes, kind: type[Kind]) -> Kind:
    """msgspec.DecodeError for what is no msgpack of that kind."""
    return decode_with(lambda body: msgspec.msgpack.decode(body, type=kind), data)


def convert_words(values: Mapping[str, object], kind: type[Kind]) -> Kind:
    """Texts become numbers where the kind has some. msgspec.ValidationError, also for bytes that are no text."""
    try:
        return msgspec.convert(values, kind, strict=False)
    except UnicodeEncodeError as error:
        raise msgspec.ValidationError(str(error)) from error


def decode_with(decode: Callable[[bytes], Kind], data: bytes) -> Kind:
    """decode: of a Decoder that was made before. msgspec.DecodeError."""
    try:
        return decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
