"""A sealed file is read while it is fetched if its version names bytes; otherwise only when it is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.cancel import Cancel
from headrace.base.errors import EvictedError, VersionChangedError
from headrace.base.model import BLOCK_SIZE_BYTES, ROOT_ID, Entry, FileId, Version
from headrace.client.file import OpenFile
from headrace.store.checksum import block_checksum
from headrace.store.reader import CacheReader
from headrace.store.store import Store
from headrace.store.volume import Volume
from headrace.vfs.sealed_bytes import SealedBytes
from headrace.vfs.streams import Content
from headrace.wire.message import Message
from headrace.wire.messages import Answer, Filled, FillRange

MIB = BLOCK_SIZE_BYTES
BODY = os.urandom(2 * MIB + 7)
CHECKSUM = block_checksum(
    b"".join(block_checksum(BODY[start : start + MIB]).to_bytes(8, "little") for start in (0, MIB, 2 * MIB))
)
STRONG, WEAK = '"etag"', "5-6-7"


class Cache:
    """A store with one file, which each read fills with `body`."""

    def __init__(self, folder: Path, token: str) -> None:
        self.store = Store.open(str(folder / "v/index"), [Volume(0, str(folder / "v"), 64 * MIB)])
        id, _ = self.store.index.names.put_file(ROOT_ID, b"f", Version(len(BODY), 1, token))
        entry = self.store.index.entry(id)
        assert entry is not None
        self.entry: Entry = entry
        self.writer = self.store.create(entry)
        self.body = BODY

    def ask(self, request: Message, _: Cancel | None) -> Answer:
        assert isinstance(request, FillRange)
        end = min(len(BODY), -(-request.end // MIB) * MIB)
        for low, high in self.writer.missing(request.start // MIB * MIB, end):
            self.writer.write(low, self.body[low:high])
        return Filled(complete=False)

    def reader(self, id: FileId) -> CacheReader | None:
        cached = self.store.index.cached(id)
        return None if cached is None else CacheReader.open(self.store.volumes[0].folder, cached, sums=True)

    def open(self, entry: Entry) -> Content:
        reader = self.reader(entry.id)
        assert reader is not None
        return Content(len(BODY), file=OpenFile(entry.id, reader, self.ask, self.reader))

    def sealed(self) -> Content:
        return SealedBytes(self.reader).open(b"/x@1/f", self.entry, CHECKSUM, self.open)


@pytest.fixture(params=[STRONG, WEAK])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cache]:
    cache = Cache(tmp_path, request.param)
    yield cache
    cache.store.close()


def test_the_sealed_bytes_are_read_before_the_file_is_whole_if_its_version_names_them(cache: Cache) -> None:
    content = cache.sealed()
    is_whole = not cache.writer.missing(0, len(BODY))
    assert is_whole is (cache.entry.version.token == WEAK)
    assert content.read(5, 100) == BODY[5:100]
    assert content.read(0, len(BODY)) == BODY
    buffer = bytearray(MIB)
    assert content.read_into(memoryview(buffer), MIB) == MIB and buffer == BODY[MIB : 2 * MIB]
    content.close()


@pytest.mark.expected_warnings("a file of a seal can't be read")
def test_other_bytes_are_refused_as_soon_as_the_file_is_whole(cache: Cache) -> None:
    cache.body = BODY[:MIB] + os.urandom(MIB + 7)
    if cache.entry.version.token == WEAK:
        with pytest.raises(VersionChangedError, match="/x@1/f"):
            cache.sealed()
        return
    content = cache.sealed()
    assert content.read(0, MIB) == BODY[:MIB]
    for _ in range(2):
        with pytest.raises(VersionChangedError):
            content.read(MIB, len(BODY))
    with pytest.raises(VersionChangedError):
        content.read(0, 1)
    content.close()
    with pytest.raises(VersionChangedError):
        cache.sealed()


def test_the_checksums_of_another_cache_file_prove_nothing(cache: Cache) -> None:
    cache.ask(FillRange(id=cache.entry.id, start=0, end=len(BODY)), None)
    old = cache.reader(cache.entry.id)
    assert old is not None
    cache.store.free(cache.entry.id)
    cache.writer = cache.store.create(cache.entry)
    sealed_bytes = SealedBytes(cache.reader)
    assert sealed_bytes.compare(cache.entry.id, CHECKSUM, old.fd) is None
    cache.ask(FillRange(id=cache.entry.id, start=0, end=len(BODY)), None)
    assert sealed_bytes.compare(cache.entry.id, CHECKSUM, old.fd) is None
    with pytest.raises(EvictedError):
        sealed_bytes.open(b"/x@1/f", cache.entry, CHECKSUM, lambda _: Content(len(BODY), fd=os.dup(old.fd)))
    old.close()
