"""Directories whose files are opened are listed again before their listings are too old."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.base.deadline import Deadline
from headrace.base.model import FileId
from headrace.namespace import refresh_ahead
from headrace.origin.origin import ListPage
from headrace.testing.virtual_loop import pass_time
from tests.unit.namespace.tree_fixture import GatedOrigin, NamespaceFixture

pytestmark = pytest.mark.usefixtures("virtual_boot_clock")

AGE_S = 60.0


class UsedTree:
    """A tree with ten directories of one file, and what keeps it fresh."""

    DIRECTORIES = 10

    def __init__(self, tree: NamespaceFixture, age_s: float = AGE_S) -> None:
        self.tree, self.origin = tree, GatedOrigin(page_size=1000)
        self.paths = [b"/d%d/f" % number for number in range(self.DIRECTORIES)]
        for path in self.paths:
            self.origin.hold(path[1:].decode(), path)
        tree.attach("/", self.origin, age_s)
        self.ahead = tree.namespace.refresh_ahead
        self.ids: list[FileId] = []

    async def open(self, paths: list[bytes]) -> None:
        """Look files up as an open does, and report the opens."""
        self.ids = [(await self.tree.namespace.resolver.resolve(path)).id for path in paths]
        self.ahead.note_opens(self.ids)

    def stale(self) -> list[bytes]:
        """Return the directories in which a lookup would wait for the origin."""
        directories = [self.tree.namespace.tree.directory_at(path[:3]) for path in self.paths]
        return [
            path[:3]
            for path, directory in zip(self.paths, directories, strict=True)
            if directory is None or not self.tree.namespace.tree.is_fresh(directory)
        ]


@pytest.fixture
async def used(tree: NamespaceFixture) -> AsyncIterator[UsedTree]:
    used = UsedTree(tree)
    yield used
    await used.ahead.stop()


async def test_directories_in_use_are_always_fresh(used: UsedTree) -> None:
    """Each of them, and the one above, is listed once more in 40 to 53 of its 60 seconds, at most."""
    for second in range(600):
        await used.open(used.paths)
        await pass_time(1)
        if second > 2:
            assert not used.stale(), second
    assert 11 * 600 / AGE_S <= used.origin.listings <= 11 * (1 + 600 / 36)


async def test_directories_that_are_no_longer_used_are_not_listed(used: UsedTree) -> None:
    await used.open(used.paths)
    for _ in range(200):
        await used.open(used.paths[:1])
        await pass_time(1)
    assert used.stale() == [path[:3] for path in used.paths[1:]]
    listings = used.origin.listings
    await pass_time(200)
    assert used.origin.listings <= listings + 2
    assert not used.ahead._is_used and not used.ahead._due
    await used.open(used.paths[:1])  # it begins again
    before = used.origin.listings
    for _ in range(80):
        await used.open(used.paths[:1])
        await pass_time(1)
    assert used.origin.listings > before


async def test_changes_are_seen_as_soon_as_before(used: UsedTree) -> None:
    await used.open(used.paths)
    used.origin.hold("d1/f", b"a newer version")
    used.origin.hold("d1/new", b"x")
    for _ in range(round(AGE_S)):
        await pass_time(1)
        await used.open(used.paths)
    entry = await used.tree.namespace.resolver.resolve(b"/d1/f")
    assert entry.version.size_bytes == len(b"a newer version")
    assert await used.tree.names("/d1") == ["f", "new"]


async def test_an_origin_that_fails_is_asked_seldom(used: UsedTree) -> None:
    """Old listings serve its readers meanwhile, five seconds at a time."""
    await used.open(used.paths)
    used.origin.broken = True
    listings = used.origin.listings
    for _ in range(35):
        used.ahead.note_opens(used.ids)
        await pass_time(1)
    assert used.origin.listings == listings
    for _ in range(20):  # the listings have 20 s left, and then 5
        used.ahead.note_opens(used.ids)
        await pass_time(1)
    assert 1 <= used.origin.listings - listings <= 11
    used.origin.broken = False
    for _ in range(200):
        await used.open(used.paths)
        await pass_time(1)
    assert not used.stale()


async def test_an_open_after_the_end_starts_nothing(used: UsedTree) -> None:
    """Sessions report opens until the node has closed its socket."""
    await used.ahead.stop()
    await used.open(used.paths)
    listings = used.origin.listings
    await pass_time(AGE_S)
    assert used.origin.listings == listings


@pytest.mark.parametrize("age_s", [1.0, float("inf")])
async def test_short_ages_and_eternal_ones_are_left_alone(tree: NamespaceFixture, age_s: float) -> None:
    used = UsedTree(tree, age_s)
    await used.open(used.paths)
    assert not used.ahead._is_used
    listings = used.origin.listings
    await pass_time(100)
    assert used.origin.listings == listings


async def test_the_work_of_a_report_and_what_is_kept_are_bounded(
    used: UsedTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh_ahead, "DIRECTORIES_MAX", 4)
    await used.open(used.paths)
    assert len(used.ahead._is_used) == len(used.ahead._due) == 4
    asked: list[FileId] = []
    monkeypatch.setattr(used.tree.index, "entry", asked.append)
    used.ahead.note_opens([FileId(1 << 40)] * 5000)  # ids of no file
    assert len(asked) == refresh_ahead.OPENS_NOTED_MAX


async def test_a_listing_that_hangs_holds_up_no_others(
    tree: NamespaceFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = UsedTree(tree, age_s=6)
    await used.open(used.paths)
    listed, hung, answers = used.origin.list_directory, 0, asyncio.Event()

    async def hang_in_one(key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        nonlocal hung
        if key == "d0":
            hung += 1
            await answers.wait()
        async for page in listed(key, deadline=deadline):
            yield page

    monkeypatch.setattr(used.origin, "list_directory", hang_in_one)
    for second in range(60):
        used.ahead.note_opens(used.ids)
        await pass_time(1)
        assert used.stale() in ([], [b"/d0"]), second
    assert hung
    await used.ahead.stop()
    answers.set()
    await pass_time(1)


async def test_few_listings_run_at_once(used: UsedTree) -> None:
    await used.open(used.paths)
    used.origin.gate.clear()
    listings = used.origin.listings
    for _ in range(55):
        used.ahead.note_opens(used.ids)
        await pass_time(1)
    assert used.origin.listings - listings == refresh_ahead.IN_FLIGHT_MAX < used.DIRECTORIES
    used.origin.gate.set()
    await asyncio.sleep(0)
