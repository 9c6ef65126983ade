"""The tree over origins in memory: mounts that come and go, listings that fail or come too late."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from headrace.base.errors import (
    OriginUnavailableError,
    PathNotFoundError,
    StaleIdError,
    VersionChangedError,
)
from headrace.base.model import ROOT_ID, FileId, Version
from headrace.store import listing
from headrace.store.listing import ListingWriter
from headrace.testing.virtual_loop import pass_time
from tests.unit.namespace.tree_fixture import GatedOrigin, NamespaceFixture, origin_with

pytestmark = pytest.mark.timeout(60)


async def test_the_root_shows_the_mounts_of_this_start_only(tree: NamespaceFixture) -> None:
    tree.attach("/a", origin_with("x"))
    tree.attach("/b/c", origin_with("y"))
    assert await tree.names("/") == ["a", "b"]
    kept = (await tree.namespace.resolver.resolve(b"/b/c/y")).id
    tree.index.close(clean=True)
    tree.restart()
    tree.attach("/z", origin_with("w"))
    tree.attach("/b/c", origin_with("y"))
    assert await tree.names("/") == ["b", "z"]
    with pytest.raises(PathNotFoundError):
        await tree.namespace.resolver.resolve(b"/a/x")
    assert await tree.names("/b/c") == ["y"]
    assert tree.index.path_of(kept) == b"/b/c/y" or tree.index.entry(kept) is None


async def test_a_mount_at_the_root_gives_way_to_one_below(tree: NamespaceFixture) -> None:
    tree.attach("/", origin_with("old", "d/old"))
    assert await tree.names("/") == ["d", "old"]
    old = (await tree.namespace.resolver.resolve(b"/old")).id
    tree.index.close(clean=True)
    tree.restart()
    tree.attach("/data", origin_with("new"))
    assert await tree.names("/") == ["data"]
    with pytest.raises(StaleIdError):
        tree.namespace.tree.locate(old)


async def test_removing_the_root_mount_keeps_those_below(tree: NamespaceFixture) -> None:
    tree.attach("/", origin_with("f", "n/f"))
    tree.attach("/n", origin_with("nested"))
    assert await tree.names("/") == ["f", "n"]
    nested = (await tree.namespace.resolver.resolve(b"/n/nested")).id
    tree.changed.clear()
    tree.namespace.mount_points.detach("/")
    assert await tree.names("/") == ["n"]
    assert await tree.names("/n") == ["nested"]
    assert (await tree.namespace.resolver.resolve(b"/n/nested")).id == nested
    assert (ROOT_ID, b"f") in tree.changed


async def test_removing_a_mount_shows_what_it_hid(tree: NamespaceFixture) -> None:
    tree.attach("/", origin_with("f", "n/hidden"))
    tree.attach("/n", origin_with("shown"))
    assert await tree.names("/n") == ["shown"]
    tree.changed.clear()
    tree.namespace.mount_points.detach("/n")
    assert (ROOT_ID, b"n") in tree.changed
    assert await tree.names("/n") == ["hidden"]
    assert await tree.names("/") == ["f", "n"]


async def test_removing_a_mount_keeps_one_below_it(tree: NamespaceFixture) -> None:
    tree.attach("/a", origin_with("f"))
    tree.attach("/a/b/c", origin_with("deep"))
    assert await tree.names("/a") == ["b", "f"]
    tree.namespace.mount_points.detach("/a")
    assert await tree.names("/") == ["a"]
    assert await tree.names("/a") == ["b"]
    assert await tree.names("/a/b/c") == ["deep"]
    tree.namespace.mount_points.detach("/a/b/c")
    assert await tree.names("/") == []


async def test_a_refresh_is_not_content_with_a_listing_that_began_before(tree: NamespaceFixture) -> None:
    origin = GatedOrigin()
    for name in ("a", "b", "c", "d"):
        origin.hold(name, b"old")
    tree.attach("/", origin)
    origin.gate.clear()
    early = asyncio.ensure_future(tree.namespace.listings.list(ROOT_ID))
    await pass_time(0.01)  # the first page was read
    fresh = origin.hold("a", b"new")
    syncs = [asyncio.ensure_future(tree.namespace.listings.refresh(ROOT_ID)) for _ in range(3)]
    await pass_time(0.01)
    origin.gate.set()
    await asyncio.gather(early, *syncs)
    entry = tree.index.lookup(ROOT_ID, b"a")
    assert entry is not None
    assert entry.version == fresh
    assert origin.listings == 2  # the three share one


async def test_a_refresh_that_fails_leaves_the_old_listing_good(tree: NamespaceFixture) -> None:
    origin = GatedOrigin()
    for name in ("a", "b", "c", "d"):
        origin.hold(name, b"old")
    tree.attach("/", origin)
    await tree.namespace.listings.list(ROOT_ID)
    origin.hold("a", b"new")
    origin.broken = True
    tree.changed.clear()
    with pytest.raises(OriginUnavailableError):
        await tree.namespace.listings.refresh(ROOT_ID)
    assert tree.changed == [(ROOT_ID, b"a")], "half a listing changes names, too, and tells of them"
    assert await tree.names("/") == ["a", "b", "c", "d"]
    assert not tree.index.names._listings


async def test_the_end_of_a_listing_of_many_names_lets_others_have_their_turn(
    tree: NamespaceFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All names are compared with the listed ones: ten million take 20 s. What is put meanwhile stays."""
    monkeypatch.setattr(listing, "NAMES_A_STEP", 10)
    origin = GatedOrigin()
    for number in range(200):
        origin.hold(f"{number:03d}", b"x")
    tree.attach("/", origin)
    await tree.names("/")
    for number in (5, 6, 150):
        origin.delete(f"{number:03d}")
    finish, look = ListingWriter.finish, ListingWriter.look_for_missing
    turns: list[int] = []
    is_looking = False

    def note_look(writer: ListingWriter) -> Iterator[None]:
        nonlocal is_looking
        is_looking = True
        yield from look(writer)

    def note_finish(writer: ListingWriter, fresh_until_ns: int) -> list[tuple[FileId, bytes]]:
        nonlocal is_looking
        is_looking = False
        return finish(writer, fresh_until_ns)

    monkeypatch.setattr(ListingWriter, "look_for_missing", note_look)
    monkeypatch.setattr(ListingWriter, "finish", note_finish)
    refreshed = asyncio.ensure_future(tree.namespace.listings.refresh(ROOT_ID))
    while not refreshed.done():
        await asyncio.sleep(0)
        if is_looking:
            turns.append(len(turns))
            if len(turns) == 10:
                tree.index.names.put_file(ROOT_ID, b"006", Version(1, 9, '"put meanwhile"'))
    await refreshed
    assert len(turns) >= 15
    assert await tree.names("/") == [f"{number:03d}" for number in range(200) if number not in (5, 150)]


@pytest.mark.expected_warnings("the origin is unavailable, old listings stay in use")
async def test_an_old_listing_is_used_while_the_origin_is_away(
    tree: NamespaceFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """Each time that it goes away is logged once."""
    origin = GatedOrigin()
    for name in ("a", "b", "c", "d"):
        origin.hold(name, b"x")
    tree.attach("/", origin, interval_s=0.0)
    for times in (1, 2):
        assert await tree.names("/") == ["a", "b", "c", "d"]
        origin.broken = True
        for _ in range(5):
            assert await tree.names("/") == ["a", "b", "c", "d"]
            tree.index.names.set_fresh_until(ROOT_ID, 0)
        assert len(caplog.messages) == times
        origin.broken = False
    tree.index.names.set_fresh_until(ROOT_ID, 0)
    origin.broken = True
    assert await tree.names("/") == ["a", "b", "c", "d"]
    assert not tree.index.names._listings
    tree.index.names.expire_all(ROOT_ID)
    with pytest.raises(OriginUnavailableError):
        await tree.namespace.listings.list(ROOT_ID)


async def test_an_id_that_is_gone_is_stale(tree: NamespaceFixture) -> None:
    origin = origin_with("d/f")
    tree.attach("/", origin, interval_s=0.0)
    file = (await tree.namespace.resolver.resolve(b"/d/f")).id
    directory = (await tree.namespace.resolver.resolve(b"/d")).id
    origin.delete("d/f")
    await tree.namespace.listings.list(ROOT_ID)
    with pytest.raises(StaleIdError):
        tree.namespace.tree.locate(file)
    with pytest.raises(StaleIdError):
        await tree.namespace.resolver.lookup(directory, b"f")
    assert tree.index.names.put_file(ROOT_ID, b"d", Version(1, 1))[1] is False


async def test_who_looks_for_a_version_changes_nothing_for_other_readers(tree: NamespaceFixture) -> None:
    """A listing that is in progress keeps each name that is entered meanwhile."""
    origin = GatedOrigin()
    sealed = origin.hold("b", b"sealed")
    for name in ("a", "c", "d/x"):
        origin.hold(name, b"new")
    tree.attach("/data", origin)
    changed, gone = Version(sealed.size_bytes, sealed.mtime_ns, '"other"'), Version(5, 5, '"gone"')
    origin.gate.clear()
    listing = asyncio.ensure_future(tree.names("/data"))
    await pass_time(0.01)
    for path, version in ((b"/data/gone", gone), (b"/data/e/gone", gone), (b"/data/b", changed)):
        with pytest.raises(VersionChangedError):
            await tree.namespace.resolver.find_version(path, version)
    entry = await tree.namespace.resolver.find_version(b"/data/b", sealed)
    assert tree.namespace.tree.locate(entry.id)[1:] == ("b", entry)
    with pytest.raises(PathNotFoundError):
        await tree.namespace.resolver.find_version(b"/elsewhere", gone)
    origin.gate.set()
    assert await listing == ["a", "b", "c", "d"]
    assert tree.namespace.tree.entry_at(b"/data/b") == entry
    assert tree.namespace.tree.entry_at(b"/data/e") is None


async def test_a_version_that_returned_to_the_origin_is_reported(tree: NamespaceFixture) -> None:
    origin = origin_with("a")
    tree.attach("/data", origin)
    assert await tree.names("/data") == ["a"]
    first = tree.namespace.tree.entry_at(b"/data/a")
    second = origin.hold("a", b"second")
    assert first is not None
    entry = await tree.namespace.resolver.find_version(b"/data/a", second)
    assert entry.version == second and entry.id != first.id
    assert tree.changed[-1] == (first.parent, b"a")
    with pytest.raises(VersionChangedError):
        await tree.namespace.resolver.find_version(b"/data/a", first.version)
    assert tree.namespace.tree.entry_at(b"/data/a") == entry
