from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import (
    CorruptIndexError,
    NoSpaceError,
    NotSupportedError,
    PathNotFoundError,
    StoreBusyError,
    StoreError,
)
from headrace.base.model import ROOT_ID, Attributes, Entry, FileId, Kind, Version
from headrace.store import names
from headrace.store.index import Index
from headrace.store.listing import ListingWriter
from headrace.store.schema import FOREVER_NS, pack_cached, pack_entry, unpack_cached, unpack_entry
from tests import fork_server
from tests.unit.store.conftest import cached_file

V1, V2 = Version(1, 1, "a"), Version(2, 2, "b")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "index")


TOKENS = ["", '"' + "a1" * 16 + '"', '"' + "a1" * 16 + '-12"', '"' + "a1" * 16 + '-012"', '"' + "A1" * 16 +
'"',
          '"' + "zz" * 16 + '"', 'W/"x"', '"' + "a1" * 16 + '-99999"', "é"]  # fmt: skip


@pytest.mark.parametrize("token", TOKENS)
def test_records_come_back_as_they_went(token: str) -> None:
    version = Version(1 << 40, -5, token)
    entry = unpack_entry(FileId(3), b"name", pack_entry(Kind.FILE, 9, version))
    assert (entry.id, entry.parent, entry.name, entry.kind, entry.version) == (
        9,
        3,
        b"name",
        Kind.FILE,
        version,
    )
    dressed = Attributes(-7, 0o4755, 1000, 4_000_000_000)
    again = unpack_entry(FileId(3), b"name", pack_entry(Kind.FILE, 9, version, dressed))
    assert (again.version, again.attributes, again.mtime_ns) == (version, dressed, -7)
    cached = cached_file(FileId(4), token=token, pinned=True, sequence=77)
    assert unpack_cached(FileId(4), pack_cached(cached)) == cached


def test_a_whole_file_is_found_by_name(folder: str) -> None:
    index = Index.open(folder, writable=True)
    try:
        parent = index.names.ensure_directory(ROOT_ID, b"d")
        id, _ = index.names.put_file(parent, b"f", Version(9, 1, "a"), Attributes(5, 0o600, 1, 2))
        index.names.ensure_directory(parent, b"below")
        index.put_cached(cached_file(id, volume=3, size_bytes=9))
        assert index.whole_file(parent, b"f", 0) is None  # its listing was never taken
        index.names.set_fresh_until(parent, 100_000_000)
        file = index.whole_file(parent, b"f", 99_000_000)
        assert file is not None and file[:3] == (id, 9, 3)
        assert index.whole_file(parent, b"f", 100_000_000) is None
        for name in (b"none", b"below", b"", b"x" * 300, b"x" * 600):
            assert index.whole_file(parent, name, 0) is None
        for changes in ({"complete": False}, {"unverified": True}):
            index.put_cached(cached_file(id, **changes))
            assert index.whole_file(parent, b"f", 0) is None
        index.drop_cached(id)
        assert index.whole_file(parent, b"f", 0) is None
    finally:
        index.close(clean=True)


def test_a_lookup_tells_a_fresh_listing_without_a_name_from_an_old_one(folder: str) -> None:
    index = Index.open(folder, writable=True)
    try:
        parent = index.names.ensure_directory(ROOT_ID, b"d")
        index.names.put_file(parent, b"f", Version(9, 1, "a"), Attributes(5, 0o600, 1, 2))
        assert index.fresh_lookup(parent, b"f", 0) == (False, None)  # its listing was never taken
        index.names.set_fresh_until(parent, 100_000_000)
        entry = index.lookup(parent, b"f")
        assert entry is not None and index.fresh_lookup(parent, b"f", 99_000_000) == (True, entry)
        for name in (b"none", b"", b"x" * 300, b"x" * 600):
            assert index.fresh_lookup(parent, name, 99_000_000) == (True, None)
        for name in (b"f", b"none", b"", b"x" * 600):
            assert index.fresh_lookup(parent, name, 100_000_000) == (False, None)
        index.names.set_fresh_until(parent, FOREVER_NS)
        assert index.fresh_lookup(parent, b"f", 10**18) == (True, entry)
    finally:
        index.close(clean=True)


def test_attributes_stay_as_long_as_the_version(folder: str) -> None:
    index = Index.open(folder, writable=True)
    mine = Attributes(5, 0o600, 1, 2)
    id, _ = index.names.put_file(ROOT_ID, b"f", V1)
    assert index.names.put_file(ROOT_ID, b"f", V1, mine) == (id, False)
    writer = ListingWriter(index.names, ROOT_ID)
    writer.add([(b"f", V1), (b"g", V1)], [])
    assert writer.finish(1) == []
    entry = index.lookup(ROOT_ID, b"f")
    assert entry is not None
    assert (entry.id, entry.attributes) == (id, mine)
    index.names.put_file(ROOT_ID, b"f", V2)
    entry = index.lookup(ROOT_ID, b"f")
    assert entry is not None
    assert (entry.version, entry.attributes, entry.mtime_ns) == (V2, None, V2.mtime_ns)


def test_names_ids_and_paths(folder: str) -> None:
    index = Index.open(folder, writable=True)
    a = index.names.ensure_directory(ROOT_ID, b"a")
    assert index.names.ensure_directory(a, b"b") == index.names.ensure_directory(a, b"b")
    id, changed = index.names.put_file(a, b"f", V1)
    assert not changed
    assert index.path_of(id) == b"/a/f"
    assert index.path_of(ROOT_ID) == b"/"
    assert [entry.name for entry in index.children(a)] == [b"b", b"f"]
    assert [entry.name for entry in index.children(a, after=b"b")] == [b"f"]
    assert index.names.put_file(a, b"f", V1) == (id, False)
    other, changed = index.names.put_file(a, b"f", V2)
    assert changed
    assert other != id
    assert index.entry(id) is None
    assert index.path_of(id) is None
    record = index.lookup(a, b"f")
    assert record is not None
    assert record.id == other
    index.close(clean=True)


def test_replacing_or_removing_supersedes_what_is_cached(folder: str) -> None:
    index = Index.open(folder, writable=True)
    a = index.names.ensure_directory(ROOT_ID, b"a")
    first, _ = index.names.put_file(a, b"f", V1)
    index.put_cached(cached_file(first))
    second, _ = index.names.put_file(a, b"f", V2)
    index.put_cached(cached_file(second))
    assert index.names.remove(ROOT_ID, b"a")
    assert [*index.superseded] == [first, second]
    for id in index.superseded:
        cached = index.cached(id)
        assert cached is not None
        assert cached.superseded
    assert index.lookup(ROOT_ID, b"a") is None
    assert index.entry(second) is None
    assert not index.names.remove(ROOT_ID, b"a")
    index.close(clean=True)


def test_listing_removes_what_is_gone_and_keeps_what_it_must(folder: str) -> None:
    index = Index.open(folder, writable=True)
    d = index.names.ensure_directory(ROOT_ID, b"d")
    writer = ListingWriter(index.names, d)
    writer.add([(b"one", V1), (b"two", V1)], [b"sub"])
    assert index.fresh_until_ns(d) == 0
    assert writer.finish(99_000_000) == []
    assert index.fresh_until_ns(d) == 99_000_000
    index.names.ensure_directory(d, b"mount")
    writer = ListingWriter(index.names, d)
    writer.keep(b"mount")
    writer.add([(b"one", V2), (b"three", V1)], [])
    index.names.put_file(d, b"late", V1)  # by another request, after the page that would have had it
    assert {entry.name for entry in index.children(d)} == {
        b"late",
        b"mount",
        b"one",
        b"sub",
        b"three",
        b"two",
    }
    # three is new: whoever saw the listing before may believe that there is no such name
    assert sorted(writer.finish(100)) == [(d, b"one"), (d, b"sub"), (d, b"three"), (d, b"two")]
    assert [entry.name for entry in index.children(d)] == [b"late", b"mount", b"one", b"three"]
    index.names.expire_all(ROOT_ID)
    assert index.fresh_until_ns(d) == 0
    index.close(clean=True)


@pytest.mark.parametrize("walked_max", [3, 20_000])
@pytest.mark.parametrize("to_ns", [0, 1])
@pytest.mark.parametrize("top", ["/", "a", "b", "d"])
def test_listings_at_and_below_a_directory_expire(
    folder: str, monkeypatch: pytest.MonkeyPatch, top: str, to_ns: int, walked_max: int
) -> None:
    monkeypatch.setattr(names, "WALKED_NAMES_MAX", walked_max)
    index = Index.open(folder, writable=True)
    ids = {"/": ROOT_ID}
    for name, parent in (("a", "/"), ("b", "a"), ("c", "b"), ("d", "/"), ("e", "d"), ("never", "b")):
        ids[name] = index.names.ensure_directory(ids[parent], name.encode())
        index.names.put_file(ids[name], b"f", V1)
    for name, id in ids.items():
        if name != "never":
            index.names.set_fresh_until(id, FOREVER_NS)
    in_progress = ListingWriter(index.names, ids["never"])
    index.names.expire_all(ids[top], to_ns=to_ns)
    expired = {"/": "/abcde", "a": "abc", "b": "bc", "d": "de"}[top]
    assert in_progress._fresh_until_max_ns == (FOREVER_NS if top == "d" else to_ns)
    ends = {name: index.fresh_until_ns(id) for name, id in ids.items()}
    assert ends == {name: 0 if name == "never" else to_ns if name in expired else FOREVER_NS for name in ids}
    index.close(clean=False)


def test_the_names_of_a_large_directory_are_not_passed_to_expire_its_listing(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten million would hold the node's loop for 20 s, at each start."""
    monkeypatch.setattr(names, "WALKED_NAMES_MAX", 100)
    index = Index.open(folder, writable=True)
    with index.batch():
        top = index.names.ensure_directory(ROOT_ID, b"d")
        for number in range(2000):
            index.names.put_file(top, b"%d" % number, V1)
        index.names.set_fresh_until(top, FOREVER_NS)
    passed = []
    children = index.children

    def counted(directory: FileId, *, after: bytes = b"") -> Iterator[Entry]:
        for entry in children(directory, after=after):
            passed.append(entry.id)
            yield entry

    monkeypatch.setattr(index, "children", counted)
    index.names.expire_all(ROOT_ID)
    assert len(passed) <= 102
    assert index.fresh_until_ns(top) == 0
    index.close(clean=False)


def test_what_this_node_changed_does_not_come_back_with_a_listing_of_before(folder: str) -> None:
    index = Index.open(folder, writable=True)
    for name in (b"removed", b"replaced", b"theirs"):
        index.names.put_file(ROOT_ID, name, V1)
    index.names.ensure_directory(ROOT_ID, b"gone")
    writer = ListingWriter(index.names, ROOT_ID)
    for name in (b"removed", b"replaced", b"theirs", b"gone", b"new"):
        index.names.outdate(ROOT_ID, name)
    for name in (b"removed", b"gone", b"theirs"):
        index.names.remove(ROOT_ID, name)
    for name in (b"replaced", b"new"):
        index.names.put_file(ROOT_ID, name, V2)
    writer.add([(b"removed", V1), (b"replaced", V1), (b"theirs", V2)], [b"gone"])
    writer.finish(1)
    versions = {entry.name: entry.version for entry in index.children(ROOT_ID)}
    assert versions == {b"replaced": V2, b"new": V2, b"theirs": V2}
    later = ListingWriter(index.names, ROOT_ID)
    later.add([(b"removed", V1)], [])
    later.finish(1)
    assert [entry.name for entry in index.children(ROOT_ID)] == [b"removed"]
    index.close(clean=True)


def test_children_over_many_batches_and_names_too_long(folder: str) -> None:
    index = Index.open(folder, writable=True)
    names = [b"%05d" % number for number in range(1500)]
    writer = ListingWriter(index.names, ROOT_ID)
    writer.add([(name, V1) for name in names] + [(b"x" * 256, V1)], [])
    writer.finish(1)
    assert writer.skipped == 1
    assert [entry.name for entry in index.children(ROOT_ID)] == names
    assert index.statistics()["entries"] == 1500
    with pytest.raises(NotSupportedError):
        index.names.put_file(ROOT_ID, b"x" * 256, V1)
    assert index.lookup(ROOT_ID, b"x" * 600) is None
    index.close(clean=True)


def test_a_batch_that_fails_leaves_nothing_and_no_id_twice(folder: str) -> None:
    index = Index.open(folder, writable=True)
    lost = FileId(0)
    with pytest.raises(RuntimeError):
        with index.batch():
            lost, _ = index.names.put_file(ROOT_ID, b"a", V1)
            assert index.lookup(ROOT_ID, b"a") is not None
            raise RuntimeError
    assert index.lookup(ROOT_ID, b"a") is None
    assert index.names.put_file(ROOT_ID, b"b", V1)[0] > lost
    index.close(clean=True)


def test_a_batch_within_another_is_a_part_of_it(folder: str) -> None:
    index = Index.open(folder, writable=True)
    with pytest.raises(RuntimeError), index.batch():
        with index.batch():
            index.names.put_file(ROOT_ID, b"a", V1)
        raise RuntimeError
    assert index.lookup(ROOT_ID, b"a") is None
    with index.batch():
        with pytest.raises(RuntimeError), index.batch():
            index.names.put_file(ROOT_ID, b"a", V1)
            raise RuntimeError
        index.names.put_file(ROOT_ID, b"b", V1)
    assert None not in (index.lookup(ROOT_ID, b"a"), index.lookup(ROOT_ID, b"b"))
    index.close(clean=True)


def test_mounts_are_remembered(folder: str) -> None:
    index = Index.open(folder, writable=True)
    index.mounts.put("/data", {"url": "s3://b"})
    index.mounts.put("/x", {"url": "s3://c"})
    index.mounts.drop("/x")
    generation = index.state.generation
    index.close(clean=True)
    index = Index.open(folder, writable=True)
    assert index.mounts.all() == {"/data": {"url": "s3://b"}}
    assert index.state.generation == generation
    index.close(clean=True)


def test_one_writer_many_readers(folder: str) -> None:
    with pytest.raises(PathNotFoundError):
        Index.open(folder, writable=False)
    index = Index.open(folder, writable=True)
    with pytest.raises(StoreBusyError, match=str(os.getpid())):
        Index.open(folder, writable=True)
    id, _ = index.names.put_file(ROOT_ID, b"a", V1)
    code = (
        "import sys; from headrace.store.index import Index\n"
        "index = Index.open(sys.argv[1], writable=False)\n"
        "print(index.lookup(1, b'a').id)"
    )
    done = fork_server.run([sys.executable, "-c", code, folder], capture_output=True, text=True)
    assert (done.returncode, int(done.stdout)) == (0, id)
    index.close(clean=True)


def _garbage(path: Path) -> None:
    path.write_bytes(os.urandom(1 << 16))


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _cut(path: Path) -> None:
    os.truncate(path, 8192)


def _wipe_pages(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xa5" * (size - 8192))


@pytest.mark.parametrize("damage", [_garbage, _empty, _cut, _wipe_pages])
def test_a_damaged_index_is_an_error_and_no_crash(folder: str, damage: object) -> None:
    index = Index.open(folder, writable=True)
    writer = ListingWriter(index.names, ROOT_ID)
    writer.add([(b"%05d" % number, V1) for number in range(5000)], [])
    writer.finish(1)
    index.close(clean=True)
    assert callable(damage)
    damage(Path(folder) / "data.mdb")
    with pytest.raises(CorruptIndexError):
        Index.open(folder, writable=True)


def test_another_format_or_a_damaged_checkpoint_is_an_error(folder: str) -> None:
    index = Index.open(folder, writable=True)
    with index.batch():
        index._transactions.put(index._environment.meta, b"format", b"\x63\0")
    index.close(clean=True)
    with pytest.raises(CorruptIndexError, match="format 99"):
        Index.open(folder, writable=True)
    (Path(folder) / "checkpoint").write_bytes(b"nonsense")
    with pytest.raises(CorruptIndexError, match="checkpoint"):
        Index.open(folder, writable=True)


def test_a_checkpoint_that_is_cut_short_by_a_full_disk_replaces_no_other(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start would find it damaged, and put the whole index aside."""
    index = Index.open(folder, writable=True)
    index.names.put_file(ROOT_ID, b"f", V1)
    index.state.checkpoint()
    (Path(folder) / "checkpoint.new").unlink()
    plain = os.pwrite

    def write(fd: int, body: bytes, offset: int) -> int:
        if offset >= 4096:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(fd, body[: 4096 - offset], offset)

    with monkeypatch.context() as full, pytest.raises(NoSpaceError):
        full.setattr(os, "pwrite", write)
        index.state.checkpoint()
    index.close(clean=False)
    index = Index.open(folder, writable=True)
    assert index.lookup(ROOT_ID, b"f") is not None
    index.close(clean=True)


def test_power_loss_goes_back_to_the_checkpoint(folder: str) -> None:
    """Pages written after the checkpoint never reach the disk here; those before did."""
    index = Index.open(folder, writable=True, boot_id="one")
    for number in range(300):
        index.names.put_file(ROOT_ID, b"before%d" % number, V1)
    index.state.checkpoint()
    at_checkpoint = (Path(folder) / "data.mdb").read_bytes()
    for tens in range(0, 300, 10):  # few commits: after many, the checkpoint is renewed
        with index.batch():
            for number in range(tens, tens + 10):
                index.names.put_file(ROOT_ID, b"after%d" % number, V1)
                index.names.remove(ROOT_ID, b"before%d" % number)
    lost = index._transactions.next_id
    after = (Path(folder) / "data.mdb").read_bytes()
    index.close(clean=False)
    data = bytearray(after)
    for offset in range(
        8192, len(after), 4096
    ):  # no page of the checkpoint was written again; the others are torn
        page = after[offset : offset + 4096]
        if page != at_checkpoint[offset : offset + 4096]:
            data[offset : offset + 4096] = bytes(4096)
    (Path(folder) / "data.mdb").write_bytes(data)
    index = Index.open(folder, writable=True, boot_id="two")
    assert index.state.restored
    assert sorted(entry.name for entry in index.children(ROOT_ID)) == sorted(
        b"before%d" % n for n in range(300)
    )
    assert index.names.put_file(ROOT_ID, b"new", V1)[0] > lost
    for number in range(300):
        index.names.put_file(ROOT_ID, b"again%d" % number, V1)
    index.close(clean=True)


def test_a_batch_whose_next_id_is_not_recorded_leaves_no_transaction_open(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.open(folder, writable=True)
    other = Index.open(str(tmp_path / "other"), writable=True)
    with monkeypatch.context() as patch:
        patch.setattr(index._transactions, "_meta", other._transactions._meta)  # LMDB refuses it
        with pytest.raises(StoreError) as failure:
            index.names.ensure_directory(ROOT_ID, b"lost")
    next_commit = threading.Event()

    def make() -> None:
        index.names.ensure_directory(ROOT_ID, b"d")
        next_commit.set()

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    try:
        assert next_commit.wait(60), failure.value  # the exception lives
    finally:
        del failure
    thread.join()
    assert index.lookup(ROOT_ID, b"lost") is None
    assert index.lookup(ROOT_ID, b"d") is not None
    for opened in (index, other):
        opened.close(clean=False)
