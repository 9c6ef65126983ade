"""Directories that origins report as changed: what a report causes, and that a flood of reports causes little."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import OriginDeniedError, OriginUnavailableError
from headrace.base.model import ROOT_ID, Entry, FileId
from headrace.events.changes import OriginChange
from headrace.namespace import changed_directories
from headrace.namespace.changed_directories import SYNC_REST_S
from headrace.namespace.mounts import Mount
from headrace.namespace.reported_paths import NAMES_FEW, NAMES_MANY, PAGE_NAMES, ReportedPaths, Scope
from headrace.origin.origin import ListPage
from headrace.store.index import Index
from headrace.testing.virtual_loop import pass_time
from tests.unit.namespace.tree_fixture import GatedOrigin, NamespaceFixture, origin_with

pytestmark = pytest.mark.timeout(60)


def gated(*keys: str) -> GatedOrigin:
    origin = GatedOrigin(page_size=1000)
    for key in keys:
        origin.hold(key, key.encode())
    return origin


async def test_a_report_shows_the_new_names_of_a_listed_directory(tree: NamespaceFixture) -> None:
    origin = gated("d/a")
    tree.attach("/m", origin)
    assert await tree.names("/m/d") == ["a"]
    origin.hold("d/b", b"new")
    assert await tree.names("/m/d") == ["a"]  # its listing is fresh for an hour
    await tree.namespace.changed_directories.add(b"/m/d")
    assert await tree.names("/m/d") == ["a", "b"]


async def test_a_report_below_an_unknown_directory_lists_the_nearest_above(tree: NamespaceFixture) -> None:
    origin = gated("a")
    tree.attach("/m", origin)
    assert await tree.names("/m") == ["a"]
    origin.hold("x/y/z/file", b"new")
    await tree.namespace.changed_directories.add(b"/m/x/y/z")
    assert await tree.names("/m") == ["a", "x"]
    listings = origin.listings
    await tree.namespace.changed_directories.add(b"/m/x/y/z")
    assert origin.listings == listings, "nobody has listed below x, so nothing there is old"


async def test_a_directory_without_objects_vanishes_above_too(tree: NamespaceFixture) -> None:
    origin = gated("keep", "x/y/file")
    tree.attach("/m", origin)
    for path in ("/m", "/m/x", "/m/x/y"):
        await tree.names(path)
    origin.delete("x/y/file")
    await tree.namespace.changed_directories.add(b"/m/x/y")
    assert await tree.names("/m") == ["keep"]


async def test_a_directory_that_nobody_listed_costs_nothing(tree: NamespaceFixture) -> None:
    origin = gated("d/a")
    tree.attach("/m", origin)
    await tree.names("/m")
    listings = origin.listings
    await tree.namespace.changed_directories.add(b"/m/d")
    assert origin.listings == listings


async def test_a_report_during_the_first_listing_is_not_lost(tree: NamespaceFixture) -> None:
    origin = gated("d/a")
    tree.attach("/m", origin)
    await tree.names("/m")
    origin.gate.clear()
    first = asyncio.ensure_future(tree.names("/m/d"))
    await pass_time(0.01)  # its only page was read
    origin.hold("d/b", b"new")
    reported = tree.namespace.changed_directories.add(b"/m/d")
    await pass_time(0.01)
    origin.gate.set()
    await asyncio.gather(first, reported)
    assert await tree.names("/m/d") == ["a", "b"]


async def test_reports_of_a_directory_share_a_listing(tree: NamespaceFixture) -> None:
    origin = gated("d/a")
    tree.attach("/m", origin)
    await tree.names("/m/d")
    origin.gate.clear()
    listings = origin.listings
    first = tree.namespace.changed_directories.add(b"/m/d")
    await pass_time(0.01)  # its listing has begun
    origin.hold("d/b", b"new")
    later = [tree.namespace.changed_directories.add(b"/m/d") for _ in range(1000)]
    assert len({id(future) for future in later}) == 1
    assert later[0] is not first, "a listing that began before the change may lack it"
    origin.gate.set()
    await asyncio.gather(first, *later)
    assert origin.listings == listings + 2
    assert await tree.names("/m/d") == ["a", "b"]


async def test_listings_take_a_share_of_the_time_only(tree: NamespaceFixture) -> None:
    origin = gated("d/a")
    tree.attach("/m", origin)
    await tree.names("/m/d")
    listings, begun_s = origin.listings, monotonic_s()

    async def slow() -> None:
        while True:
            origin.gate.clear()
            await pass_time(1.0)
            origin.gate.set()
            await asyncio.sleep(0)

    pacing = asyncio.ensure_future(slow())
    while monotonic_s() - begun_s < 100:
        tree.namespace.changed_directories.add(b"/m/d")
        await pass_time(0.1)
    pacing.cancel()
    origin.gate.set()
    await tree.namespace.changed_directories.stop()
    assert 5 <= origin.listings - listings <= 45


async def test_a_flood_of_directories_becomes_one_listing_of_the_mount(
    tree: NamespaceFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed_directories, "WAITING_MAX", 40)
    names = [f"d{number}" for number in range(50)]
    origin = gated(*(f"{name}/a" for name in names))
    tree.attach("/m", origin)
    await tree.names("/m")
    for name in names:
        await tree.names(f"/m/{name}")
    changed = tree.namespace.changed_directories
    for name in names:
        origin.hold(f"{name}/b", b"new")
    listings, begun_s = origin.listings, monotonic_s()
    floods = [changed.add(f"/m/{name}".encode()) for name in names * 100]
    assert len({id(future) for future in floods}) == 21
    await asyncio.gather(*floods)
    assert origin.listings - listings <= 20 + 51
    for name in names:
        assert await tree.names(f"/m/{name}") == ["a", "b"]
    await asyncio.gather(*(changed.add(f"/m/{name}".encode()) for name in names * 100))
    assert monotonic_s() - begun_s >= SYNC_REST_S - 0.001  # the rest of a sum
    assert changed.statistics()["overflows"] == 2 * 100 * 30


async def test_a_flood_of_one_mount_delays_no_other(
    tree: NamespaceFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its origin hangs, and as many of its names wait as may."""
    monkeypatch.setattr(changed_directories, "WAITING_MAX", 2000)
    directories = [f"d{number}" for number in range(100)]
    flooded, other = gated(*(f"{name}/a" for name in directories)), gated("d/a")
    tree.attach("/flooded", flooded)
    tree.attach("/other", other)
    for name in directories:
        await tree.names(f"/flooded/{name}")
    await tree.names("/other/d")
    flooded.gate.clear()
    flooded.hangs = True
    changed = tree.namespace.changed_directories
    for name in directories[:20]:
        changed.add(f"/flooded/{name}".encode())
    for name in directories[20:]:
        for number in range(NAMES_FEW):
            changed.add(f"/flooded/{name}/{number}".encode(), Scope.NAME)
    await pass_time(0.1)
    counts = changed.statistics()
    assert counts["overflows"] > 0
    assert 900 <= counts["names_waiting"] + counts["directories_waiting"] <= 1001
    listings, overflows, begun_s = other.listings, counts["overflows"], monotonic_s()
    other.hold("d/b", b"new")
    other.hold("d/c", b"new")
    await changed.add(b"/other/d/b", Scope.NAME)
    assert await tree.names("/other/d") == ["a", "b"]
    await changed.add(b"/other/d")
    assert await tree.names("/other/d") == ["a", "b", "c"]
    assert monotonic_s() - begun_s <= 1.0
    assert (other.listings, changed.statistics()["overflows"]) == (listings + 1, overflows)
    await changed.stop()
    flooded.gate.set()


async def test_floods_of_many_mounts_are_bounded_together(
    tree: NamespaceFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed_directories, "WAITING_MAX", 64)
    names = [f"d{number}" for number in range(70)]
    changed = tree.namespace.changed_directories
    waiting = []
    for mount in range(10):
        tree.attach(f"/m{mount}", gated(*(f"{name}/a" for name in names)))
        for name in names:
            await tree.names(f"/m{mount}/{name}")
    for mount in range(10):
        before = changed.statistics()["directories_waiting"]
        for name in names:
            changed.add(f"/m{mount}/{name}".encode())
        waiting.append(changed.statistics()["directories_waiting"] - before)
    # each has half of what is left, and the listing of the whole mount
    assert waiting[:4] == [33, 17, 8, 4]
    assert sum(waiting) <= 64 + 10
    assert all(waiting)
    await changed.stop()


async def test_a_mount_that_is_listed_as_a_whole_takes_no_mount_below_along(tree: NamespaceFixture) -> None:
    above, below = gated("d/a"), gated("d/a")
    tree.attach("/m", above)
    tree.attach("/m/d/below", below)
    for path in ("/m", "/m/d", "/m/d/below", "/m/d/below/d"):
        await tree.names(path)
    above.hold("d/b", b"new")
    listings = below.listings
    await tree.namespace.changed_directories.add(b"/m", Scope.BELOW)
    assert await tree.names("/m/d") == ["a", "b", "below"]
    assert below.listings == listings
    below.hold("d/b", b"new")
    await tree.namespace.changed_directories.add(b"/m/d/below", Scope.BELOW)
    assert await tree.names("/m/d/below/d") == ["a", "b"]


async def test_a_flood_of_unknown_directories_is_one_listing(tree: NamespaceFixture) -> None:
    origin = gated("a")
    tree.attach("/m", origin)
    await tree.names("/m")
    listings = origin.listings
    changed = tree.namespace.changed_directories
    await asyncio.gather(*(changed.add(b"/m/none/%d/x" % number) for number in range(50_000)))
    assert origin.listings == listings + 1
    assert changed.statistics()["overflows"] == 0


async def test_a_listing_that_fails_is_reported_and_repeated_at_the_next_access(
    tree: NamespaceFixture,
) -> None:
    origin = gated("d/a")
    tree.attach("/m", origin)
    await tree.names("/m/d")
    origin.broken = True
    origin.hold("d/b", b"new")
    with pytest.raises(OriginUnavailableError):
        await tree.namespace.changed_directories.add(b"/m/d")
    origin.broken = False
    assert await tree.names("/m/d") == ["a", "b"]
    assert tree.namespace.changed_directories.statistics()["directories_failed"] == 1


async def test_all_listings_end_with_the_node(tree: NamespaceFixture) -> None:
    origin = gated("d/a")
    tree.attach("/m", origin)
    await tree.names("/m/d")
    origin.gate.clear()
    future = tree.namespace.changed_directories.add(b"/m/d")
    waiting = tree.namespace.changed_directories.add(b"/m")
    await pass_time(0.01)
    await tree.namespace.changed_directories.stop()
    assert future.cancelled()
    assert waiting.done()
    origin.gate.set()
    await pass_time(0.01)  # the listing itself ends


def test_reports_are_mapped_to_mounts(tree: NamespaceFixture) -> None:
    for path, url in {
        "/all": "s3://bucket",
        "/part": "s3://bucket/train/set",
        "/all/nested": "s3://other",
        "/blobs": "az://data/x",
        "/far": "headrace://node:1",
    }.items():
        tree.namespace.mount_points.attach(Mount(path, url, origin_with("f"), 3600.0))
    reported = ReportedPaths(tree.namespace.tree)

    def names(scheme: str, bucket: str, key: bytes) -> set[bytes]:
        targets = reported.targets([OriginChange(scheme, bucket, key)])  # type: ignore[arg-type]
        assert {scope for _, scope in targets} <= {Scope.NAME}
        return {path for path, _ in targets}

    assert names("s3", "bucket", b"top") == {b"/all/top"}
    assert names("s3", "bucket", b"train/set/a/b") == {b"/all/train/set/a/b", b"/part/a/b"}
    assert names("s3", "bucket", b"train/set/b") == {b"/all/train/set/b", b"/part/b"}
    assert names("s3", "bucket", b"train/settle") == {b"/all/train/settle"}
    assert names("s3", "bucket", b"nested/x") == set(), "the mount below hides it"
    assert names("az", "data", b"x/y") == {b"/blobs/y"}
    assert names("gs", "bucket", b"top") == set()
    assert names("s3", "Bucket", b"top") == set()
    marker = reported.targets([OriginChange("s3", "bucket", b"new/")])
    assert marker == {(b"/all", Scope.DIRECTORY)}, "a HEAD does not find it"
    far = reported.targets([OriginChange("headrace", "node:1", b"d/x")])
    assert far == {(b"/far/d", Scope.DIRECTORY)}, "it may report one name of many"
    assert reported.top_of(b"/all/nested/x") == b"/all/nested"
    assert tree.namespace.tree.directory_at(b"/") == ROOT_ID


async def test_a_deep_path_costs_a_lookup_for_each_name_that_is_there(
    tree: NamespaceFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A post of 900 keys with 500 names each held the loop for 9 seconds when each directory above was looked up."""
    tree.attach("/m", gated("d/a"))
    await tree.names("/m/d")
    lookups = 0
    lookup = Index.lookup

    def count(index: Index, parent: FileId, name: bytes) -> Entry | None:
        nonlocal lookups
        lookups += 1
        return lookup(index, parent, name)

    monkeypatch.setattr(Index, "lookup", count)
    changed = tree.namespace.changed_directories
    for number in range(100):
        changed.add(b"/m/d" + b"/x" * 500 + b"/%d" % number)
    assert lookups <= 100 * 8
    assert changed.statistics()["directories_waiting"] == 1
    await changed.stop()


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        (b"/", b"/"),
        (b"/m", b"/m"),
        (b"/m/d", b"/m/d"),
        (b"/m/d/a", b"/m/d"),
        (b"/m/d/a/x", b"/m/d"),
        (b"/m/none/d", b"/m"),
        (b"/other/d", b"/"),
    ],
)
async def test_the_nearest_directory_of_the_index(
    tree: NamespaceFixture, path: bytes, nearest: bytes
) -> None:
    tree.attach("/m", gated("d/a"))
    await tree.names("/m/d")
    assert tree.namespace.tree.nearest_directory(path) == nearest


async def test_a_directory_that_fails_does_not_keep_the_others_old(tree: NamespaceFixture) -> None:
    class Refusing(GatedOrigin):
        refused = "none"

        async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
            if key == self.refused:
                raise OriginDeniedError(key, why="the test says so")
            async for page in super().list_directory(key, deadline=deadline):
                yield page

    names = [f"d{number}" for number in range(5)]
    origin = Refusing(page_size=1000)
    for name in names:
        origin.hold(f"{name}/a", b"old")
    tree.attach("/m", origin)
    for name in ["", *names]:
        await tree.names(f"/m/{name}".rstrip("/"))
        origin.hold(f"{name}/b".lstrip("/"), b"new")
    origin.refused = "d2"
    with pytest.raises(OriginDeniedError):
        await tree.namespace.changed_directories.add(b"/m", Scope.BELOW)
    origin.refused, listings = "none", origin.listings
    for name in names:
        assert await tree.names(f"/m/{name}") == ["a", "b"]
    assert origin.listings == listings + 1, "only the one that failed is listed again"


async def test_what_could_not_be_listed_below_a_path_is_listed_at_the_next_access(
    tree: NamespaceFixture,
) -> None:
    origin = gated("d/a", "e/a")
    tree.attach("/m", origin)
    for path in ("/m", "/m/d", "/m/e"):
        await tree.names(path)
    origin.broken, listings = True, origin.listings
    for key in ("d/b", "e/b"):
        origin.hold(key, b"new")
    with pytest.raises(OriginUnavailableError):
        await tree.namespace.changed_directories.add(b"/m", Scope.BELOW)
    assert origin.listings == listings + 1, "an origin that is away is not asked for each directory"
    origin.broken = False
    for path in ("/m/d", "/m/e"):
        assert await tree.names(path) == ["a", "b"]


async def test_many_names_of_a_directory_are_one_listing(tree: NamespaceFixture) -> None:
    tree.attach("/m", gated("small/a", *(f"large/{number}" for number in range(PAGE_NAMES + 1))))
    await tree.names("/m/small")
    await tree.names("/m/large")
    reported = ReportedPaths(tree.namespace.tree)

    def joined(directory: bytes, count: int) -> set[tuple[bytes, Scope]]:
        return reported.joined((directory + b"/%d" % number, Scope.NAME) for number in range(count))

    for directory, most in ((b"/m/small", NAMES_FEW), (b"/m/large", NAMES_MANY)):
        assert len(joined(directory, most)) == most
        assert joined(directory, most + 1) == {(directory, Scope.DIRECTORY)}


async def test_a_flood_of_names_is_one_listing(tree: NamespaceFixture) -> None:
    origin = gated("d/a")
    tree.attach("/m", origin)
    await tree.names("/m/d")
    listings = origin.listings
    changed = tree.namespace.changed_directories
    origin.hold("d/7000", b"new")
    await asyncio.gather(*(changed.add(b"/m/d/%d" % number, Scope.NAME) for number in range(10_000)))
    assert origin.listings == listings + 1
    assert changed.statistics()["names_checked"] <= NAMES_FEW
    assert await tree.names("/m/d") == ["7000", "a"]


async def test_a_name_below_an_unknown_directory_lists_the_nearest_above(tree: NamespaceFixture) -> None:
    origin = gated("a")
    tree.attach("/m", origin)
    assert await tree.names("/m") == ["a"]
    origin.hold("x/y/file", b"new")
    await tree.namespace.changed_directories.add(b"/m/x/y/file", Scope.NAME)
    assert await tree.names("/m") == ["a", "x"]


async def test_the_last_name_of_a_directory_takes_it_along(tree: NamespaceFixture) -> None:
    origin = gated("keep", "x/y/file")
    tree.attach("/m", origin)
    for path in ("/m", "/m/x", "/m/x/y"):
        await tree.names(path)
    origin.delete("x/y/file")
    await tree.namespace.changed_directories.add(b"/m/x/y/file", Scope.NAME)
    assert await tree.names("/m") == ["keep"]
