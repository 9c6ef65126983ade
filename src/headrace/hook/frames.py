"""Speak the node's protocol (docs/protocol.md) with the standard library: a map in msgpack, behind its length.

Only the types that the plan's messages need: text, bytes, whole numbers, booleans and lists of numbers.
https://github.com/msgpack/msgpack/blob/master/spec.md
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Union

PROTOCOL = 2
"""Number of the protocol of wire/messages.py; a test compares them."""
ANSWER_BYTES_MAX = 1 << 20
Value = Union[str, bytes, int, bool, "list[int]"]


class PlanRefusedError(Exception):
    """Carries why the node refuses a message."""


class PlanConnection:
    """A connection to the node. Each call blocks until the node has answered, timeout_s at most. Raises OSError when
    the node can't be reached, PlanRefusedError when it refuses."""

    def __init__(self, socket_path: str, *, timeout_s: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._identity = _identity_of(self._socket.fileno())
        try:
            self._socket.settimeout(timeout_s)
            self._socket.connect(socket_path)
            self.ask("Hello", protocol=PROTOCOL, pid=os.getpid(), role="plan")
        except BaseException:
            self._socket.close()
            raise

    def ask(self, kind: str, **fields: Value) -> dict[str, Value]:
        """Send a message and return the fields of its answer."""
        self._check()
        # a program may have SIGPIPE end it, as a part of a pipe
        self._socket.sendall(encoded(kind, **fields), socket.MSG_NOSIGNAL)
        answer = decoded(self._receive(int.from_bytes(self._receive(4), "little")))
        if answer.get("type") == "Failure":
            raise PlanRefusedError(f"{answer.get('what')!s}: {answer.get('why')!s}")
        return answer

    def hurry(self, timeout_s: float) -> None:
        """Wait less for what is asked from now on."""
        self._socket.settimeout(timeout_s)

    def interrupt(self) -> None:
        """Let a call of another thread, which waits for the node, fail at once."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        try:
            self._check()
        except OSError:
            return
        self._socket.close()

    def _check(self) -> None:
        """Raise OSError if the program has closed the socket, as those do that close all descriptors. Its number may
        then be that of another file."""
        descriptor = self._socket.fileno()
        if descriptor < 0 or _identity_of(descriptor) != self._identity:
            self._socket.detach()
            raise OSError("the program has closed the connection")

    def _receive(self, count: int) -> bytes:
        if count > ANSWER_BYTES_MAX:
            raise OSError(f"the node announced an answer of {count} bytes")
        received = bytearray()
        while len(received) < count:
            part = self._socket.recv(count - len(received))
            if not part:
                raise ConnectionResetError("the node closed the connection")
            received += part
        return bytes(received)


def _identity_of(descriptor: int) -> tuple[int, int]:
    stat = os.fstat(descriptor)
    return stat.st_dev, stat.st_ino


def encoded(kind: str, **fields: Value) -> bytes:
    """Return the frame of a message with at most 14 fields."""
    body = bytearray([0x80 | (len(fields) + 1)])
    for key, value in {"type": kind, **fields}.items():
        body += _packed(key) + _packed(value)
    return len(body).to_bytes(4, "little") + bytes(body)


def _packed(value: Value) -> bytes:
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return struct.pack(">BQ", 0xCF, value)
    if isinstance(value, str):
        text = value.encode("utf-8", "backslashreplace")
        return struct.pack(">BI", 0xDB, len(text)) + text
    if isinstance(value, bytes):
        return struct.pack(">BI", 0xC6, len(value)) + value
    return struct.pack(">BI", 0xDD, len(value)) + b"".join(map(_packed, value))


def decoded(body: bytes) -> dict[str, Value]:
    """Return the fields of a map. Raises OSError for what is no such map."""
    try:
        value, _ = _unpacked(body, 0)
    except (IndexError, struct.error, UnicodeDecodeError, RecursionError) as error:
        raise OSError(f"the node's answer can't be decoded: {error}") from None
    if not isinstance(value, dict):
        raise OSError("the node's answer is no map")
    return value


_FIXED = {0xC0: "", 0xC2: False, 0xC3: True}
_NUMBERS = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
}
_LENGTHS = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I"}


def _unpacked(body: bytes, start: int) -> tuple[object, int]:
    """Return the value that begins at a byte, and where the next one begins."""
    tag, start = body[start], start + 1
    if tag <= 0x7F:
        return tag, start
    if tag in _FIXED:
        return _FIXED[tag], start
    if tag in _NUMBERS:
        form = _NUMBERS[tag]
        return struct.unpack_from(form, body, start)[0], start + struct.calcsize(form)
    if tag <= 0x8F:
        fields = {}
        for _ in range(tag & 0x0F):
            key, start = _unpacked(body, start)
            fields[str(key)], start = _unpacked(body, start)
        return fields, start
    if 0xA0 <= tag <= 0xBF:
        return _text(body, start, tag & 0x1F)
    if 0x90 <= tag <= 0x9F:
        return _list(body, start, tag & 0x0F)
    form = _LENGTHS.get(tag, "")
    if not form:
        raise OSError(f"the node's answer has the type {tag:#x}")
    count, start = struct.unpack_from(form, body, start)[0], start + struct.calcsize(form)
    if tag >= 0xDC:
        return _list(body, start, count)
    return _text(body, start, count) if tag >= 0xD9 else (body[start : start + count], start + count)


def _text(body: bytes, start: int, count: int) -> tuple[str, int]:
    return body[start : start + count].decode(), start + count


def _list(body: bytes, start: int, count: int) -> tuple[list[object], int]:
    values = []
    for _ in range(count):
        value, start = _unpacked(body, start)
        values.append(value)
    return values, start
