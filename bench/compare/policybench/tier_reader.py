"""Reads cache files as clients of a host do, and compares every byte.

`tier_reader.py INDEX FAST SLOW SUMS SECONDS SEED` prints a line of JSON: reads, bytes, failed reads, wrong files. SUMS:
JSON of the checksum of each file by its id.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time

import xxhash

from headrace.base.errors import PathNotFoundError
from headrace.base.model import FileId
from headrace.store.index import Index
from headrace.store.reader import CacheReader

ATTEMPTS = 3
"""Times that the index is read again when a file is no longer where its record said; a client then asks the node."""


def main() -> None:
    index_folder, fast, slow, sums_path, seconds, seed = sys.argv[1:]
    with open(sums_path) as source:
        sums = {FileId(int(id)): total for id, total in json.load(source).items()}
    index = Index.open(index_folder, writable=False)
    chance, ids = random.Random(seed), list(sums)
    buffer = bytearray(max(index_size(index, id) for id in ids))
    reads = total_bytes = failed = wrong = 0
    end_s = time.monotonic() + float(seconds)
    while time.monotonic() < end_s:
        id = chance.choice(ids)
        reader = opened(index, (fast, slow), id)
        if reader is None:
            failed += 1
            continue
        count = os.preadv(reader.fd, [buffer], 0)
        reader.close()
        wrong += xxhash.xxh3_64_intdigest(memoryview(buffer)[:count]) != sums[id]
        reads += 1
        total_bytes += count
    print(json.dumps({"reads": reads, "bytes": total_bytes, "failed": failed, "wrong": wrong}))


def index_size(index: Index, id: FileId) -> int:
    cached = index.cached(id)
    return 0 if cached is None else cached.size_bytes


def opened(index: Index, volumes: tuple[str, str], id: FileId) -> CacheReader | None:
    for _ in range(ATTEMPTS):
        cached = index.cached(id)
        if cached is None or not cached.trusted:
            return None
        try:
            return CacheReader.open(volumes[cached.volume], cached)
        except PathNotFoundError:
            continue  # it moved between the two
    return None


if __name__ == "__main__":
    main()
