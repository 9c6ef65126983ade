"""Read the token of a WebHDFS request, and write the file of tokens for Hadoop's clients.

A client sends it by `Authorization: Bearer TOKEN`, or by `delegation=` in the query, as Hadoop's own clients and
fsspec do. Hadoop's clients read a file of tokens (HADOOP_TOKEN_FILE_LOCATION). They send identifier, password, kind
and service of an entry, in base64; the token is the password there.

Sources: Hadoop's `Token`, `Credentials` and `WritableUtils` (org.apache.hadoop.security.token, .io).
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets

from headrace.base.errors import UsageError
from headrace.http.messages import Request

KIND = b"WEBHDFS delegation"
TOKEN_CHARACTERS_MAX = 4096
_MAGIC = b"HDTS\0"
"""Begins a file of tokens. Version 0: the rest is in Hadoop's `Writable` format."""


def token_of(request: Request) -> str | bytes:
    """Return the token of a request; "" for none."""
    scheme, _, credentials = request.header("authorization").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    text = next((value for name, value in request.query if name.lower() == "delegation"), "")
    return _password_of(text) or text


def token_file(token: str, services: list[str]) -> bytes:
    """Encode a file of tokens for Hadoop's clients, one for each of `services`: IP:PORT, as clients look them up."""
    data = _MAGIC + _number(len(services))
    for service in services:
        data += _text(service.encode()) + _token(token.encode(), service.encode())
    return data + _number(0)  # no secret keys


def write_token_file(path: str, token: str, services: list[str]) -> None:
    """Replace the file atomically, with mode 0600. Raises UsageError where it can't be written."""
    temporary = f"{path}.{secrets.token_hex(8)}"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as out:
                out.write(token_file(token, services))
            os.rename(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise UsageError(f"file of tokens {path}", why=error.strerror or str(error)) from error


def _token(password: bytes, service: bytes) -> bytes:
    return _text(b"") + _text(password) + _text(KIND) + _text(service)


def _password_of(text: str) -> bytes:
    """Return the password of a token in Hadoop's encoding; b"" for other texts."""
    if not 0 < len(text) <= TOKEN_CHARACTERS_MAX:
        return b""
    try:
        data = base64.urlsafe_b64decode(text.rstrip("=").encode("ascii") + b"==")
    except (binascii.Error, ValueError):
        return b""
    fields = []
    for _ in range(4):
        field, data = _split_field(data)
        if field is None:
            return b""
        fields.append(field)
    return fields[1] if fields[2] == KIND and not data else b""


def _split_field(data: bytes) -> tuple[bytes | None, bytes]:
    """Return the first field of the data, None where there is none, and the rest."""
    if not data:
        return None, b""
    length, data = data[0], data[1:]
    if length >= 128:
        length_bytes = 144 - length  # -112 - the signed byte: the number of bytes of the length
        if not 1 <= length_bytes <= 2 or len(data) < length_bytes:
            return None, b""
        length, data = int.from_bytes(data[:length_bytes]), data[length_bytes:]
    if len(data) < length:
        return None, b""
    return data[:length], data[length:]


def _text(data: bytes) -> bytes:
    return _number(len(data)) + data


def _number(value: int) -> bytes:
    """Encode a number from 0 to 65535 as WritableUtils.writeVInt does."""
    if value < 128:
        return bytes((value,))
    data = value.to_bytes((value.bit_length() + 7) // 8)
    return bytes((144 - len(data),)) + data
