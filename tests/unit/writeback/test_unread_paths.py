"""Paths of the layer that the disk can't read: they are dirty, are tried again, and delay no other path."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.errors import HeadraceError, StoreError
from headrace.base.model import Attributes
from headrace.overlay.hiding import defer_removal, hide, hide_missing
from headrace.overlay.marks import base_version, is_removed, make_removed
from headrace.overlay.pending_version import EntryState
from headrace.overlay.upper import HIDDEN
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until
from headrace.writeback.coherence.pending_names import PendingNames
from headrace.writeback.dirty_set import DirtySet
from headrace.writeback.planner import StepPlanner
from headrace.writeback.sync_journal import ABSENT, JournalRecord
from headrace.writeback.writeback import SCAN_INTERVAL_S
from tests.unit.writeback.failing_disk import FailingDirectory, FailingMarks, FailingNames
from tests.unit.writeback.layer_fixture import LayerFixture

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(60),
    pytest.mark.expected_warnings("can't be read, retrying", "a change was not persisted, retrying later"),
]

ERRORS = [errno.EIO, errno.EMFILE, errno.ENOMEM]


@pytest.mark.parametrize("number", ERRORS)
def test_a_mark_that_can_not_be_read_is_not_missing(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    make_removed(layer.upper.at(b"/d"))
    layer.write(b"/f", b"ours")
    with monkeypatch.context() as patches:
        FailingMarks(patches, b"", number)
        questions: list[Callable[[], object]] = [
            lambda: is_removed(layer.upper.at(b"/d")),
            lambda: base_version(layer.upper.at(b"/f"), b"/f"),
            lambda: layer.upper.lookup(b"/d"),
            lambda: layer.upper.names(b"/"),
        ]
        for question in questions:
            with pytest.raises(OSError) as raised:
                question()
            assert raised.value.errno == number
    assert layer.upper.lookup(b"/d") is HIDDEN and layer.upper.names(b"/") == {b"d": False, b"f": True}


@pytest.mark.parametrize("number", ERRORS)
async def test_a_base_that_can_not_be_read_makes_no_conflict_copy(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    base = await layer.hold(b"/f", b"before")
    layer.write_over(b"/f", b"ours", base)
    async with layer.running(layer.write_back()) as write:
        with monkeypatch.context() as patches:
            FailingMarks(patches, b"", number)
            with pytest.raises(HeadraceError):
                await write.persist(b"/")
            assert layer.kept() == [] and await layer.origin_bytes(b"/f") == b"before"
        await write.persist(b"/")
        assert layer.kept() == [] and await layer.origin_bytes(b"/f") == b"ours"


@pytest.mark.parametrize("number", ERRORS)
def test_other_nodes_are_not_told_that_the_origin_has_what_can_not_be_read(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    layer.upper.at(b"/removed").mkdir(0o755)
    layer.upper.mark_removed(b"/removed")
    names = PendingNames(layer.layer, StepPlanner(layer.layer), DirtySet())
    with monkeypatch.context() as patches:
        FailingMarks(patches, b"", number)
        assert names.means(b"/removed") is None and not names.is_clean(b"/removed")
    entry = names.means(b"/removed")
    assert entry is not None and entry.means == EntryState.HIDDEN


@pytest.mark.expected_warnings("another writer changed a file at the origin")
async def test_a_whiteout_whose_base_can_not_be_read_removes_no_later_version(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = await layer.hold(b"/f", b"before")
    hide(layer.upper, b"/f", base)
    await layer.hold(b"/f", b"another writer's")
    async with layer.running(layer.write_back()) as write:
        with monkeypatch.context() as patches:
            FailingMarks(patches, b"", errno.EIO)
            with pytest.raises(HeadraceError):
                await write.persist(b"/")
        await write.persist(b"/")
        assert await layer.origin_bytes(b"/f") == b"another writer's"


async def test_a_directory_that_can_not_be_read_delays_no_other_path(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A start found nothing at all, and the node did not start."""
    for path in (b"/bad/f", b"/d/f"):
        layer.write(path, path)
    failing = FailingDirectory(monkeypatch, b"/bad")
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        await until(lambda: write.waiting(b"/d") == (0, 0))
        assert await layer.origin_bytes(b"/d/f") == b"/d/f"
        assert write.failing(b"/") == [("/bad", "/bad: Input/output error")]
        with pytest.raises(StoreError):
            await write.persist(b"/")
        with pytest.raises(StoreError):
            await write.persist(b"/bad")
        layer.write(b"/d/g", b"later")
        await write.persist(b"/d")
        assert await layer.origin_bytes(b"/d/g") == b"later"
        attempts = failing.attempts
        await pass_time(3 * SCAN_INTERVAL_S)
        assert failing.attempts > attempts and caplog.text.count("can't be read, retrying") == 1
        failing.is_mended = True
        await write.persist(b"/bad")
        assert await layer.origin_bytes(b"/bad/f") == b"/bad/f"
        assert write.failing(b"/") == [] and write.waiting(b"/") == (0, 0)


async def test_a_directory_is_tried_again_without_a_call(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer.write(b"/bad/s/f", b"ours")
    failing = FailingDirectory(monkeypatch, b"/bad/s")
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        await until(lambda: failing.attempts > 2)
        failing.is_mended = True
        await until(lambda: write.waiting(b"/") == (0, 0))
        assert await layer.origin_bytes(b"/bad/s/f") == b"ours"


async def test_a_new_directory_that_can_not_be_read_is_not_made_without_its_names(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A session reported the directory alone, as after a rename. It would count as persisted."""
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        layer.write(b"/bad/f", b"ours")
        failing = FailingDirectory(monkeypatch, b"/bad")
        write.changed([b"/bad"], 1)
        await until(lambda: failing.attempts > 3)
        assert write.waiting(b"/bad")[0] == 1 and caplog.text.count("can't be read, retrying") == 1
        with pytest.raises(StoreError):
            await write.persist(b"/bad")
        failing.is_mended = True
        await until(lambda: write.waiting(b"/") == (0, 0))
        assert await layer.origin_bytes(b"/bad/f") == b"ours"


async def test_a_name_that_can_not_be_hidden_delays_no_other_path(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk has no room for the whiteout of a file that was removed while it was uploaded."""
    layer.journal.note(JournalRecord(b"/gone", 1, 2, 4, ABSENT, begun=True, mtime_ns=3))
    layer.memory.hold("gone", b"ours", Attributes(3))
    layer.write(b"/f", b"ours")
    is_full = [True]

    def fail(*arguments: Any, **options: Any) -> bytes | None:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return hide_missing(*arguments, **options)

    monkeypatch.setattr("headrace.writeback.changes.hide_missing", fail)
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        await until(lambda: write.waiting(b"/") == (1, 0))
        assert await layer.origin_bytes(b"/f") == b"ours" and await layer.origin_bytes(b"/gone") == b"ours"
        await pass_time(2 * SCAN_INTERVAL_S)
        assert write.failing(b"/") and caplog.text.count("can't be read, retrying") == 1
        is_full.clear()
        await until(lambda: write.waiting(b"/") == (0, 0))
        assert await layer.origin_bytes(b"/gone") is None


async def test_a_name_that_can_not_be_read_delays_no_other_path(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (b"/d/bad", b"/d/f", b"/d/g"):
        layer.write(path, path)
    failing = FailingNames(monkeypatch, b"bad")
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        write.changed([b"/d/bad", b"/d/f"], 1)
        await until(lambda: write.waiting(b"/") == (1, 0))
        assert await layer.origin_bytes(b"/d/f") == b"/d/f" and await layer.origin_bytes(b"/d/g") == b"/d/g"
        assert [path for path, _ in write.failing(b"/")] == ["/d/bad"]
        failing.is_mended = True
        await until(lambda: write.waiting(b"/") == (0, 0))
        assert await layer.origin_bytes(b"/d/bad") == b"/d/bad"


async def test_no_name_is_removed_while_a_path_can_not_be_read(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path may be the removed file under its new name."""
    base = await layer.hold(b"/old", b"before")
    hide(layer.upper, b"/old", base)
    layer.write(b"/bad/new", b"before")
    failing = FailingDirectory(monkeypatch, b"/bad")
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        with pytest.raises(StoreError):
            await write.persist(b"/")
        await until(lambda: failing.attempts > 8)
        assert await layer.origin_bytes(b"/old") == b"before"
        failing.is_mended = True
        await until(lambda: write.waiting(b"/") == (0, 0))
        assert (
            await layer.origin_bytes(b"/old") is None and await layer.origin_bytes(b"/bad/new") == b"before"
        )


async def test_an_upload_without_an_answer_whose_path_can_not_be_read_delays_no_other(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = layer.write(b"/bad", b"ours")
    layer.journal.note(JournalRecord(b"/bad", status.st_ino, status.st_ctime_ns, 4, ABSENT, begun=True))
    layer.write(b"/f", b"ours")
    failing = FailingNames(monkeypatch, b"bad")
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        await until(lambda: write.waiting(b"/") == (1, 0))
        assert await layer.origin_bytes(b"/f") == b"ours"
        failing.is_mended = True
        await until(lambda: write.waiting(b"/") == (0, 0))
        assert await layer.origin_bytes(b"/bad") == b"ours"


async def test_a_pending_removal_whose_mark_can_not_be_read_delays_no_other_path(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = await layer.hold(b"/s/f", b"before")
    layer.upper.at(b"/s").make_directories(0o755)
    hide(layer.upper, b"/s/f", version)
    defer_removal(layer.upper, b"/s")
    layer.upper.at(b"/s").unlink()
    layer.write(b"/s", b"a file")
    layer.write(b"/f", b"ours")
    async with layer.running(layer.write_back()) as write:
        with monkeypatch.context() as patches:
            FailingMarks(patches, b"/gone", errno.EIO)
            await write.persist(b"/f")
            assert await layer.origin_bytes(b"/f") == b"ours" and layer.kept() == []
        await write.persist(b"/")
        assert await layer.origin_bytes(b"/s") == b"a file" and await layer.origin_bytes(b"/s/f") is None
        assert layer.kept() == []
