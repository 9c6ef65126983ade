"""The lists that a node keeps of origins: whole ones, and not more than fit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.seal import shared_lists
from headrace.seal.catalogue import Catalogue
from headrace.seal.shared_lists import SharedLists


@pytest.fixture
def lists(tmp_path: Path) -> SharedLists:
    return SharedLists(Catalogue.of_cache(str(tmp_path)))


def add(lists: SharedLists, number: int, size_bytes: int = 10) -> None:
    with lists.create(f"{number:064x}") as out:
        out.write(bytes(size_bytes))
    os.utime(lists.path(f"{number:064x}"), (number, number))


def kept(lists: SharedLists) -> list[int]:
    return [number for number in range(100) if lists.has(f"{number:064x}")]


def test_an_unfinished_list_leaves_nothing(lists: SharedLists, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="hostile"), lists.create("0" * 64) as out:
        out.write(b"half")
        raise ValueError("hostile")
    assert os.listdir(tmp_path / "seals/.shared") == []


def test_the_oldest_lists_are_removed(lists: SharedLists) -> None:
    for number in range(1, 21):
        add(lists, number)
    assert kept(lists) == list(range(5, 21))


def test_large_lists_are_removed_and_the_newest_stays(
    lists: SharedLists, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_lists, "KEPT_BYTES_MAX", 100)
    for number in (1, 2, 3):
        add(lists, number, 40)
    assert kept(lists) == [2, 3]
    add(lists, 4, 1000)
    assert kept(lists) == [4]


def test_a_list_that_is_being_fetched_is_not_removed(
    lists: SharedLists, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its origin is slow, so it is the oldest file when another list is complete."""
    monkeypatch.setattr(shared_lists, "KEPT_MAX", 1)
    monkeypatch.setattr(shared_lists, "KEPT_BYTES_MAX", 100)
    with lists.create(f"{1:064x}") as out:
        out.write(bytes(200))
        out.flush()
        (draft,) = (tmp_path / "seals/.shared").iterdir()
        os.utime(draft, (1, 1))
        add(lists, 2)
        add(lists, 3)
        assert draft.exists() and kept(lists) == [3]
        out.write(b"the rest")
    assert kept(lists) == [1]
