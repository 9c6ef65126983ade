"""The tree of missing files by id: only names that are missing, and only the sealed bytes of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, cast

import pytest

from headrace.base.cache_names import lazy_name
from headrace.base.cancel import Cancel
from headrace.base.errors import OriginError, PathNotFoundError
from headrace.base.model import ROOT_ID, Entry, FileId, Kind, Version
from headrace.client.file import OpenFile
from headrace.fuse.lazy_files import DIRECTORY_ID, LazyClient, LazyFiles
from headrace.seal.snapshot import SnapshotEntry

FILE = 0o100444
SEALED = [
    (SnapshotEntry(b"a/x", FILE, 10, 7, token='"x"', checksum=None), 9),
    (SnapshotEntry(b"b", FILE, 20, 8, checksum=None), 3),
    (SnapshotEntry(b"cached", FILE, 20, 8, checksum=5), 4),
    (SnapshotEntry(b"\xff", FILE, 1 << 40, 0, token="W/é", checksum=None), (1 << 47) - 2),
]
X, B = Version(10, 7, '"x"'), Version(20, 8)


class CacheOfNode:
    """A node's cache in memory: versions by id, and ids by path."""

    generation = 1

    def __init__(self) -> None:
        self.known: dict[int, Version] = {}
        self.cached: dict[int, Version] = {}
        self.paths: dict[bytes, tuple[int, Version]] = {}
        self.opened: list[int] = []
        self.events: list[Callable[[Any], None]] = []
        self.on_open: Callable[[int], object] = lambda id: self.cached.setdefault(id, self.known[id])

    def entry(self, id: FileId) -> Entry | None:
        version = self.known.get(id)
        return None if version is None else Entry(id, ROOT_ID, b"x", Kind.FILE, version)

    def cached_version(self, id: FileId) -> Version | None:
        return self.cached.get(id)

    def resolve(self, path: bytes) -> Entry:
        if path not in self.paths:
            raise PathNotFoundError(os.fsdecode(path))
        id, version = self.paths[path]
        self.known[id] = version
        return Entry(FileId(id), ROOT_ID, b"x", Kind.FILE, version)

    def complete_path(self, id: FileId) -> str | None:
        return f"/cache/{id}" if id in self.cached else None

    def open(self, id: FileId, cancel: Cancel | None = None) -> OpenFile:
        self.opened.append(id)
        self.on_open(id)
        return cast("OpenFile", _Closable())

    def touch(self, id: FileId, pid: int = 0) -> None:
        self.opened.append(-id)

    def acknowledge(self, receipt: int) -> None: ...

    def subscribe(
        self, on_event: Callable[[Any], None], *, on_subscribed: Callable[[], None] = lambda: None
    ) -> None:
        self.events.append(on_event)


class _Closable:
    def close(self) -> None: ...


@pytest.fixture
def cache() -> CacheOfNode:
    return CacheOfNode()


@pytest.fixture
def client(cache: CacheOfNode) -> LazyClient:
    return LazyClient(cache, LazyFiles("/images/", SEALED))


def walk(client: LazyClient, path: bytes) -> Entry | None:
    parent, entry = ROOT_ID, None
    for name in path.split(b"/"):
        entry = client.lookup_fast(parent, name)
        if entry is None:
            return None
        parent = entry.id
    return entry


def test_every_missing_file_is_found_by_its_lazy_name(client: LazyClient) -> None:
    for entry, id in SEALED:
        found_entry = walk(client, lazy_name(id))
        if entry.is_missing:
            assert found_entry is not None
            assert (found_entry.id, found_entry.version.size_bytes) == (id, entry.size_bytes)
        else:
            assert found_entry is None


@pytest.mark.parametrize(
    "name",
    [
        *(
            b"",
            b".",
            b"..",
            b"lazy",
            b"9",
            b"00000000000A",
            b"0000000000009",
            b"+00000000009",
            b"-00000000009",
        ),
        *(
            b"0x0000000009",
            b"00000000000\n",
            b"000000000009\n",
            b"\xb2\xb2\xb2\xb2\xb2\xb2\xb2\xb2\xb2\xb2\xb2\xb2",
        ),
        *(b"7fffffffffff", b"000000000001", b"ffffffffffff"),
    ],
)
def test_no_other_name_is_there(client: LazyClient, name: bytes) -> None:
    assert client.lookup_fast(DIRECTORY_ID, name) is None
    for id in (FileId(9), FileId(3), FileId(5)):
        assert client.lookup_fast(id, name) is None
        assert client.lookup_fast(id, b"000000000009") is None


def test_paths_and_tokens_of_files_are_kept(client: LazyClient) -> None:
    files = LazyFiles("/images/", SEALED)
    assert len(files) == 3
    first, last = files.get(9), files.get((1 << 47) - 2)
    assert first is not None and last is not None
    assert (first.path, first.token, first.mtime_ns) == (b"/images/a/x", '"x"', 7)
    assert (last.path, last.token, last.size_bytes) == (b"/images/\xff", "W/é", 1 << 40)
    assert LazyFiles("/", []).get(1) is None


def test_a_file_is_opened_by_its_id(client: LazyClient, cache: CacheOfNode) -> None:
    cache.known[9] = X
    client.open(FileId(9))
    client.touch(FileId(9))
    assert cache.opened == [9, -9]
    assert client.complete_path(FileId(9)) == "/cache/9"


@pytest.mark.expected_warnings("a file of a lazy seal can't be read")
def test_what_lies_under_the_id_of_another_version_is_not_shown(
    client: LazyClient, cache: CacheOfNode
) -> None:
    cache.known[9] = cache.cached[9] = Version(10, 7, '"y"')
    cache.paths[b"/images/a/x"] = (11, Version(10, 7, '"y"'))
    assert client.complete_path(FileId(9)) is None
    with pytest.raises(OriginError, match="after it was sealed"):
        client.open(FileId(9))
    assert cache.opened == []


@pytest.mark.expected_warnings("a file of a lazy seal can't be read")
def test_a_file_that_changes_while_it_is_opened_is_not_shown(client: LazyClient, cache: CacheOfNode) -> None:
    cache.known[9] = X
    cache.on_open = lambda id: cache.cached.update({id: Version(10, 8, '"z"')})
    with pytest.raises(OriginError, match="while it was opened"):
        client.open(FileId(9))


@pytest.mark.expected_warnings("a file of a lazy seal can't be read")
def test_after_a_lost_index_a_file_is_found_by_its_path(client: LazyClient, cache: CacheOfNode) -> None:
    cache.paths[b"/images/b"] = (70, Version(20, 8))
    client.open(FileId(3))
    assert cache.opened == [70] and client.complete_path(FileId(3)) == "/cache/70"
    with pytest.raises(OriginError):
        client.open(FileId(9))
    with pytest.raises(PathNotFoundError):
        client.open(FileId(70))
