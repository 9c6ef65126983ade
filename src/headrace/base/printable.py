"""Make text from outside fit for a terminal, a line of a log, or a message."""

from __future__ import annotations

import os
import re

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 and C1 controls, other line ends, changes of the writing direction, bytes that are not UTF-8."""


_NOT_UTF8 = re.compile("[\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Return the text on one line: characters that move a cursor, colour a terminal or begin a line are written as
    \xNN."""
    return _CONTROL.sub(_escape, text) if _CONTROL.search(text) else text


def utf8_text(text: str) -> str:
    r"""Return the text as messages and records can hold it: bytes that are not UTF-8, which `os.fsdecode` keeps, are
    written as \xNN."""
    return _NOT_UTF8.sub(_escape, text)


def path_text(path: bytes) -> str:
    """Return a path for a message, a record or the status. A program must not open it: it may name another file."""
    return utf8_text(os.fsdecode(path))


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    if 0xDC80 <= code <= 0xDCFF:  # os.fsdecode of a byte that is not UTF-8
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
