"""Listings that are invalidated while they are in progress: their pages may have been read before the change."""

from __future__ import annotations

import pytest

from headrace.base.tasks import OwnedTasks
from headrace.testing.waiting import until
from tests.unit.namespace.tree_fixture import GatedOrigin, NamespaceFixture

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
async def test_a_listing_that_is_invalidated_in_progress_is_repeated(
    tree: NamespaceFixture, is_first: bool, below: bool
) -> None:
    """Another node puts a file, and sends the invalidation, while this node lists the directory."""
    origin, changes = GatedOrigin(), tree.namespace.changes
    origin.hold("d/old", b"x")
    tree.attach("/", origin)
    await tree.names("/")
    if not is_first:
        await tree.names("/d")
        changes.invalidate(b"/d")
    async with OwnedTasks() as tasks:
        listings = origin.listings
        origin.gate.clear()
        listed = tasks.start(tree.names("/d"))
        await until(lambda: origin.listings > listings)
        origin.hold("d/new", b"x")
        if below:
            changes.expire(b"/")
        else:
            changes.invalidate(b"/d")
        origin.gate.set()
        assert await listed == ["old"]
    assert await tree.names("/d") == ["new", "old"]


async def test_a_directory_is_listed_again_by_a_listing_that_begins_then(tree: NamespaceFixture) -> None:
    """One that began just before may have its pages from a node that was to be notified."""
    origin, listings = GatedOrigin(), tree.namespace.listings
    origin.hold("d/old", b"x")
    tree.attach("/", origin)
    await tree.names("/d")
    directory = await tree.namespace.resolver.resolve(b"/d")
    async with OwnedTasks() as tasks:
        before = origin.listings
        origin.gate.clear()
        earlier = tasks.start(listings.relist(directory.id))
        await until(lambda: origin.listings > before)
        origin.hold("d/new", b"x")
        again = tasks.start(listings.relist_below(b"/d", below=False))
        origin.gate.set()
        await earlier
        await again
    assert await tree.names("/d") == ["new", "old"]
