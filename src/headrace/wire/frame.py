"""Frames: 4 bytes of length (little-endian, of the body), then the body, msgpack. Sans-IO: this module opens no
socket."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from headrace.base.decoding import decode_with, msgpack_decoder
from headrace.base.errors import HeadraceError, ProtocolError, error_classes
from headrace.base.printable import utf8_text
from headrace.wire.message import Message
from headrace.wire.messages import Answer, Failure, Request

HEADER_BYTES = 4
BODY_BYTES_MAX = 16 << 20

_encoder = msgspec.msgpack.Encoder()
_requests = msgpack_decoder(Request)
_answers = msgpack_decoder(Answer)

Kind = TypeVar("Kind")


def encode(message: Message) -> bytes:
    """Return the complete frame of a message."""
    return _with_length(_encoder.encode(message))


def encode_answer(message: Message) -> bytes:
    """Return the complete frame of an answer. One name that is not UTF-8 must not withhold the rest of it."""
    try:
        return encode(message)
    except UnicodeEncodeError:
        body = _encoder.encode(_in_utf8(msgspec.to_builtins(message, builtin_types=(bytes,))))
        return _with_length(body)


def _in_utf8(value: Any) -> Any:
    if isinstance(value, str):
        return utf8_text(value)
    if isinstance(value, dict):
        return {_in_utf8(key): _in_utf8(item) for key, item in value.items()}
    return [_in_utf8(item) for item in value] if isinstance(value, list | tuple) else value


def _with_length(body: bytes) -> bytes:
    return len(body).to_bytes(HEADER_BYTES, "little") + body


def body_length(header: bytes) -> int:
    """Return the length of a body in bytes. Raises ProtocolError when it exceeds BODY_BYTES_MAX."""
    length = int.from_bytes(header, "little")
    if length > BODY_BYTES_MAX:
        raise ProtocolError("frame too long", why=f"{length} bytes announced, {BODY_BYTES_MAX} allowed")
    return length


def decode(decoder: msgspec.msgpack.Decoder[Kind], body: bytes, *, kind: str) -> Kind:
    """Decode a body. kind: "request" or "answer", for the message of the error. Raises ProtocolError when the decoder
    refuses it."""
    try:
        return decode_with(decoder.decode, body)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"{kind} not understood", why=str(error)) from error


def decode_request(body: bytes) -> Request:
    request: Request = decode(_requests, body, kind="request")
    return request


def decode_answer(body: bytes) -> Answer:
    answer: Answer = decode(_answers, body, kind="answer")
    return answer


def failure_of(error: HeadraceError) -> Failure:
    """Return an error as a message. Its texts become UTF-8, as they may contain a file name that is not."""
    return Failure(error.code, *map(utf8_text, (error.what, error.why, error.hint)))


_ERRORS = error_classes()


def error_of(failure: Failure) -> HeadraceError:
    return _ERRORS.get(failure.code, HeadraceError)(failure.what, why=failure.why, hint=failure.hint)
