"""Looking paths up in a content list."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import InvalidImageError
from headrace.seal.snapshot import SnapshotEntry
from headrace.vfs.sealed_list import SealedList
from tests.unit.seal.snapshots import DIRECTORY, FILE, TREE, unpack_into

NAMES = st.sampled_from([b"a", b"b", b"a-", b"a.", b"\xff", b"aa"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(tuple)


def opened(folder: Path, entries: list[SnapshotEntry]) -> SealedList:
    unpack_into(folder / "list", entries)
    return SealedList(str(folder / "list"))


def tree_of(files: set[tuple[bytes, ...]]) -> list[SnapshotEntry]:
    """Return a list with these files, and the directories that they need. A file that is a directory, too, is one."""
    folders = {names[:depth] for names in files for depth in range(len(names))} | {()}
    return [
        SnapshotEntry(b"/".join(names), DIRECTORY if names in folders else FILE, len(names))
        for names in sorted(files | folders)
    ]


@given(st.sets(PATHS, max_size=20), PATHS)
def test_each_path_is_found_and_no_other(
    tmp_path_factory: pytest.TempPathFactory, files: set[tuple[bytes, ...]], other: tuple[bytes, ...]
) -> None:
    entries = tree_of(files)
    rows = opened(tmp_path_factory.mktemp("list"), entries)
    for position, entry in enumerate(entries):
        assert rows.find(entry.path) == position and rows.entry(position) == entry
        assert rows.file_number(position) == sum(before.is_file for before in entries[:position])
        if entry.is_file:
            continue
        prefix = entry.path + b"/" if entry.path else b""
        names = [
            row.path[len(prefix) :]
            for row in entries
            if row.path.startswith(prefix) and row.path != entry.path and b"/" not in row.path[len(prefix) :]
        ]
        assert [name for name, _ in rows.children(position)] == names
        for after in (*names, b"a", b"zz"):
            children = rows.children(position, after)
            assert [name for name, _ in children] == [name for name in names if name > after]
    missing = b"/".join(other)
    assert (rows.find(missing) is None) == (missing not in [entry.path for entry in entries])


def test_a_file_that_the_node_did_not_finish_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "list"
    opened(tmp_path, TREE)
    whole = path.read_bytes()
    for body in (b"", b"x", whole[:-8], whole[:-5], bytes(len(whole)), whole[:-8] + b"\xff" * 8):
        path.write_bytes(body)
        with pytest.raises(InvalidImageError, match="unpacked"):
            SealedList(str(path))
    path.unlink()
    with pytest.raises(FileNotFoundError):
        SealedList(str(path))
