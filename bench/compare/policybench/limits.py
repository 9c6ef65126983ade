"""Eight writers of one tenant, in a store on a disk."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from headrace.base.eviction_group import EvictionGroup
from headrace.base.model import ROOT_ID, Entry, FileId, Version
from headrace.base.priority import Priority
from headrace.policy.dues import Entitlement
from headrace.policy.tenant_division import TenantDivision
from headrace.store.groups import SpaceDivision
from headrace.store.index import Index
from headrace.store.space import SpaceRules
from headrace.store.store import Store
from headrace.store.volume import Volume

from .cases import Bench

EXCEEDED = "limit exceeded under 8 writers, at most"
WRITERS = 8
FILE_BYTES = 64 << 10


def limit(bench: Bench) -> None:
    """They write four times what the limit permits. The store is asked after each file."""
    for run in range(bench.repeat):
        limit_bytes = bench.count(1000, 100) * FILE_BYTES
        division = TenantDivision(lambda _: EvictionGroup(Priority.NORMAL, ("A",)), 4 * limit_bytes)
        division.update({"A": Entitlement(limit=limit_bytes)})
        folder = os.path.join(bench.place.root, f"store-{run}")
        volume = Volume(0, folder, 4 * limit_bytes, "ssd")
        store = Store.open(
            f"{folder}/index", [volume], rules=SpaceRules(divide=partial(_divide_by, division))
        )
        try:
            most_bytes = written_by_all(store, entries_of(store, 4 * limit_bytes // FILE_BYTES))
        finally:
            store.close()
        excess = max(0.0, most_bytes / limit_bytes - 1)
        bench.results.add(EXCEEDED, "headrace", excess, unit="share")


def _divide_by(division: SpaceDivision, _: Index) -> SpaceDivision:
    return division


def entries_of(store: Store, count: int) -> list[Entry]:
    entries = []
    for number in range(count):
        version = Version(FILE_BYTES, 5, "t")
        id, _ = store.index.names.put_file(ROOT_ID, str(number).encode(), version)
        entry = store.index.entry(FileId(id))
        assert entry is not None
        entries.append(entry)
    return entries


def written_by_all(store: Store, entries: list[Entry]) -> int:
    """Return the most bytes that the cache had after any file."""

    def write(first: int) -> int:
        most_bytes = 0
        for entry in entries[first::WRITERS]:
            store.complete_small(entry, bytes(FILE_BYTES))
            most_bytes = max(most_bytes, store.used_bytes)
        return most_bytes

    with ThreadPoolExecutor(WRITERS) as writers:
        return max(writers.map(write, range(WRITERS)))
