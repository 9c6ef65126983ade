"""Clean files of the layer that somebody else replaced or removed at the origin."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator

import pytest

from headrace.base.beneath import SafePath
from headrace.base.clock import monotonic_s
from headrace.overlay.mark_names import MARKS
from headrace.testing.virtual_loop import pass_time
from headrace.writeback import origin_changes
from headrace.writeback.origin_changes import OriginChangeReconciler
from tests.faulty_origin import PlannedFault
from tests.unit.writeback.layer_fixture import LIMIT_S, LayerFixture

PATH = b"/d/f"
OURS, THEIRS = b"ours", b"theirs"


def reconciler_of(layer: LayerFixture) -> OriginChangeReconciler:
    return OriginChangeReconciler(
        layer.namespace, layer.layer, limit_s=LIMIT_S, on_written=layer.meant_anew.extend
    )


async def persisted(layer: LayerFixture) -> OriginChangeReconciler:
    """A clean file, which the next listings are about."""
    layer.write(PATH, OURS)
    await layer.uploads.put(PATH)
    return reconciler_of(layer)


async def look(layer: LayerFixture, changes: OriginChangeReconciler) -> None:
    await layer.listed(PATH)
    assert changes.suspect([PATH])
    await changes.check_waiting()


async def test_what_others_replaced_means_theirs(layer: LayerFixture) -> None:
    changes = await persisted(layer)
    row = layer.journal.get(PATH)
    layer.memory.hold("d/f", THEIRS)
    await look(layer, changes)
    assert layer.upper.lookup(PATH) is None and layer.journal.get(PATH) is None
    assert row is not None
    assert layer.journal.demoted(PATH, row.inode, row.ctime_ns) == row.version, (
        "who replaced it may ask later"
    )
    assert PATH in layer.meant_anew and changes.due_s == math.inf
    entry = layer.namespace.tree.entry_at(PATH)
    assert entry is not None and entry.version == await layer.origin_version(PATH)


@pytest.mark.expected_warnings("headrace.writeback.origin_changes")
async def test_a_check_that_the_disk_fails_is_tried_again_after_a_pause(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    changes = await persisted(layer)
    layer.memory.hold("d/f", THEIRS)
    with monkeypatch.context() as patches:
        patches.setattr(origin_changes, "remove_clean_file", fail)
        await look(layer, changes)
    assert layer.content(PATH) == OURS
    assert monotonic_s() < changes.due_s < math.inf
    await pass_time(changes.due_s - monotonic_s())
    await changes.check_waiting()
    assert layer.upper.lookup(PATH) is None and layer.journal.get(PATH) is None
    assert PATH in layer.meant_anew and changes.due_s == math.inf


@pytest.mark.expected_warnings("headrace.writeback.origin_changes")
async def test_a_path_that_cannot_be_read_waits_and_the_others_are_checked(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails for one of two paths."""
    walk, other = layer.upper.walk, b"/d/g"

    def fail_at_one(top: bytes = b"/") -> Iterator[tuple[bytes, os.stat_result]]:
        if top == PATH:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        yield from walk(top)

    changes = await persisted(layer)
    layer.write(other, OURS)
    await layer.uploads.put(other)
    for name in ("d/f", "d/g"):
        layer.memory.hold(name, THEIRS)
    await layer.listed(PATH)
    with monkeypatch.context() as patches:
        patches.setattr(layer.upper, "walk", fail_at_one)
        assert changes.suspect([PATH, other])
        await changes.check_waiting()
    assert layer.content(PATH) == OURS and layer.upper.lookup(other) is None
    assert monotonic_s() < changes.due_s < math.inf
    await pass_time(changes.due_s - monotonic_s())
    await changes.check_waiting()
    assert layer.upper.lookup(PATH) is None and layer.journal.get(PATH) is None
    assert {PATH, other} <= set(layer.meant_anew) and changes.due_s == math.inf


async def test_what_others_removed_is_gone_with_its_directory(layer: LayerFixture) -> None:
    changes = await persisted(layer)
    layer.memory.delete("d/f")
    await layer.listed(b"/d")
    assert changes.suspect([PATH])
    await changes.check_waiting()
    assert layer.names() == [] and {PATH, b"/d"} <= set(layer.meant_anew)
    assert not changes.suspect([])


@pytest.mark.expected_warnings("headrace.writeback.origin_changes")
async def test_a_directory_whose_mark_cannot_be_read_waits(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stay for ever, empty, though others removed it."""
    changes = await persisted(layer)
    layer.upper.at(PATH).unlink()
    layer.journal.drop(PATH)
    layer.upper.mark_demoted(b"/d")
    layer.memory.delete("d/f")
    await layer.listed(b"/d")
    getxattr = SafePath.getxattr

    def fail(safe_path: SafePath, attribute: str | bytes) -> bytes:
        if attribute == MARKS.demoted:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return getxattr(safe_path, attribute)

    with monkeypatch.context() as patches:
        patches.setattr(SafePath, "getxattr", fail)
        assert changes.suspect([b"/d"])
        await changes.check_waiting()
    assert layer.names() == [b"d"] and monotonic_s() < changes.due_s < math.inf
    await pass_time(changes.due_s - monotonic_s())
    await changes.check_waiting()
    assert layer.names() == [] and changes.due_s == math.inf


@pytest.mark.expected_warnings("headrace.writeback.origin_changes")
async def test_a_directory_that_cannot_be_removed_waits_and_the_others_are_reported(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails for the last of two."""
    rmdir, other = SafePath.rmdir, b"/other"

    def fail_at_one(safe_path: SafePath) -> None:
        if safe_path.path == b"/d":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rmdir(safe_path)

    changes = await persisted(layer)
    layer.write(other + b"/f", OURS)
    await layer.uploads.put(other + b"/f")
    for key in ("d/f", "other/f"):
        layer.memory.delete(key)
    await layer.listed(b"/d")
    with monkeypatch.context() as patches:
        patches.setattr(SafePath, "rmdir", fail_at_one)
        assert changes.suspect([PATH, other + b"/f"])
        await changes.check_waiting()
    assert layer.names() == [b"d"] and {PATH, other} <= set(layer.meant_anew)
    assert b"/d" not in layer.meant_anew and monotonic_s() < changes.due_s < math.inf
    await pass_time(changes.due_s - monotonic_s())
    await changes.check_waiting()
    assert layer.names() == [] and b"/d" in layer.meant_anew and changes.due_s == math.inf


async def test_a_directory_that_the_index_has_stays(layer: LayerFixture) -> None:
    changes = await persisted(layer)
    layer.memory.hold("d/other", THEIRS)
    layer.memory.delete("d/f")
    await look(layer, changes)
    await changes.check_waiting()
    assert layer.names() == [b"d"] and layer.names(b"/d") == []


async def test_a_listing_older_than_our_upload_drops_nothing(layer: LayerFixture) -> None:
    """The origin is asked, and the index then has what this node put."""
    changes = await persisted(layer)
    layer.namespace.changes.record_removal(PATH)
    assert changes.suspect([PATH])
    await changes.check_waiting()
    assert layer.content(PATH) == OURS
    entry = layer.namespace.tree.entry_at(PATH)
    assert entry is not None and entry.version == await layer.origin_version(PATH)


async def test_a_dirty_file_is_not_touched(layer: LayerFixture) -> None:
    changes = await persisted(layer)
    layer.memory.hold("d/f", THEIRS)
    layer.write(PATH, b"dirty")
    await look(layer, changes)
    assert layer.content(PATH) == b"dirty"


async def test_a_file_that_is_open_stays_until_it_is_closed(layer: LayerFixture) -> None:
    changes = await persisted(layer)
    layer.memory.hold("d/f", THEIRS)
    fd = layer.upper.at(PATH).open(os.O_RDONLY)
    await look(layer, changes)
    assert layer.content(PATH) == OURS and changes.due_s < math.inf
    os.close(fd)
    await changes.check_waiting()
    assert layer.upper.lookup(PATH) is None and changes.due_s == math.inf


async def test_an_origin_that_cannot_be_asked_drops_nothing(layer: LayerFixture) -> None:
    changes = await persisted(layer)
    layer.memory.hold("d/f", THEIRS)
    await layer.listed(PATH)
    layer.origin.fail("head", PlannedFault.UNAVAILABLE)
    assert changes.suspect([PATH])
    await changes.check_waiting()
    assert layer.content(PATH) == OURS and changes.due_s < math.inf
    layer.origin.mend()
    await changes.check_waiting()
    assert layer.upper.lookup(PATH) is None


async def test_names_that_the_layer_does_not_have_are_no_matter(layer: LayerFixture) -> None:
    assert not reconciler_of(layer).suspect([PATH])


async def test_an_index_that_is_older_than_the_journal_is_corrected(layer: LayerFixture) -> None:
    changes = await persisted(layer)
    row = layer.journal.get(PATH)
    assert row is not None
    layer.namespace.changes.record_removal(PATH)
    await changes.correct_index([(row, layer.upper.at(PATH).lstat())])
    entry = layer.namespace.tree.entry_at(PATH)
    assert entry is not None and entry.version == row.version
