"""Uploads: under which condition, what a lost answer or a crash leaves, and what users keep where others were first."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base import failpoint
from headrace.base.errors import OriginUnavailableError, StoreError
from headrace.base.model import Version
from headrace.origin.origin import HIDDEN as HIDDEN_PREFIX
from headrace.overlay.hiding import hide
from headrace.overlay.marks import base_version
from headrace.overlay.pending_version import PendingVersion
from headrace.overlay.upper import HIDDEN
from headrace.writeback.sync_journal import JournalRecord
from headrace.writeback.upload import COMMIT_BATCH_MAX, COMPARE_BYTES, CONTENT_BYTES_MAX
from tests.faulty_origin import PlannedFault
from tests.unit.writeback.layer_fixture import CrashError, LayerFixture, crash_at

STEPS = ("persist.chosen", "persist.begun", "persist.put", "persist.shown", "persist.noted")
PATH = b"/d/f"
OURS, NEWER, THEIRS = b"ours", b"ours, newer", b"theirs"
CONFLICT = "another writer changed a file at the origin"


async def assert_persisted(layer: LayerFixture, path: bytes, data: bytes) -> None:
    """The origin has the bytes, and nothing is left to do."""
    assert await layer.origin_bytes(path) == data
    row = layer.journal.get(path)
    assert row is not None and row.describes(layer.upper.at(path).lstat())
    assert row.version == await layer.origin_version(path)
    entry = layer.namespace.tree.entry_at(path)
    assert entry is not None and entry.version == row.version
    assert layer.kept() == []


async def assert_both_kept(layer: LayerFixture, data: bytes, theirs: bytes = THEIRS) -> None:
    """The name means the origin's, and ours has another name, under which it is persisted."""
    (conflict,) = layer.kept()
    assert conflict.path == PATH and conflict.kept.startswith(PATH + b".conflict-")
    assert layer.content(conflict.kept) == data
    assert layer.upper.lookup(PATH) is None and layer.journal.get(PATH) is None
    assert {PATH, conflict.kept} <= set(layer.meant_anew)
    assert await layer.uploads.put(conflict.kept) is not None
    assert await layer.origin_bytes(conflict.kept) == data
    assert await layer.origin_bytes(PATH) == theirs


@pytest.mark.parametrize("size_bytes", [0, 1, CONTENT_BYTES_MAX + 1, 3 << 20])
async def test_an_upload_brings_the_bytes_and_is_noted(layer: LayerFixture, size_bytes: int) -> None:
    data = random.Random(size_bytes).randbytes(size_bytes)
    status = layer.write(PATH, data)
    result = await layer.uploads.put(PATH)
    assert result is not None and (result.size_bytes, result.changed) == (size_bytes, [])
    await assert_persisted(layer, PATH, data)
    entry = layer.namespace.tree.entry_at(PATH)
    assert entry is not None and entry.attributes is not None
    assert entry.attributes.mtime_ns == status.st_mtime_ns


async def test_files_at_the_same_step_are_not_mixed_up(layer: LayerFixture) -> None:
    files = {b"/d/%d" % number: random.Random(number).randbytes(number) for number in range(80)}
    assert len(files) > COMMIT_BATCH_MAX
    for path, data in files.items():
        layer.write(path, data)
    await asyncio.gather(*(layer.uploads.put(path) for path in files))
    for path, data in files.items():
        await assert_persisted(layer, path, data)


# ------------------------------------------------------------ conditions


@pytest.mark.expected_warnings(CONFLICT)
async def test_a_new_file_replaces_nothing_of_others(layer: LayerFixture) -> None:
    layer.write(PATH, OURS)
    layer.memory.hold("d/f", THEIRS)
    assert await layer.uploads.put(PATH) is None
    await assert_both_kept(layer, OURS)


async def test_a_copied_up_file_replaces_its_base(layer: LayerFixture) -> None:
    base = await layer.hold(PATH, b"before")
    layer.write_over(PATH, OURS, base)
    assert await layer.uploads.put(PATH) is not None
    await assert_persisted(layer, PATH, OURS)


@pytest.mark.expected_warnings(CONFLICT)
async def test_a_copied_up_file_does_not_replace_a_newer_version(layer: LayerFixture) -> None:
    base = await layer.hold(PATH, b"before")
    layer.write_over(PATH, OURS, base)
    layer.memory.hold("d/f", THEIRS)
    assert await layer.uploads.put(PATH) is None
    await assert_both_kept(layer, OURS)


async def test_a_file_that_is_written_again_replaces_the_version_of_the_journal(layer: LayerFixture) -> None:
    for data in (OURS, NEWER):
        layer.write(PATH, data)
        assert await layer.uploads.put(PATH) is not None
        await assert_persisted(layer, PATH, data)


@pytest.mark.expected_warnings(CONFLICT)
async def test_what_others_put_over_our_version_stays(layer: LayerFixture) -> None:
    layer.write(PATH, OURS)
    await layer.uploads.put(PATH)
    layer.memory.hold("d/f", THEIRS)
    layer.write(PATH, NEWER)
    assert await layer.uploads.put(PATH) is None
    await assert_both_kept(layer, NEWER)


@pytest.mark.expected_warnings(CONFLICT)
async def test_a_removal_by_others_is_a_conflict_too(layer: LayerFixture) -> None:
    layer.write(PATH, OURS)
    await layer.uploads.put(PATH)
    layer.memory.delete("d/f")
    layer.write(PATH, NEWER)
    assert await layer.uploads.put(PATH) is None
    (conflict,) = layer.kept()
    assert layer.content(conflict.kept) == NEWER and await layer.origin_bytes(PATH) is None


@pytest.mark.parametrize("size_bytes", [0, 5, COMPARE_BYTES + 5])
async def test_equal_bytes_of_others_are_no_conflict(layer: LayerFixture, size_bytes: int) -> None:
    data = random.Random(0).randbytes(size_bytes)
    layer.write(PATH, data)
    layer.memory.hold("d/f", data)
    assert await layer.uploads.put(PATH) is not None
    await assert_persisted(layer, PATH, data)


@pytest.mark.expected_warnings(CONFLICT)
async def test_one_other_byte_is_a_conflict(layer: LayerFixture) -> None:
    data = random.Random(0).randbytes(COMPARE_BYTES + 5)
    layer.write(PATH, data)
    theirs = data[:-1] + bytes([data[-1] ^ 1])
    layer.memory.hold("d/f", theirs)
    assert await layer.uploads.put(PATH) is None
    await assert_both_kept(layer, data, theirs)


async def test_others_that_put_an_earlier_state_in_our_place_are_no_conflict(tmp_path: Path) -> None:
    async def query_replicas(path: bytes) -> None:
        layer.journal.note(earlier)

    layer = LayerFixture(tmp_path, query_replicas=query_replicas)
    status = layer.write(PATH, OURS)
    version = layer.memory.hold("d/f", OURS)
    earlier = JournalRecord(PATH, status.st_ino, status.st_ctime_ns, len(OURS), version)
    layer.write(PATH, NEWER)
    assert await layer.uploads.put(PATH) is not None
    await assert_persisted(layer, PATH, NEWER)
    layer.crash()


@pytest.mark.parametrize("persisted", [True, False])
async def test_the_version_of_another_node_is_persisted_first(tmp_path: Path, persisted: bool) -> None:
    """Its node has it persisted; a node that is gone, or wrote it again, leaves nothing to replace."""

    async def resolve_version(path: bytes, version: Version) -> Version | None:
        assert (path, version) == (PATH, pending)
        return layer.memory.hold("d/f", b"of another node") if persisted else None

    layer = LayerFixture(tmp_path, resolve_version=resolve_version)
    pending = Version(3, 7, PendingVersion("n1", 5, 6).token)
    layer.write_over(PATH, OURS, pending)
    assert await layer.uploads.put(PATH) is not None
    await assert_persisted(layer, PATH, OURS)
    assert (base_version(layer.upper.at(PATH), PATH) is None) is not persisted
    layer.crash()


# ------------------------------------------------------------ what changes meanwhile


async def test_nothing_is_put_of_what_is_gone(layer: LayerFixture) -> None:
    layer.write(PATH, OURS)
    hide(layer.upper, PATH, None)
    assert await layer.uploads.put(PATH) is None
    layer.upper.at(PATH).unlink()
    assert await layer.uploads.put(PATH) is None
    assert layer.origin.count("put") == 0


async def test_a_file_that_is_written_meanwhile_stays_dirty(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer.write(PATH, OURS)
    at_step(monkeypatch, "persist.put", lambda: layer.write(PATH, NEWER))
    result = await layer.uploads.put(PATH)
    assert result is not None and result.changed == [PATH]
    assert await layer.origin_bytes(PATH) == OURS
    assert await layer.uploads.put(PATH) is not None
    await assert_persisted(layer, PATH, NEWER)


async def test_a_file_that_is_removed_meanwhile_does_not_come_back(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer.write(PATH, OURS)
    at_step(monkeypatch, "persist.put", layer.upper.at(PATH).unlink)
    result = await layer.uploads.put(PATH)
    assert result is not None and PATH in result.changed
    assert layer.upper.lookup(PATH) is HIDDEN
    assert await layer.removals.remove(PATH, layer.upper.at(PATH))
    assert await layer.origin_bytes(PATH) is None


# ------------------------------------------------------------ failures


async def test_a_refused_upload_leaves_the_file_dirty(layer: LayerFixture) -> None:
    layer.origin.fail("put", PlannedFault.UNAVAILABLE, numbers=0)
    layer.write(PATH, OURS)
    with pytest.raises(OriginUnavailableError):
        await layer.uploads.put(PATH)
    row = layer.journal.get(PATH)
    assert row is not None and row.begun and await layer.origin_bytes(PATH) is None
    assert await layer.uploads.put(PATH) is not None
    await assert_persisted(layer, PATH, OURS)


async def test_no_origin_changes_before_the_journal_is_on_the_disk(layer: LayerFixture) -> None:
    layer.write(PATH, OURS)
    layer.flush_error = OSError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(StoreError):
        await layer.uploads.put(PATH)
    assert layer.origin.count("put") == 0
    layer.flush_error = None
    assert await layer.uploads.put(PATH) is not None
    await assert_persisted(layer, PATH, OURS)


@pytest.mark.parametrize("data", [OURS, NEWER])
async def test_an_upload_whose_answer_was_lost_is_recognised(layer: LayerFixture, data: bytes) -> None:
    """data: what the file has at the retry. Without a conflict the origin has that, and no other name."""
    layer.origin.fail("put", PlannedFault.LOST, numbers=0)
    layer.write(PATH, OURS)
    with pytest.raises(OriginUnavailableError):
        await layer.uploads.put(PATH)
    assert await layer.origin_bytes(PATH) == OURS
    if data != OURS:
        layer.write(PATH, data)
    assert await layer.uploads.put(PATH) is not None
    await assert_persisted(layer, PATH, data)
    assert layer.names(b"/d") == [b"f"]


@pytest.mark.expected_warnings(CONFLICT)
async def test_after_a_lost_answer_an_object_of_the_same_size_is_not_taken_for_ours(
    layer: LayerFixture,
) -> None:
    layer.origin.fail("put", PlannedFault.LOST, numbers=0)
    layer.write(PATH, OURS)
    with pytest.raises(OriginUnavailableError):
        await layer.uploads.put(PATH)
    layer.memory.hold("d/f", OURS[::-1])
    assert await layer.uploads.put(PATH) is None
    await assert_both_kept(layer, OURS, OURS[::-1])


@pytest.mark.expected_warnings("no origin accepts a name")
async def test_a_name_that_no_origin_takes_is_changed(layer: LayerFixture) -> None:
    path, kept = b"/d/" + HIDDEN_PREFIX.encode() + b"f", b"/d/%2E" + HIDDEN_PREFIX.encode()[1:] + b"f"
    layer.write(path, OURS)
    assert await layer.uploads.put(path) is None
    assert layer.names(b"/d") == [kept.rpartition(b"/")[2]] and layer.journal.get(path) is None
    assert await layer.uploads.put(kept) is not None
    assert await layer.origin_bytes(kept) == OURS


# ------------------------------------------------------------ crashes


@pytest.mark.parametrize("data", [OURS, NEWER], ids=["same", "written again"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "replaces"])
async def test_the_next_node_completes_what_a_crash_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, data: bytes, is_new: bool
) -> None:
    layer = LayerFixture(tmp_path)
    if is_new:
        layer.write(PATH, OURS)
    else:
        layer.write_over(PATH, OURS, await layer.hold(PATH, b"before"))
    with monkeypatch.context() as patch:
        crash_at(patch, step)
        with pytest.raises(CrashError):
            await layer.uploads.put(PATH)
    again = await layer.reopened()
    if data != OURS:
        again.write(PATH, data)
    assert await again.uploads.put(PATH) is not None
    await assert_persisted(again, PATH, data)
    assert again.names(b"/d") == [b"f"]
    again.crash()


def at_step(monkeypatch: pytest.MonkeyPatch, step: str, action: Callable[[], object]) -> None:
    """Do something else at a step, once, as a program on this host would."""
    left = [step]

    def hit(name: str) -> None:
        if name in left:
            left.remove(name)
            action()

    monkeypatch.setattr(failpoint, "hit", hit)
