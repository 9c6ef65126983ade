"""Content lists: what is written is read, and nothing else is."""

from __future__ import annotations

import io
import random
import stat

import msgspec
import pytest

from headrace.base.errors import InvalidImageError
from headrace.seal.snapshot import MAGIC, SnapshotEntry, differences, read_snapshot
from tests.unit.seal.snapshots import DIRECTORY, FILE, TOP, TREE, written


def read(data: bytes, id: str | None = None) -> list[SnapshotEntry]:
    return list(read_snapshot(io.BytesIO(data), id))


def test_what_is_written_is_read() -> None:
    data, id = written(TREE)
    assert read(data, id) == TREE
    assert written(TREE) == (data, id)


def test_another_content_has_another_id() -> None:
    ids = {written(TREE)[1], written(TREE[:-1])[1]}
    for number in range(2, 5):
        for change in (
            {"size_bytes": 1},
            {"mtime_ns": 2},
            {"mode": FILE & ~4},
            {"token": "u"},
            {"checksum": 3},
        ):
            entry = msgspec.structs.replace(TREE[number], **change)
            ids.add(written([*TREE[:number], entry, *TREE[number + 1 :]])[1])
    assert len(ids) == 2 + 3 * 5


def test_a_list_that_is_cut_is_refused() -> None:
    data, id = written(TREE)
    for end in range(len(data)):
        with pytest.raises(InvalidImageError):
            read(data[:end], id)


def test_a_list_with_another_byte_is_refused() -> None:
    data, id = written(TREE)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(InvalidImageError):
            read(bytes(changed), id)


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [SnapshotEntry(b"", FILE)],
        [SnapshotEntry(b"a", DIRECTORY)],
        [TOP, TOP],
        [TOP, SnapshotEntry(b"b", FILE), SnapshotEntry(b"a", FILE)],
        [TOP, SnapshotEntry(b"a", FILE), SnapshotEntry(b"a", FILE)],
        [TOP, SnapshotEntry(b"a", FILE), SnapshotEntry(b"a/b", FILE)],
        [TOP, SnapshotEntry(b"a/b", FILE)],
        [TOP, SnapshotEntry(b"a", DIRECTORY), SnapshotEntry(b"b", FILE), SnapshotEntry(b"a/b", FILE)],
        [TOP, SnapshotEntry(b"..", FILE)],
        [TOP, SnapshotEntry(b".", DIRECTORY)],
        [TOP, SnapshotEntry(b"a//b", FILE)],
        [TOP, SnapshotEntry(b"/a", FILE)],
        [TOP, SnapshotEntry(b"a\0b", FILE)],
        [TOP, SnapshotEntry(b"a" * 256, FILE)],
        [TOP, SnapshotEntry(b"a", stat.S_IFCHR | 0o444)],
        [TOP, SnapshotEntry(b"a", stat.S_IFLNK | 0o777)],
        [TOP, SnapshotEntry(b"a", FILE | 1 << 16)],
        [TOP, SnapshotEntry(b"a", FILE, -1)],
        [TOP, SnapshotEntry(b"a", FILE, 1 << 63)],
        [TOP, SnapshotEntry(b"a", FILE, 0, 1 << 63)],
        [TOP, SnapshotEntry(b"a", FILE, uid=-1)],
        [TOP, SnapshotEntry(b"a", FILE, gid=0xFFFFFFFF)],
        [TOP, SnapshotEntry(b"a", FILE, checksum=-1)],
    ],
)
def test_what_no_walk_yields_is_refused(entries: list[SnapshotEntry]) -> None:
    data, id = written(entries)
    with pytest.raises(InvalidImageError):
        read(data, id)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x90", msgspec.msgpack.encode([b"", DIRECTORY] + [0] * 9)])
def test_what_is_no_entry_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidImageError):
        read(MAGIC + len(body).to_bytes(2, "little") + body)


def test_differences_are_those_of_a_comparison_by_path() -> None:
    numbers = random.Random(4)
    for _ in range(200):
        old, new = (
            [TOP, *(SnapshotEntry(b"%d" % n, FILE, numbers.randrange(2)) for n in sorted(chosen, key=str))]
            for chosen in (numbers.sample(range(12), numbers.randrange(9)) for _ in range(2))
        )
        before, after = ({entry.path: entry.size_bytes for entry in entries} for entries in (old, new))
        expected = {
            *(("removed", path) for path in before.keys() - after.keys()),
            *(("added", path) for path in after.keys() - before.keys()),
            *(("changed", path) for path in before.keys() & after.keys() if before[path] != after[path]),
        }
        assert {(change, entry.path) for change, entry in differences(old, new)} == expected


def test_a_missing_file_is_compared_by_its_version() -> None:
    known = SnapshotEntry(b"a", FILE, 5, 7, token='"x"', checksum=12)
    for other, is_equal in (
        (SnapshotEntry(b"a", FILE, 5, 8, token='"x"', checksum=None), True),
        (SnapshotEntry(b"a", FILE, 5, 7, token='"y"', checksum=None), False),
        (SnapshotEntry(b"a", FILE, 6, 7, token='"x"', checksum=None), False),
    ):
        assert known.has_bytes_of(other) == other.has_bytes_of(known) == is_equal
        assert [change for change, _ in differences([TOP, known], [TOP, other])] == ["changed"] * (
            not is_equal
        )
    without_token = SnapshotEntry(b"a", FILE, 5, 7, checksum=None)
    assert without_token.has_bytes_of(SnapshotEntry(b"a", FILE, 5, 7))
    assert not without_token.has_bytes_of(SnapshotEntry(b"a", FILE, 5, 8))


@pytest.mark.parametrize(
    "entry", [SnapshotEntry(b"a", DIRECTORY, checksum=None), SnapshotEntry(b"a", FILE, checksum=None)]
)
def test_only_a_file_with_bytes_can_be_missing(entry: SnapshotEntry) -> None:
    with pytest.raises(InvalidImageError):
        read(written([TOP, entry])[0])
