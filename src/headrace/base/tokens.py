"""Tokens that an interface asks for: those of a file, of which two are valid at a time while one takes the place of the
other.
"""

from __future__ import annotations

import hmac
import secrets

from headrace.base.errors import UsageError
from headrace.base.reloaded import Reloaded
from headrace.base.secret_file import read_secret

TOKENS_MAX = 2
TOKEN_BYTES = 32


class Tokens:
    """One token on each line of a file, which is read again when it changes. setting: that names the file. UsageError
    for a file that can't be used."""

    def __init__(self, path: str, setting: str) -> None:
        subject = f"setting {setting}"
        self._file = Reloaded(
            [path], lambda: _parse(read_secret(path, subject), f"{subject} = {path}"), name=setting
        )

    @property
    def newest(self) -> str:
        """The first of the file: what a client sends."""
        return self._file.get()[0].decode()

    def accept(self, shown: str | bytes) -> bool:
        """Return whether it is a valid token, in a time that tells nothing about it."""
        data = shown.encode("utf-8", "surrogateescape") if isinstance(shown, str) else shown
        return sum(hmac.compare_digest(data, token) for token in self._file.get()) > 0


def make_token() -> str:
    """Return a random token, as a line of a file."""
    return secrets.token_urlsafe(TOKEN_BYTES) + "\n"


def _parse(text: str, what: str) -> tuple[bytes, ...]:
    tokens = text.split()
    if not 1 <= len(tokens) <= TOKENS_MAX or not text.isascii() or len(tokens) != len(text.splitlines()):
        raise UsageError(what, why="the file has no token in it: one word of ASCII, or two on a line each")
    return tuple(token.encode() for token in tokens)
