"""Listings without a name: the directory is empty, or something else than the origin answered."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import OriginUnavailableError
from headrace.base.model import ROOT_ID, ObjectInfo
from headrace.origin.memory import MemoryOrigin
from headrace.origin.origin import ListPage
from tests.unit.namespace.tree_fixture import NamespaceFixture, origin_with

pytestmark = pytest.mark.timeout(60)


class PageOrigin(MemoryOrigin):
    """Lists no names while is_page is set, as if a proxy answered with a page. breaks: lookups fail then, too."""

    is_page = False
    breaks = False

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        if not self.is_page:
            async for page in super().list_directory(key, deadline=deadline):
                yield page

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        if self.is_page and self.breaks:
            raise OriginUnavailableError(key, why="the answer is not that of an object store")
        return await super().head(key, deadline=deadline)


@pytest.mark.parametrize("breaks", [False, True])
async def test_a_listing_without_names_removes_no_file_that_is_there(
    tree: NamespaceFixture, breaks: bool
) -> None:
    origin = PageOrigin()
    origin.hold("d/f", b"x")
    tree.attach("/", origin)
    file = (await tree.namespace.resolver.resolve(b"/d/f")).id
    directory = (await tree.namespace.resolver.resolve(b"/d")).id
    origin.is_page, origin.breaks = True, breaks
    with pytest.raises(OriginUnavailableError):
        await tree.namespace.listings.refresh(directory)
    if breaks:
        with pytest.raises(OriginUnavailableError):
            await tree.namespace.listings.refresh(ROOT_ID)
    assert tree.index.path_of(file) == b"/d/f"
    origin.is_page = False
    await tree.namespace.listings.refresh(ROOT_ID)
    assert await tree.names("/d") == ["f"]


async def test_a_directory_that_lost_all_its_names_is_empty(tree: NamespaceFixture) -> None:
    origin = origin_with("d/f", "d/g", "other")
    tree.attach("/", origin)
    await tree.namespace.resolver.resolve(b"/d/f")
    directory = (await tree.namespace.resolver.resolve(b"/d")).id
    for key in ("d/f", "d/g"):
        origin.delete(key)
    await tree.namespace.listings.refresh(directory)
    assert not list(tree.index.children(directory))
    origin.delete("other")
    await tree.namespace.listings.refresh(ROOT_ID)
    assert await tree.names("/") == []
