"""Compare a cached file with the checksum that a content list has of it. Nothing is read: the cache recorded the
checksums of its blocks when it was filled."""

from __future__ import annotations

from headrace.base.errors import PathNotFoundError, StoreError, VersionChangedError
from headrace.base.model import BLOCK_SIZE_BYTES, Entry
from headrace.store.reader import CacheReader
from headrace.store.recovery import version_of
from headrace.store.store import Store


class SealedFileEntry(Entry, frozen=True, gc=False):
    """A file that must have the bytes of a seal. sealed_checksum: of all bytes; None where the list has none."""

    sealed_checksum: int | None = None


def stored_checksum(store: Store, path: str, entry: Entry) -> int:
    """Return the checksum of a whole file, as content lists have it. StoreError if the cache has no longer all of that
    version. path: for the error."""
    size_bytes = entry.version.size_bytes
    if not size_bytes:
        return 0
    cached = store.index.cached(entry.id)
    if cached is None or not cached.trusted or version_of(cached) != entry.version:
        raise StoreError(f"seal: {path}", why="the file left the cache meanwhile", hint="seal again")
    if size_bytes <= BLOCK_SIZE_BYTES:
        return cached.checksum
    try:
        reader = CacheReader.open(store.volumes[cached.volume].folder, cached, sums=True)
    except PathNotFoundError:
        if store.index.cached(entry.id) == cached:
            raise
        return stored_checksum(store, path, entry)  # it moved to another tier just now
    try:
        return reader.file_checksum()
    finally:
        reader.close()


def check_sealed_bytes(store: Store, entry: Entry) -> None:
    """Raise VersionChangedError if a file of a seal is whole and has other bytes."""
    if not isinstance(entry, SealedFileEntry) or entry.sealed_checksum is None:
        return
    cached = store.index.cached(entry.id)
    if cached is None or not cached.trusted:
        return  # this node loads a part of it
    if stored_checksum(store, "", entry) != entry.sealed_checksum:
        raise VersionChangedError(
            "a sealed file",
            why="the object was replaced at its origin by one with the same version, and other bytes",
        )
