"""The mode that `--io auto` takes depends on the sizes that a look at some directories finds."""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.base.cancel import Cancel
from headrace.base.errors import CancelledByUserError
from headrace.base.model import ROOT_ID, Entry, FileId, Kind, Version
from headrace.fuse import auto_io_mode


class Tree:
    """A root with folders of files of given sizes; only what the survey asks of a client."""

    def __init__(self, folders: list[list[int]]) -> None:
        self._children: dict[int, list[Entry]] = {ROOT_ID: []}
        for number, sizes in enumerate(folders):
            id = FileId(100 + number)
            self._children[ROOT_ID].append(Entry(id, ROOT_ID, b"d%d" % number, Kind.DIRECTORY, Version(0, 0)))
            self._children[id] = [
                Entry(FileId(10_000 + i), id, b"f%d" % i, Kind.FILE, Version(size, 0))
                for i, size in enumerate(sizes)
            ]
        self.hangs = False

    def ensure_listed(self, directory: FileId, cancel: Cancel | None = None) -> None:
        if self.hangs and directory != ROOT_ID:
            assert cancel is not None
            select.select([cancel], [], [])
            raise CancelledByUserError("broken off")

    def children(self, directory: FileId, after: bytes = b"") -> Iterator[Entry]:
        return iter(self._children[directory])


def surveyed(tree: Any) -> str:
    return auto_io_mode.small_files(tree)


def test_small_files_are_found_below_folders() -> None:
    assert "110 KB" in surveyed(Tree([[110_000] * 40, [90_000] * 20 + [110_000] * 40]))


@pytest.mark.parametrize(
    "folders",
    [[], [[1000] * 10], [[2 << 20] * 100], [[1000] * 100 + [1 << 30]]],
    ids=["nothing", "too few", "not small", "a large one among them"],
)
def test_all_else_is_not(folders: list[list[int]]) -> None:
    assert surveyed(Tree(folders)) == ""


def test_a_slow_origin_does_not_hold_up_the_start() -> None:
    tree = Tree([[1000] * 100])
    tree.hangs = True
    assert "100" in surveyed(tree)  # the names of a listing under way are there to be seen
