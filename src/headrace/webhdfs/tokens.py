"""The token that a WebHDFS client shows: pure, but for the file that is written for Hadoop's clients.

By `Authorization: Bearer TOKEN`, or by `delegation=` in the query, as Hadoop's own clients and fsspec send it. Those of
Hadoop read a file of tokens (HADOOP_TOKEN_FILE_LOCATION), and send of it, in base64, identifier, password, kind and
service; the token is the password there.

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
SHOWN_CHARACTERS_MAX = 4096
_MAGIC = b"HDTS\0"
"""Of a file of tokens; version 0: what follows is in Hadoop's `Writable` format."""


def token_of(request: Request) -> str | bytes:
    """The token that is shown; "" for none."""
    scheme, _, shown = request.header("authorization").partition(" ")
    if scheme.lower() == "bearer":
        return shown.strip()
    given = next((value for name, value in request.query if name.lower() == "delegation"), "")
    return _password_of(given) or given


def token_file(token: str, services: list[str]) -> bytes:
    """A file of tokens for Hadoop's clients, one for each service. services: IP:PORT, as clients look it up."""
    data = _MAGIC + _number(len(services))
    for service in services:
        data += _text(service.encode()) + _token(token.encode(), service.encode())
    return data + _number(0)  # no secret keys


def write_token_file(path: str, token: str, services: list[str]) -> None:
    """Replace the file at once; mode 0600. UsageError where it can't be written."""
    draft = f"{path}.{secrets.token_hex(8)}"
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as out:
                out.write(token_file(token, services))
            os.rename(draft, path)
        except BaseException:
            os.unlink(draft)
            raise
    except OSError as error:
        raise UsageError(f"file of tokens {path}", why=error.strerror or str(error)) from error


def _token(password: bytes, service: bytes) -> bytes:
    return _text(b"") + _text(password) + _text(KIND) + _text(service)


def _password_of(shown: str) -> bytes:
    """Of a token in Hadoop's words; b"" for what is none."""
    if not 0 < len(shown) <= SHOWN_CHARACTERS_MAX:
        return b""
    try:
        data = base64.urlsafe_b64decode(shown.rstrip("=").encode("ascii") + b"==")
    except (binascii.Error, ValueError):
        return b""
    fields = []
    for _ in range(4):
        field, data = _take(data)
        if field is None:
            return b""
        fields.append(field)
    return fields[1] if fields[2] == KIND and not data else b""


def _take(data: bytes) -> tuple[bytes | None, bytes]:
    """The field that data begins with, and what follows; None: there is none."""
    if not data:
        return None, b""
    first, data = data[0], data[1:]
    if first >= 128:
        more = 144 - first  # -112 - the signed byte: how many bytes the length has
        if not 1 <= more <= 2 or len(data) < more:
            return None, b""
        first, data = int.from_bytes(data[:more]), data[more:]
    if len(data) < first:
        return None, b""
    return data[:first], data[first:]


def _text(data: bytes) -> bytes:
    return _number(len(data)) + data


def _number(value: int) -> bytes:
    """As WritableUtils.writeVInt, of 0 to 65535."""
    if value < 128:
        return bytes((value,))
    data = value.to_bytes((value.bit_length() + 7) // 8)
    return bytes((144 - len(data),)) + data
