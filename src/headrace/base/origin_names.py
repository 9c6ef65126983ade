"""The names that origins accept."""

from __future__ import annotations

HIDDEN = ".headrace-put-"
"""Prefix of temporary names during a put. No listing shows them."""


def plain_name(name: bytes) -> bytes:
    """Return a name that origins accept. Control characters and bytes that are not UTF-8 are replaced by their numbers;
    other names stay the same."""
    if name.startswith(HIDDEN.encode()):
        name = b"%2E" + name[1:]
    text = name.decode(errors="surrogateescape")
    if text.isprintable():
        return name
    return b"".join(
        b"%%%02X" % (ord(character) & 0xFF)
        if character < " " or character == "\x7f" or "\udc80" <= character <= "\udcff"
        else character.encode()
        for character in text
    )


def is_accepted(path: bytes) -> bool:
    """Return whether origins accept each name of a path."""
    return all(plain_name(name) == name for name in path.split(b"/"))
