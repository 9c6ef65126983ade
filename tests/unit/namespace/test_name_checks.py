"""A reported name costs one HEAD, and what it says is not undone by a listing that is older."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import OriginUnavailableError
from headrace.base.model import ObjectInfo, Version
from headrace.namespace.reported_paths import Scope
from headrace.origin.memory import MemoryOrigin
from headrace.origin.origin import ListPage
from headrace.testing.virtual_loop import pass_time
from headrace.wire.peer_messages import NameRow
from tests.unit.namespace.tree_fixture import GatedOrigin, NamespaceFixture

pytestmark = pytest.mark.timeout(60)


class HeadOrigin(GatedOrigin):
    """HEADs are counted. Their answers, which are as of their beginning, wait while `head_gate` is closed. Those of
    listings wait while `gate` is closed."""

    def __init__(self) -> None:
        super().__init__(page_size=2)
        self.heads = 0
        self.is_away = False
        self.head_gate = asyncio.Event()
        self.head_gate.set()

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        self.heads += 1
        if self.is_away:
            raise OriginUnavailableError(key, why="the test says so")
        try:
            return await super().head(key, deadline=deadline)
        finally:
            await self.head_gate.wait()

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        self.listings += 1
        pages = [page async for page in MemoryOrigin.list_directory(self, key, deadline=deadline)]
        await self.gate.wait()
        for page in pages:
            yield page


async def attached(tree: NamespaceFixture, *names: str) -> HeadOrigin:
    """Return an origin whose directory d has these files, and is listed."""
    origin = HeadOrigin()
    for name in names:
        origin.hold(f"d/{name}", b"old " + name.encode())
    tree.attach("/m", origin)
    await tree.names("/m/d")
    origin.listings = 0
    tree.changed.clear()
    return origin


def version(tree: NamespaceFixture, name: bytes) -> Version | None:
    entry = tree.namespace.tree.entry_at(b"/m/d/" + name)
    return None if entry is None else entry.version


async def check(tree: NamespaceFixture, name: bytes) -> bool:
    return await tree.namespace.checks.check(b"/m/d", name)


async def info(origin: HeadOrigin, name: str) -> Version:
    return (await origin.head(f"d/{name}", deadline=Deadline.never())).version


async def test_a_change_costs_one_request(tree: NamespaceFixture) -> None:
    origin = await attached(tree, "a", "b", "c")
    origin.hold("d/new", b"new")
    origin.hold("d/b", b"replaced")
    origin.delete("d/c")
    for name in (b"new", b"b", b"c", b"a", b"none"):
        await tree.namespace.changed_directories.add(b"/m/d/" + name, Scope.NAME)
    assert (origin.heads, origin.listings) == (5, 0)
    assert {name for _, name in tree.changed} == {b"new", b"b", b"c"}
    assert version(tree, b"b") == await info(origin, "b")
    assert await tree.names("/m/d") == ["a", "b", "new"]
    assert origin.listings == 0, "its listing is as fresh as before"
    statistics = tree.namespace.changed_directories.statistics()
    assert (statistics["names_checked"], statistics["directories_listed"]) == (5, 0)


async def test_a_directory_that_nobody_listed_costs_nothing(tree: NamespaceFixture) -> None:
    origin = HeadOrigin()
    origin.hold("d/a", b"a")
    tree.attach("/m", origin)
    await tree.namespace.changed_directories.add(b"/m/d/a", Scope.NAME)
    assert (origin.heads, origin.listings) == (0, 0)


@pytest.mark.parametrize("change", ["put", "replace", "replace twice", "remove"])
async def test_a_listing_in_flight_does_not_undo_it(tree: NamespaceFixture, change: str) -> None:
    """The listing has read a page, with the file as it was, before the file changed."""
    origin = await attached(tree, *("x" if change == "put" else "abx"))
    if change == "replace twice":
        origin.hold("d/a", b"in between")  # the index has an older one than the listing reads
    origin.gate.clear()
    directory = tree.namespace.tree.directory_at(b"/m/d")
    assert directory is not None
    listing = asyncio.ensure_future(tree.namespace.listings.refresh(directory))
    await pass_time(0.01)
    name = "new" if change == "put" else "a"
    if change == "remove":
        origin.delete(f"d/{name}")
    else:
        origin.hold(f"d/{name}", b"the newest bytes")
    assert await check(tree, name.encode())
    origin.gate.set()
    await listing
    assert version(tree, name.encode()) == (None if change == "remove" else await info(origin, name))


async def test_the_first_listing_does_not_undo_it(tree: NamespaceFixture) -> None:
    origin = HeadOrigin()
    for name in "abc":
        origin.hold(f"d/{name}", name.encode())
    tree.attach("/m", origin)
    await tree.names("/m")
    origin.gate.clear()
    first = asyncio.ensure_future(tree.names("/m/d"))
    await pass_time(0.01)
    origin.hold("d/a", b"replaced")
    origin.delete("d/b")
    for path in (b"/m/d/a", b"/m/d/b"):
        await tree.namespace.changed_directories.add(path, Scope.NAME)
    origin.gate.set()
    assert await first == ["a", "c"]
    assert version(tree, b"a") == await info(origin, "a")


async def test_an_answer_older_than_a_listing_is_dropped(tree: NamespaceFixture) -> None:
    origin = await attached(tree, "a")
    origin.head_gate.clear()
    checking = asyncio.ensure_future(check(tree, b"a"))
    await pass_time(0.01)  # the origin has answered, the answer is on its way
    origin.hold("d/a", b"newer")
    directory = tree.namespace.tree.directory_at(b"/m/d")
    assert directory is not None
    await tree.namespace.listings.refresh(directory)
    origin.head_gate.set()
    assert await checking
    assert version(tree, b"a") == await info(origin, "a")


async def test_a_check_that_began_before_the_report_does_not_count(tree: NamespaceFixture) -> None:
    origin = await attached(tree, "a")
    origin.head_gate.clear()
    first = asyncio.ensure_future(check(tree, b"a"))
    await pass_time(0.01)
    origin.hold("d/a", b"newer")
    later = [asyncio.ensure_future(check(tree, b"a")) for _ in range(100)]
    await pass_time(0.01)
    origin.head_gate.set()
    await asyncio.gather(first, *later)
    assert version(tree, b"a") == await info(origin, "a")
    assert origin.heads <= 4, "they share one request"


async def test_a_name_that_is_a_directory_needs_a_listing(tree: NamespaceFixture) -> None:
    origin = await attached(tree, "sub/x", "a")
    origin.hold("d/sub", b"a file of the same name")
    assert not await check(tree, b"sub")
    origin.delete("d/sub/x")
    await tree.namespace.changed_directories.add(b"/m/d/sub", Scope.NAME)
    assert origin.listings == 1
    assert version(tree, b"sub") == await info(origin, "sub")


async def test_a_file_that_becomes_a_directory(tree: NamespaceFixture) -> None:
    origin = await attached(tree, "a", "b")
    origin.delete("d/a")
    origin.hold("d/a/x", b"x")
    await tree.namespace.changed_directories.add(b"/m/d/a", Scope.NAME)
    await tree.namespace.changed_directories.add(b"/m/d/a/x", Scope.NAME)
    assert await tree.names("/m/d") == ["a", "b"]
    assert await tree.names("/m/d/a") == ["x"]


async def test_a_name_that_another_node_wrote_needs_a_listing(tree: NamespaceFixture) -> None:
    origin = await attached(tree, "a")
    directory = tree.namespace.tree.directory_at(b"/m/d")
    assert directory is not None
    pending = tree.namespace.checks._pending
    pending.replace_rows(b"/m/d", directory, {b"a": NameRow(b"a", 1, 5, 6, "written-by/n/1-2")})
    origin.heads = 0
    assert not await check(tree, b"a")
    assert origin.heads == 0


async def test_a_name_that_this_node_uploads_is_left_alone(tree: NamespaceFixture) -> None:
    """It may be removed here already, and its upload not be known yet."""
    origin = await attached(tree, "a")
    uploads = {b"/m/d/up", b"/m/d/a"}
    tree.namespace.changes.add_in_flight(uploads)
    origin.hold("d/up", b"uploaded")
    origin.hold("d/a", b"replaced")
    assert await check(tree, b"up") and await check(tree, b"a")
    assert version(tree, b"up") is None
    assert version(tree, b"a") == await info(origin, "a")


async def test_an_origin_that_is_away_makes_the_next_access_list(tree: NamespaceFixture) -> None:
    origin = await attached(tree, "a")
    origin.is_away = True
    origin.hold("d/b", b"new")
    with pytest.raises(OriginUnavailableError):
        await tree.namespace.changed_directories.add(b"/m/d/b", Scope.NAME)
    assert await tree.names("/m/d") == ["a", "b"]
    assert tree.namespace.changed_directories.statistics()["directories_failed"] == 1


@pytest.mark.parametrize("name", [b"x" * 256, b".headrace-put-0123", b""])
async def test_names_that_no_directory_shows_cost_nothing(tree: NamespaceFixture, name: bytes) -> None:
    origin = await attached(tree, "a")
    assert await check(tree, name)
    assert origin.heads == 0


async def test_names_of_another_mount_keep_their_meaning(tree: NamespaceFixture) -> None:
    origin = await attached(tree, "a")
    tree.attach("/m/d/nested", GatedOrigin("other"))
    origin.hold("d/nested", b"hidden by the mount")
    origin.heads = 0
    assert await check(tree, b"nested")
    assert origin.heads == 0
    assert "nested" in await tree.names("/m/d")
