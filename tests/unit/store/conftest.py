"""A store in a real folder, and files in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from headrace.base.model import (
    ROOT_ID,
    Entry,
    FileId,
    Version,
)
from headrace.store.schema import CachedFile
from headrace.store.sealed_files import SealedFile, StoredSeals
from headrace.store.space import SpaceRules
from headrace.store.store import Store
from headrace.store.volume import Volume

OpenStore = Callable[..., Store]
OpenDisks = Callable[..., Store]
"""Opens a store of several disks of one tier, with the index outside them."""


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    stores: list[Store] = []

    def open(
        capacity_bytes: int = 64 << 20,
        *,
        boot_id: str = "boot-1",
        policy: str = "s3fifo",
        sealed: Iterable[SealedFile] = (),
    ) -> Store:
        volume = Volume(0, str(tmp_path / "volume"), capacity_bytes, "ssd")
        index = str(tmp_path / "volume/index")
        seals = StoredSeals(read_ids=lambda: [[file.id for file in sealed]], read_files=lambda: sealed)
        store = Store.open(index, [volume], boot_id=boot_id, rules=SpaceRules(policy=policy), seals=seals)
        stores.append(store)
        return store

    yield open
    for store in stores:
        crash(store)


@pytest.fixture
def open_disks(tmp_path: Path) -> Iterator[OpenDisks]:
    stores: list[Store] = []

    def open(count: int, capacity_bytes: int = 64 << 20, *, boot_id: str = "boot-1") -> Store:
        volumes = [Volume(n, str(tmp_path / f"disk{n}"), capacity_bytes, "ssd") for n in range(count)]
        store = Store.open(str(tmp_path / "index"), volumes, boot_id=boot_id)
        stores.append(store)
        return store

    yield open
    for store in stores:
        crash(store)


def crash(store: Store) -> None:
    """Leave what kill -9 leaves: nothing is synced or marked; locks are released."""
    if store._closed:
        return
    store._closed = True
    for writer in list(store._files.writers.values()):
        writer.close()
    store.index.close(clean=False)
    for volume in store.volumes:
        volume.close()


def named(store: Store, name: bytes, size_bytes: int, token: str = "t") -> Entry:
    id, _ = store.index.names.put_file(ROOT_ID, name, Version(size_bytes, 5, token))
    entry = store.index.entry(id)
    assert entry is not None
    return entry


def cached(store: Store, id: FileId) -> CachedFile:
    record = store.index.cached(id)
    assert record is not None
    return record


def fill(store: Store, name: bytes, size_bytes: int) -> FileId:
    entry = named(store, name, size_bytes)
    writer = store.create(entry)
    for start, end in writer.missing(0, size_bytes):
        writer.write(start, os.urandom(end - start))
    store.complete(writer)
    return entry.id


def content(store: Store, id: FileId) -> bytes:
    return Path(store.volumes[0].data_path(id)).read_bytes()


def cached_file(id: FileId, **changes: object) -> CachedFile:
    values: dict[str, object] = {
        "id": id, "volume": 0, "size_bytes": 1, "mtime_ns": 1, "token": "a", "complete": True, "pinned":
        False, "unverified": False, "superseded": False, "checksum": 7, "sequence": 1,
    }  # fmt: skip
    return CachedFile(**{**values, **changes})  # type: ignore[arg-type]
