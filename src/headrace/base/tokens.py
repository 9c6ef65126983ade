"""Tokens that an interface requires. They are in a file, where two are valid at a time while one replaces the other."""

from __future__ import annotations

import hmac
import secrets

from headrace.base.errors import UsageError
from headrace.base.reloaded import Reloaded
from headrace.base.secret_file import read_secret

TOKENS_MAX = 2
TOKEN_BYTES = 32


class Tokens:
    """The tokens of a file, one on each line; the file is read again when it changes. setting: names the file.
    Raises UsageError for a file that can't be used."""

    def __init__(self, path: str, setting: str) -> None:
        subject = f"setting {setting}"
        self._file = Reloaded(
            [path], lambda: _parse(read_secret(path, subject), f"{subject} = {path}"), name=setting
        )

    @property
    def newest(self) -> str:
        """Return the first token of the file: the one that clients send."""
        return self._file.get()[0].decode()

    def accept(self, shown: str | bytes) -> bool:
        """Return whether a token is valid, in a time that reveals nothing about it."""
        data = shown.encode("utf-8", "surrogateescape") if isinstance(shown, str) else shown
        return sum(hmac.compare_digest(data, token) for token in self._file.get()) > 0


def make_token() -> str:
    """Return a random token, as a line of a file."""
    return secrets.token_urlsafe(TOKEN_BYTES) + "\n"


def _parse(text: str, subject: str) -> tuple[bytes, ...]:
    tokens = text.split()
    if not 1 <= len(tokens) <= TOKENS_MAX or not text.isascii() or len(tokens) != len(text.splitlines()):
        raise UsageError(subject, why="the file has no token in it: one word of ASCII, or two on a line each")
    return tuple(token.encode() for token in tokens)
