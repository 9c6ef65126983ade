"""Removals and directories: what is removed under which condition, and what shows again where others were first."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from headrace.base.errors import OriginUnavailableError, PathExistsError, StoreError
from headrace.base.model import Version
from headrace.overlay import workdir
from headrace.overlay.hiding import (
    defer_removal,
    hide,
    hide_missing,
    pending_removals,
    rename_leaving_whiteout,
)
from headrace.overlay.moves import clear_work
from headrace.overlay.pending_version import PendingVersion
from headrace.overlay.upper import HIDDEN
from headrace.writeback.sync_journal import JournalRecord
from tests.faulty_origin import PlannedFault
from tests.unit.writeback.layer_fixture import CrashError, LayerFixture, crash_at

PATH, DIRECTORY = b"/d/f", b"/d/s"
THEIRS = b"theirs"
CONFLICT = "another writer changed a file at the origin, it is not removed"


async def hidden(layer: LayerFixture, path: bytes = PATH) -> Version:
    """The origin's file, removed in the layer."""
    version = await layer.hold(path, b"before")
    layer.upper.at(os.path.dirname(path)).make_directories(0o755)
    hide(layer.upper, path, version)
    return version


async def remove(layer: LayerFixture, path: bytes = PATH) -> bool:
    return await layer.removals.remove(path, layer.upper.at(path))


async def assert_removed(layer: LayerFixture) -> None:
    """The origin has it no more, and a new listing lets the whiteout go."""
    assert await layer.origin_bytes(PATH) is None
    row = layer.journal.get(PATH)
    assert row is not None and row.is_absent and layer.namespace.tree.entry_at(PATH) is None
    assert layer.upper.lookup(PATH) is HIDDEN
    await layer.namespace.listings.refresh_listed(b"/d")
    assert layer.removals.drop_whiteout(PATH) and layer.names(b"/d") == []
    assert layer.kept() == []


async def test_what_was_removed_here_is_removed_at_the_origin(layer: LayerFixture) -> None:
    version = await hidden(layer)
    assert await remove(layer)
    await assert_removed(layer)
    row = layer.journal.get(PATH)
    assert row is not None and row.was_removed(version)


async def test_what_this_node_put_is_removed_too(layer: LayerFixture) -> None:
    layer.write(PATH, b"ours")
    await layer.uploads.put(PATH)
    hide(layer.upper, PATH, None)
    assert await remove(layer)
    await assert_removed(layer)


async def test_what_never_was_at_the_origin_is_not_asked_for(layer: LayerFixture) -> None:
    layer.write(PATH, b"ours")
    hide(layer.upper, PATH, None)
    assert await remove(layer)
    assert layer.origin.asked == []


@pytest.mark.expected_warnings(CONFLICT)
async def test_a_newer_object_of_others_stays_and_shows_again(layer: LayerFixture) -> None:
    await hidden(layer)
    layer.memory.hold("d/f", THEIRS)
    assert not await remove(layer)
    assert await layer.origin_bytes(PATH) == THEIRS
    assert layer.names(b"/d") == [] and layer.journal.get(PATH) is None
    (conflict,) = layer.kept()
    assert (conflict.path, conflict.kept) == (PATH, b"") and layer.meant_anew == [PATH]
    await layer.namespace.resolver.resolve(PATH)
    entry = layer.namespace.tree.entry_at(PATH)
    assert entry is not None and entry.version == await layer.origin_version(PATH)


@pytest.mark.expected_warnings(CONFLICT)
async def test_what_others_put_over_our_version_stays(layer: LayerFixture) -> None:
    layer.write(PATH, b"ours")
    await layer.uploads.put(PATH)
    hide(layer.upper, PATH, None)
    layer.memory.hold("d/f", THEIRS)
    assert not await remove(layer)
    assert await layer.origin_bytes(PATH) == THEIRS and len(layer.kept()) == 1


async def test_what_others_put_beside_a_new_file_outlives_it(layer: LayerFixture) -> None:
    """The file that is removed replaced nothing, so a program here never saw theirs."""
    layer.write(PATH, b"ours")
    await layer.hold(PATH, THEIRS)
    hide(layer.upper, PATH, None)
    assert await remove(layer)
    assert await layer.origin_bytes(PATH) == THEIRS and layer.origin.count("remove") == 0
    await layer.listed(PATH)
    assert layer.removals.drop_whiteout(PATH) and layer.names(b"/d") == []


@pytest.mark.root
@pytest.mark.expected_warnings(CONFLICT)
@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("is_cleared", [False, True])
async def test_a_rename_that_is_killed_removes_the_version_that_it_renamed(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch, is_replaced: bool, is_cleared: bool
) -> None:
    """The kernel leaves a whiteout without a base. is_replaced: others put the old name again. is_cleared: a session or
    the node cleared `work` before the removal."""
    version = await layer.hold(PATH, b"before")
    layer.write_over(PATH, b"before", version)
    with monkeypatch.context() as patches:
        crash_at(patches, "tree.renamed")
        with pytest.raises(CrashError):
            rename_leaving_whiteout(layer.upper, PATH, b"/d/new", version)
    assert layer.upper.lookup(PATH) is HIDDEN and layer.content(b"/d/new") == b"before"
    if is_replaced:
        await layer.hold(PATH, THEIRS)
    if is_cleared:
        monkeypatch.setattr(workdir, "is_orphaned", lambda name: True)
        assert clear_work(layer.upper) == [PATH]
        assert layer.upper.base_of(PATH) == version and clear_work(layer.upper) == []
    assert layer.upper.work.at(b"/").names() == [] or not is_cleared
    assert await remove(layer) is (not (is_replaced and is_cleared))
    left = None if is_cleared else b"before"
    assert await layer.origin_bytes(PATH) == (THEIRS if is_replaced else left)


async def test_what_others_removed_first_is_no_conflict(layer: LayerFixture) -> None:
    await hidden(layer)
    layer.memory.delete("d/f")
    assert await remove(layer)
    await assert_removed(layer)


async def test_the_whiteout_stays_while_a_listing_has_the_removed_file(layer: LayerFixture) -> None:
    version = await hidden(layer)
    assert await remove(layer)
    layer.namespace.changes.record_put(PATH, version)  # a listing that began before the removal
    assert not layer.removals.drop_whiteout(PATH)
    assert layer.upper.lookup(PATH) is HIDDEN


async def test_a_state_that_others_persisted_in_our_place_is_removed(tmp_path: Path) -> None:
    async def query_replicas(path: bytes) -> None:
        layer.journal.note(JournalRecord(PATH, 1, 1, 6, theirs))

    layer = LayerFixture(tmp_path, query_replicas=query_replicas)
    await hidden(layer)
    theirs = layer.memory.hold("d/f", b"in our place")
    assert await remove(layer)
    await assert_removed(layer)
    layer.crash()


@pytest.mark.parametrize("persisted", [True, False])
async def test_another_node_persists_first_what_is_to_be_removed(tmp_path: Path, persisted: bool) -> None:
    """If that node wrote the file again, or is gone, the name means what it has there."""

    async def resolve_version(path: bytes, version: Version) -> Version | None:
        assert version == pending
        return layer.memory.hold("d/f", THEIRS) if persisted else None

    layer = LayerFixture(tmp_path, resolve_version=resolve_version)
    pending = Version(6, 7, PendingVersion("n1", 5, 6).token)
    layer.upper.at(b"/d").make_directories(0o755)
    hide(layer.upper, PATH, pending)
    assert await remove(layer) is persisted
    if persisted:
        await assert_removed(layer)
    else:
        assert layer.names(b"/d") == [] and layer.origin.count("remove") == 0
    layer.crash()


# ------------------------------------------------------------ failures


@pytest.mark.parametrize("fault", [PlannedFault.UNAVAILABLE, PlannedFault.LOST])
async def test_a_removal_that_fails_is_completed_later(layer: LayerFixture, fault: PlannedFault) -> None:
    await hidden(layer)
    layer.origin.fail("remove", fault, numbers=0)
    with pytest.raises(OriginUnavailableError):
        await remove(layer)
    row = layer.journal.get(PATH)
    assert row is not None and row.is_removal
    assert await remove(layer)
    await assert_removed(layer)


@pytest.mark.expected_warnings(CONFLICT)
async def test_after_a_lost_answer_what_others_put_since_stays(layer: LayerFixture) -> None:
    await hidden(layer)
    layer.origin.fail("remove", PlannedFault.LOST, numbers=0)
    with pytest.raises(OriginUnavailableError):
        await remove(layer)
    layer.memory.hold("d/f", THEIRS)
    await remove(layer)
    assert await layer.origin_bytes(PATH) == THEIRS


async def test_no_object_is_removed_before_the_journal_is_on_the_disk(layer: LayerFixture) -> None:
    await hidden(layer)
    layer.flush_error = OSError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(StoreError):
        await remove(layer)
    assert layer.origin.count("remove") == 0 and await layer.origin_bytes(PATH) == b"before"


@pytest.mark.parametrize("step", ["persist.removing", "persist.removed"])
async def test_the_next_node_completes_a_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    layer = LayerFixture(tmp_path)
    await hidden(layer)
    with monkeypatch.context() as patch:
        crash_at(patch, step)
        with pytest.raises(CrashError):
            await remove(layer)
    again = await layer.reopened()
    assert await remove(again)
    await assert_removed(again)
    again.crash()


# ------------------------------------------------------------ times of the directory

TIME_NS = 1_234_567_890_123_456_789


def set_time(layer: LayerFixture) -> None:
    layer.upper.at(b"/d").utime((TIME_NS, TIME_NS))


def assert_time(layer: LayerFixture) -> None:
    assert layer.names(b"/d") == [] and layer.upper.at(b"/d").lstat().st_mtime_ns == TIME_NS


async def test_a_removal_that_is_persisted_leaves_the_time(layer: LayerFixture) -> None:
    await hidden(layer)
    set_time(layer)
    assert await remove(layer)
    await layer.namespace.listings.refresh_listed(b"/d")
    assert layer.removals.drop_whiteout(PATH)
    assert_time(layer)


async def test_a_removed_directory_that_is_persisted_leaves_the_time(layer: LayerFixture) -> None:
    layer.upper.at(DIRECTORY).make_directories(0o755)
    await layer.removals.make_directory(DIRECTORY)
    layer.upper.mark_removed(DIRECTORY)
    set_time(layer)
    assert await layer.removals.remove_directory(DIRECTORY)
    assert_time(layer)


@pytest.mark.parametrize("path", [PATH, DIRECTORY + b"/deep/f"])
async def test_a_name_that_is_hidden_for_a_later_removal_leaves_the_time(
    layer: LayerFixture, path: bytes
) -> None:
    """Its put ended after a program had removed it."""
    layer.upper.at(b"/d").make_directories(0o755)
    set_time(layer)
    with layer.upper.lock:
        assert hide_missing(layer.upper, path, await layer.hold(path, b"ours"))
    assert layer.names(b"/d") != [] and layer.upper.at(b"/d").lstat().st_mtime_ns == TIME_NS
    assert await remove(layer, path)
    await layer.namespace.listings.refresh_listed(os.path.dirname(path))
    assert layer.removals.drop_whiteout(path)
    if path == PATH:
        assert_time(layer)


async def test_a_whiteout_whose_directory_is_gone_meanwhile_is_dropped(layer: LayerFixture) -> None:
    await hidden(layer)
    assert await remove(layer)
    await layer.namespace.listings.refresh_listed(b"/d")
    layer.upper.at(b"/d").remove_tree()
    assert layer.removals.drop_whiteout(PATH)
    assert layer.upper.at(b"/d").seen() is None


# ------------------------------------------------------------ names of which nothing is left


async def test_a_put_that_was_not_noted_is_removed_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = LayerFixture(tmp_path)
    layer.write(PATH, b"ours")
    with monkeypatch.context() as patch:
        crash_at(patch, "persist.put")
        with pytest.raises(CrashError):
            await layer.uploads.put(PATH)
    again = await layer.reopened()
    again.upper.at(PATH).unlink()
    (row,) = again.removals.unanswered_rows()
    assert row.path == PATH and again.removals.rows_without_entry(PATH) == [row]
    with again.upper.lock:
        assert hide_missing(again.upper, PATH, None) == PATH
    assert await remove(again)
    await assert_removed(again)
    again.crash()


async def test_a_name_that_was_demoted_is_not_removed(layer: LayerFixture) -> None:
    layer.write(PATH, b"ours")
    await layer.uploads.put(PATH)
    layer.upper.at(PATH).unlink()
    assert layer.removals.rows_without_entry(PATH) == [] and layer.journal.get(PATH) is None
    assert await layer.origin_bytes(PATH) == b"ours"


# ------------------------------------------------------------ directories


async def test_a_directory_is_made_and_removed(layer: LayerFixture) -> None:
    layer.upper.at(DIRECTORY).make_directories(0o755)
    assert await layer.removals.make_directory(DIRECTORY) == []
    row = layer.journal.get(DIRECTORY)
    assert row is not None and row.is_directory and not row.begun
    assert layer.namespace.tree.entry_at(DIRECTORY) is not None
    layer.upper.mark_removed(DIRECTORY)
    assert await layer.removals.remove_directory(DIRECTORY)
    row = layer.journal.get(DIRECTORY)
    assert row is not None and row.is_absent and layer.names(b"/d") == []
    assert [call for call in layer.origin.asked if call[0] == "directory"] == [("directory", "d/s")] * 2


async def test_a_removed_directory_into_which_others_put_something_shows_again(layer: LayerFixture) -> None:
    layer.upper.at(DIRECTORY).make_directories(0o755)
    await layer.removals.make_directory(DIRECTORY)
    layer.memory.hold("d/s/theirs", THEIRS)
    layer.upper.mark_removed(DIRECTORY)
    assert await layer.removals.remove_directory(DIRECTORY)
    assert layer.names(b"/d") == [] and await layer.origin_bytes(b"/d/s/theirs") == THEIRS
    await layer.listed(b"/d/s/theirs")
    assert layer.namespace.tree.entry_at(b"/d/s/theirs") is not None


async def test_a_removed_directory_with_names_waits(layer: LayerFixture) -> None:
    await hidden(layer, b"/d/s/f")
    layer.upper.mark_removed(DIRECTORY)
    assert not await layer.removals.remove_directory(DIRECTORY)
    assert layer.origin.count("directory") == 0


@pytest.mark.expected_warnings("the local version is kept")
async def test_a_directory_where_others_put_a_file_has_another_name(layer: LayerFixture) -> None:
    layer.write(DIRECTORY + b"/f", b"ours")
    layer.memory.hold("d/s", THEIRS)
    layer.origin.fail("directory", PathExistsError("d/s", why="a file is there"), numbers=0)
    assert await layer.removals.make_directory(DIRECTORY) == []
    (conflict,) = layer.kept()
    assert layer.content(conflict.kept + b"/f") == b"ours"
    assert await layer.origin_bytes(DIRECTORY) == THEIRS and layer.upper.lookup(DIRECTORY) is None


async def test_a_directory_in_the_place_of_a_file_removes_the_file_first(layer: LayerFixture) -> None:
    layer.write(DIRECTORY, b"ours")
    await layer.uploads.put(DIRECTORY)
    layer.upper.at(DIRECTORY).unlink()
    layer.upper.at(DIRECTORY).mkdir(0o755)
    assert await layer.removals.make_directory(DIRECTORY) == []
    assert await layer.origin_bytes(DIRECTORY) is None
    row = layer.journal.get(DIRECTORY)
    assert row is not None and row.is_directory and not row.begun


async def test_a_file_in_the_place_of_a_directory_removes_the_directory_first(layer: LayerFixture) -> None:
    layer.upper.at(DIRECTORY).make_directories(0o755)
    await layer.removals.make_directory(DIRECTORY)
    layer.upper.at(DIRECTORY).rmdir()
    layer.write(DIRECTORY, b"ours")
    await layer.removals.unmake(DIRECTORY)
    assert layer.origin.asked[-1] == ("directory", "d/s")
    await layer.uploads.put(DIRECTORY)
    assert await layer.origin_bytes(DIRECTORY) == b"ours"


async def test_a_directory_that_was_put_aside_is_removed_with_all_that_is_in_it(layer: LayerFixture) -> None:
    version = await layer.hold(b"/d/s/f", b"before")
    layer.upper.at(DIRECTORY).make_directories(0o755)
    hide(layer.upper, b"/d/s/f", version)
    defer_removal(layer.upper, DIRECTORY)
    layer.upper.at(DIRECTORY).unlink()  # the whiteout in its place, which the new file replaces
    layer.write(DIRECTORY, b"a file")
    await layer.removals.remove_pending(pending_removals(layer.upper))
    assert await layer.origin_bytes(b"/d/s/f") is None and pending_removals(layer.upper) == []
    assert stat.S_ISREG(layer.upper.at(DIRECTORY).lstat().st_mode)


@pytest.mark.parametrize("step", ["persist.made", "persist.emptied"])
async def test_the_next_node_completes_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    layer = LayerFixture(tmp_path)
    layer.upper.at(DIRECTORY).make_directories(0o755)
    if step == "persist.emptied":
        await layer.removals.make_directory(DIRECTORY)
        layer.upper.mark_removed(DIRECTORY)
    with monkeypatch.context() as patch:
        crash_at(patch, step)
        with pytest.raises(CrashError):
            if step == "persist.made":
                await layer.removals.make_directory(DIRECTORY)
            else:
                await layer.removals.remove_directory(DIRECTORY)
    again = await layer.reopened()
    if step == "persist.made":
        assert await again.removals.make_directory(DIRECTORY) == []
    else:
        assert await again.removals.remove_directory(DIRECTORY)
    row = again.journal.get(DIRECTORY)
    assert row is not None and not row.begun and row.is_directory is (step == "persist.made")
    again.crash()
