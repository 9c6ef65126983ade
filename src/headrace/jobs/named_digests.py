"""Compare cached files with the digests that their origins name (`origin/digest.py`), so that fsck finds bytes that
arrived wrong.

Headrace's own checksum covers the bytes as received, so it does not reveal that the origin sent wrong ones. An ETag
need not be a digest. A mismatch therefore counts only if another file of the same origin matches.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from headrace.base.errors import StoreError
from headrace.origin.digest import digest_of, value_of_file
from headrace.store.recovery import version_of
from headrace.store.schema import CachedFile

BYTES_MAX = 64 << 20
"""Largest file to compare: MD5 takes a second for each 0.6 to 0.9 GB. Multipart objects are skipped, because
their part sizes are unknown."""


class NamedDigests:
    """Collects comparisons. `origin_of` returns the URL of a file's origin, or "". `path_of` returns the path of its
    cache file. Use it in one thread."""

    def __init__(self, origin_of: Callable[[CachedFile], str], path_of: Callable[[CachedFile], str]) -> None:
        self._origin_of, self._path_of = origin_of, path_of
        self._matched: set[str] = set()
        self._others: list[tuple[str, CachedFile]] = []

    def compare(self, cached: CachedFile) -> None:
        """Compare one complete file that matches its own checksums."""
        digest = digest_of(version_of(cached))
        if digest is None or digest.parts or cached.size_bytes > BYTES_MAX or cached.superseded:
            return
        origin = self._origin_of(cached)
        if not origin:
            return
        try:
            fd = os.open(self._path_of(cached), os.O_RDONLY | os.O_CLOEXEC)
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
        """Return the files whose bytes differ from the origin's."""
        return [cached for origin, cached in self._others if origin in self._matched]
