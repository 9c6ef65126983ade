"""Listings keep names that are more than one thing: objects, prefixes and mounts."""

from __future__ import annotations

import pytest

from headrace.base.model import ROOT_ID, Kind
from tests.unit.namespace.tree_fixture import GatedOrigin, NamespaceFixture, origin_with

pytestmark = pytest.mark.timeout(60)


DIRECTORY_FIRST = ("a", "b", "c", "d", "d/f")
OBJECT_FIRST = ("b/f", "c/f", "d", "d/f")


@pytest.mark.parametrize("keys", [DIRECTORY_FIRST, OBJECT_FIRST], ids=["directory first", "object first"])
async def test_an_object_of_another_page_hides_no_directory(
    tree: NamespaceFixture, keys: tuple[str, ...]
) -> None:
    """Files below it would be dropped, and with them what is cached of them."""
    origin = GatedOrigin(page_size=2)
    for key in keys:
        origin.hold(key, key.encode())
    tree.attach("/", origin)
    file = (await tree.namespace.resolver.resolve(b"/d/f")).id
    tree.changed.clear()
    for _ in range(2):
        await tree.namespace.listings.refresh(ROOT_ID)
        entry = tree.index.lookup(ROOT_ID, b"d")
        assert entry is not None and entry.kind is Kind.DIRECTORY
        assert tree.index.path_of(file) == b"/d/f"
    assert tree.changed == []


async def test_an_object_is_a_file_when_its_prefix_is_gone(tree: NamespaceFixture) -> None:
    origin = GatedOrigin(page_size=2)
    for key in DIRECTORY_FIRST:
        origin.hold(key, key.encode())
    tree.attach("/", origin)
    directory = (await tree.namespace.resolver.resolve(b"/d")).id
    version = origin.hold("d", b"newer")
    origin.delete("d/f")
    tree.changed.clear()
    await tree.namespace.listings.refresh(ROOT_ID)
    entry = tree.index.lookup(ROOT_ID, b"d")
    assert entry is not None and entry.kind is Kind.FILE and entry.version == version
    assert tree.changed == [(ROOT_ID, b"d")]
    assert tree.index.path_of(directory) is None


async def test_a_lookup_of_an_object_hides_no_directory(
    tree: NamespaceFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lookup asks for one name while the listing of its directory takes long."""
    monkeypatch.setattr("headrace.namespace.resolver.LISTING_PATIENCE_S", 0.0)
    origin = GatedOrigin(page_size=2)
    for key in DIRECTORY_FIRST:
        origin.hold(key, key.encode())
    tree.attach("/", origin)
    await tree.namespace.listings.refresh(ROOT_ID)
    await tree.namespace.listings.refresh(tree.namespace.tree.directory_at(b"/d") or ROOT_ID)
    file = (await tree.namespace.resolver.resolve(b"/d/f")).id
    tree.namespace.changes.invalidate(b"/")
    origin.gate.clear()
    await tree.namespace.resolver.lookup(ROOT_ID, b"d")
    assert tree.index.path_of(file) == b"/d/f"
    origin.gate.set()


@pytest.mark.parametrize("patience_s", [0.0, 60.0], ids=["by a lookup", "by a listing"])
async def test_an_object_hides_no_mount(
    tree: NamespaceFixture, monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    monkeypatch.setattr("headrace.namespace.resolver.LISTING_PATIENCE_S", patience_s)
    origin = GatedOrigin()
    for key in ("a", "m"):
        origin.hold(key, key.encode())
    tree.attach("/", origin)
    tree.attach("/m", origin_with("f"))
    file = (await tree.namespace.resolver.resolve(b"/m/f")).id
    for _ in range(2):
        await tree.namespace.listings.refresh(ROOT_ID)
        assert await tree.names("/") == ["a", "m"]
        assert tree.index.path_of(file) == b"/m/f"
        tree.namespace.changes.invalidate(b"/")
        await tree.namespace.resolver.lookup(ROOT_ID, b"m")
        assert tree.index.path_of(file) == b"/m/f"
