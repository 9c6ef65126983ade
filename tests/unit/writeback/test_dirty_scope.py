"""A node's record says where it wrote."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.writeback.coherence.dirty_scope import BYTES_MAX, DIRECTORIES_MAX, DirtyScope

NAMES = st.binary(min_size=1, max_size=3).filter(lambda name: b"/" not in name)
FOLDERS = st.lists(NAMES, max_size=4).map(lambda names: b"/" + b"/".join(names))


@given(st.sets(FOLDERS), st.sets(FOLDERS))
def test_it_covers_what_it_is_made_of_and_survives_its_record(folders: set[bytes], below: set[bytes]) -> None:
    cover = DirtyScope.of(folders, below)
    assert DirtyScope.decode(cover.encode()) == cover
    assert bool(cover) == bool(folders or below)
    for folder in folders | below:
        assert cover.covers(folder)
    for top in below:
        assert cover.covers(top.rstrip(b"/") + b"/deep/er")


def test_few_folders_are_named_exactly() -> None:
    cover = DirtyScope.of({b"/a/b", b"/c", b"/d/x/y"}, {b"/d", b"/d/e"})
    assert cover == DirtyScope(frozenset({b"/a/b", b"/c"}), frozenset({b"/d"}))
    assert not cover.covers(b"/a")
    assert not cover.covers(b"/a/b/c")
    assert not cover.covers(b"/dd")


def test_of_very_many_it_says_what_they_have_in_common() -> None:
    folders = {b"/out/%d/%d" % (n % 40, n) for n in range(10_000)} | {b"/other"}
    cover = DirtyScope.of(folders, set())
    assert all(map(cover.covers, folders))
    assert cover.folders == {b"/other"}
    assert cover.below == {b"/out/%d" % n for n in range(40)}
    long = {b"/" + b"%0255d" % n + b"/x" for n in range(DIRECTORIES_MAX)}
    assert len(DirtyScope.of(long, set()).encode()) <= BYTES_MAX
