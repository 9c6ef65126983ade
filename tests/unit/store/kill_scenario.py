"""Write to a store all that it commits, until a failpoint ends the process.

Run as `python -m tests.unit.store.kill_scenario FOLDER`.
"""

from __future__ import annotations

import sys

from headrace.base.model import BLOCK_SIZE_BYTES, ROOT_ID, Entry, Version
from headrace.store.store import Store
from headrace.store.volume import Volume

LARGE, SMALL = b"L" * (2 * BLOCK_SIZE_BYTES + 9), b"S" * 1000
BODIES = {b"large": LARGE, b"small": SMALL, b"freed": SMALL, b"bad": LARGE}


def scenario(folder: str) -> None:
    """Every commit there is, once."""
    store = open_at(folder)
    for name in (b"large", b"bad"):
        writer = store.create(entry_of(store, name))
        writer.write(0, LARGE[: 2 * BLOCK_SIZE_BYTES])
        writer.write(2 * BLOCK_SIZE_BYTES, LARGE[2 * BLOCK_SIZE_BYTES :])
        store.complete(writer)
    store.complete_small_many([(entry_of(store, b"small"), SMALL), (entry_of(store, b"freed"), SMALL)])
    store.free(entry_of(store, b"freed").id)
    bad = entry_of(store, b"bad").id
    with open(store.volumes[0].data_path(bad), "r+b") as file:
        file.write(b"rotten")
    store.verifier.verify(bad)
    store.sync()
    store.close()


def open_at(folder: str) -> Store:
    return Store.open(f"{folder}/index", [Volume(0, folder, 1 << 30, "")])


def entry_of(store: Store, name: bytes) -> Entry:
    body = BODIES[name]
    entry = store.index.entry(store.index.names.put_file(ROOT_ID, name, Version(len(body), 1, "t"))[0])
    assert entry is not None
    return entry


if __name__ == "__main__":
    scenario(sys.argv[1])
