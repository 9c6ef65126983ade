"""Rows of the journal that a crash left behind: their files are in the cache, or were replaced at the origin."""

from __future__ import annotations

import pytest

from headrace.overlay.hiding import defer_removal, hide
from headrace.testing.waiting import until
from tests.unit.writeback.layer_fixture import LayerFixture

pytestmark = [pytest.mark.root, pytest.mark.timeout(60)]


async def test_a_file_that_is_copied_up_again_replaces_what_the_origin_has(layer: LayerFixture) -> None:
    """The row has an earlier version than the copy. By that version the change became a conflict copy."""
    await layer.hold(b"/d/other", b"listed")
    layer.write(b"/d/f", b"ours")
    await layer.uploads.put(b"/d/f")
    row = layer.journal.get(b"/d/f")
    assert row is not None
    layer.upper.at(b"/d/f").unlink()  # as a demotion does before it deletes the row
    async with layer.running(layer.write_back()) as write:
        theirs = await layer.hold(b"/d/f", b"another writer's")
        layer.write_over(b"/d/f", b"changed here", theirs)
        await write.persist(b"/")
        assert layer.kept() == [] and await layer.origin_bytes(b"/d/f") == b"changed here"
        assert layer.journal.demoted(b"/d/f", row.inode, row.ctime_ns) == row.version


async def test_a_row_stays_while_its_file_must_be_removed_at_the_origin(layer: LayerFixture) -> None:
    version = await layer.hold(b"/s/f", b"before")
    layer.upper.at(b"/s").make_directories(0o755)
    layer.write_over(b"/s/f", b"ours", version)
    await layer.uploads.put(b"/s/f")
    hide(layer.upper, b"/s/f", await layer.origin_version(b"/s/f"))
    defer_removal(layer.upper, b"/s")
    layer.upper.at(b"/s").unlink()
    layer.write(b"/s", b"a file")
    async with layer.running(layer.write_back()) as write:
        await write.persist(b"/")
        assert await layer.origin_bytes(b"/s/f") is None and await layer.origin_bytes(b"/s") == b"a file"
        assert layer.kept() == []


async def test_a_row_whose_name_the_index_lacks_stays(layer: LayerFixture) -> None:
    """The index may be new, so the row is all that is known of the file."""
    await layer.hold(b"/d/other", b"listed")
    layer.write(b"/d/f", b"ours")
    await layer.uploads.put(b"/d/f")
    layer.upper.at(b"/d/f").unlink()
    layer.namespace.changes.record_removal(b"/d/f")
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        await until(lambda: write.waiting(b"/") == (0, 0))
        row = layer.journal.get(b"/d/f")
        assert row is not None and row.is_there
        assert await layer.origin_bytes(b"/d/f") == b"ours"
