"""What a version's token says of the bytes. The ETag of an object that was put in one request is its MD5 at most
stores; of one that was put in parts, the MD5 of the parts' MD5s, with their number ("Checking object integrity" in
the manual of Amazon S3). Some drivers of fsspec name a SHA-1 or a SHA-256. None of them says which it is, and an
ETag may look like one and be none, as of objects that were encrypted with a customer's key. So a match proves the
bytes, and the lack of one proves nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.base.errors import StoreError
from headrace.base.model import Version
from headrace.origin.upload import Sizes

_MIB = 1 << 20
_TOKEN = re.compile(r'"?([0-9a-fA-F]{32}|[0-9a-fA-F]{40}|[0-9a-fA-F]{64})(?:-([1-9][0-9]{0,4}))?"?')
_ALGORITHMS = {32: "md5", 40: "sha1", 64: "sha256"}
_USUAL_PARTS = tuple(size * _MIB for size in (8, 16, 5, 64, 32, 100, 128, 10, 25, 50, 256, 512, 1024))
"""What programs that upload in parts take unless they are told otherwise; the most usual first."""
PARTS_TRIED_MAX = 3
_READ_BYTES = _MIB


@dataclass(frozen=True, slots=True)
class Digest:
    """value: in small letters. parts: how many; 0: it is of the bytes themselves."""

    algorithm: str
    value: str
    parts: int = 0


def digest_of(version: Version) -> Digest | None:
    """None: the token names no digest, or there are no bytes."""
    match = _TOKEN.fullmatch(version.token)
    if match is None or not version.size_bytes:
        return None
    algorithm, parts = _ALGORITHMS[len(match[1])], int(match[2] or 0)
    if parts and (algorithm != "md5" or parts > version.size_bytes):
        return None
    return Digest(algorithm, match[1].lower(), parts)


def part_sizes(size_bytes: int, parts: int, *, first: int = 0) -> list[int]:
    """How large the parts may have been, the likely ones first: few guesses, as each costs a look at all bytes. [0]: it
    was not put in parts. first: what it was of another object."""
    if parts <= 1:
        return [size_bytes if parts else 0]
    guesses = dict.fromkeys((first, Sizes().part_bytes(size_bytes), *_USUAL_PARTS))
    fitting = [size for size in guesses if size and -(-size_bytes // size) == parts]
    return fitting[:PARTS_TRIED_MAX]


def value_of_body(body: bytes | bytearray | memoryview, digest: Digest) -> str:
    """Of a body that is one part at most."""
    value = hashlib.new(digest.algorithm, body, usedforsecurity=False)
    if not digest.parts:
        return value.hexdigest()
    return hashlib.new(digest.algorithm, value.digest(), usedforsecurity=False).hexdigest()


def value_of_file(
    fd: int, size_bytes: int, digest: Digest, part_bytes: int, check: Callable[[], None] = lambda: None
) -> str:
    """Reads all of it: a second for each 0.6 to 0.9 GB of MD5. part_bytes: 0 for no parts. check: called now and then;
    what it raises ends the reading."""
    whole = hashlib.new(digest.algorithm, usedforsecurity=False)
    for start in range(0, size_bytes, part_bytes or size_bytes):
        part = hashlib.new(digest.algorithm, usedforsecurity=False) if part_bytes else whole
        for body in _bodies(fd, start, min(size_bytes, start + (part_bytes or size_bytes))):
            check()
            part.update(body)
        if part_bytes:
            whole.update(part.digest())
    return whole.hexdigest()


def _bodies(fd: int, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        try:
            body = os.pread(fd, min(_READ_BYTES, end - start), start)
        except OSError as error:
            raise StoreError("cache file can't be read", why=error.strerror or str(error)) from error
        if not body:
            raise StoreError("cache file can't be read", why="it is shorter than its version")
        yield body
        start += len(body)
