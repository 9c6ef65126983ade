"""Cached files against the digests that their origins name (`origin/digest.py`): fsck finds bytes that came wrong.

A checksum of ours is of what was received: who sent other bytes sent the checksum of those. An ETag need not be a
digest, so one that does not match counts only where another one of that origin does.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from headrace.base.errors import StoreError
from headrace.origin.digest import digest_of, value_of_file
from headrace.store.recovery import version_of
from headrace.store.schema import CachedFile

BYTES_MAX = 64 << 20
"""Of one file: MD5 takes a second for each 0.6 to 0.9 GB. Objects put in parts are left out, as their parts' sizes
would have to be guessed."""


class NamedDigests:
    """origin_of: its URL, "" for none. place_of: the cache file. In any one thread."""

    def __init__(self, origin_of: Callable[[CachedFile], str], place_of: Callable[[CachedFile], str]) -> None:
        self._origin_of, self._place_of = origin_of, place_of
        self._matched: set[str] = set()
        self._others: list[tuple[str, CachedFile]] = []

    def compare(self, cached: CachedFile) -> None:
        """A whole file that matches its own checksums."""
        digest = digest_of(version_of(cached))
        if digest is None or digest.parts or cached.size_bytes > BYTES_MAX or cached.superseded:
            return
        origin = self._origin_of(cached)
        if not origin:
            return
        try:
            fd = os.open(self._place_of(cached), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # evicted meanwhile
        try:
            value = value_of_file(fd, cached.size_bytes, digest, 0)
        except StoreError:
            return
        finally:
            os.close(fd)
        if value == digest.value:
            self._matched.add(origin)
        else:
            self._others.append((origin, cached))

    def wrong(self) -> list[CachedFile]:
        """Those whose bytes are not what the origin has."""
        return [cached for origin, cached in self._others if origin in self._matched]
