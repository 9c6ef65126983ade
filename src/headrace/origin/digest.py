"""Interpret a version's token as a digest of its bytes.

At most stores the ETag of an object that was put in one request is its MD5. The ETag of a multipart object is the MD5
of the parts' MD5s, with their number ("Checking object integrity" in the manual of Amazon S3). Some drivers of fsspec
name a SHA-1 or a SHA-256. No store says which it is, and an ETag may look like a digest without being one, for
example with a customer's encryption key. A match therefore proves the bytes, and a mismatch proves nothing.
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
"""Default part sizes of common programs, the most usual first."""
PARTS_TRIED_MAX = 3
"""Most part sizes that are tried."""
_READ_BYTES = _MIB


@dataclass(frozen=True, slots=True)
class Digest:
    """Holds a digest. `value` is lowercase hexadecimal. `parts` is the number of parts; 0 means a digest of the bytes
    themselves."""

    algorithm: str
    value: str
    parts: int = 0


def digest_of(version: Version) -> Digest | None:
    """Return the digest that a version's token names; None if it names none or the file is empty."""
    match = _TOKEN.fullmatch(version.token)
    if match is None or not version.size_bytes:
        return None
    algorithm, parts = _ALGORITHMS[len(match[1])], int(match[2] or 0)
    if parts and (algorithm != "md5" or parts > version.size_bytes):
        return None
    return Digest(algorithm, match[1].lower(), parts)


def part_sizes(size_bytes: int, parts: int, *, first: int = 0) -> list[int]:
    """Return the part sizes that the upload may have used, likely ones first. They are few, because each guess costs
    a pass over all bytes. [0] means a single request. `first` is the part size of another object of this origin."""
    if parts <= 1:
        return [size_bytes if parts else 0]
    guesses = dict.fromkeys((first, Sizes().part_bytes(size_bytes), *_USUAL_PARTS))
    fitting = [size for size in guesses if size and -(-size_bytes // size) == parts]
    return fitting[:PARTS_TRIED_MAX]


def value_of_body(body: bytes | bytearray | memoryview, digest: Digest) -> str:
    """Return the digest value of a body that has at most one part."""
    value = hashlib.new(digest.algorithm, body, usedforsecurity=False)
    if not digest.parts:
        return value.hexdigest()
    return hashlib.new(digest.algorithm, value.digest(), usedforsecurity=False).hexdigest()


def value_of_file(
    fd: int, size_bytes: int, digest: Digest, part_bytes: int, check: Callable[[], None] = lambda: None
) -> str:
    """Return the digest value of a file. Reads all of it: MD5 takes a second for each 0.6 to 0.9 GB. `part_bytes` is
    0 for no parts. `check` is called repeatedly; an exception from it ends the reading."""
    total = hashlib.new(digest.algorithm, usedforsecurity=False)
    for start in range(0, size_bytes, part_bytes or size_bytes):
        part = hashlib.new(digest.algorithm, usedforsecurity=False) if part_bytes else total
        for body in _bodies(fd, start, min(size_bytes, start + (part_bytes or size_bytes))):
            check()
            part.update(body)
        if part_bytes:
            total.update(part.digest())
    return total.hexdigest()


def _bodies(fd: int, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        try:
            body = os.pread(fd, min(_READ_BYTES, end - start), start)
        except OSError as error:
            raise StoreError("cache file can't be read", why=error.strerror or str(error)) from error
        if not body:
            raise StoreError("cache file can't be read", why="the file is shorter than its version")
        yield body
        start += len(body)
