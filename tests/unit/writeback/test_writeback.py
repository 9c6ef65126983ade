"""The scheduler: when a path is persisted, in which order, what `persist` waits for, and what a failure leaves."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import msgspec
import pytest

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, OriginUnavailableError, PathNotFoundError
from headrace.base.model import Kind
from headrace.base.tasks import OwnedTasks
from headrace.namespace.mounts import Mount
from headrace.namespace.owner_listing import OwnerListingClient
from headrace.origin.memory import MemoryOrigin
from headrace.overlay.hiding import defer_removal, hide, pending_removals, rename_leaving_whiteout
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until
from headrace.wire.peer_messages import NameRow, Names
from headrace.writeback.observers import WriteObserver
from headrace.writeback.pending_removals import near
from headrace.writeback.planner import StepPlanner
from headrace.writeback.reconcile import SyncStep
from headrace.writeback.sync_journal import Conflict, JournalRecord
from headrace.writeback.writeback import SCAN_INTERVAL_S, WriteBack
from tests.faulty_origin import FaultyOrigin, PlannedFault
from tests.unit.writeback.layer_fixture import LIMIT_S, LayerFixture, crash_at

PUT_STEPS = ("persist.chosen", "persist.begun", "persist.put", "persist.shown", "persist.noted")
NAME_STEPS = ("persist.made", "persist.removing", "persist.removed", "persist.emptied")


class RecordingObserver(WriteObserver):
    """Keeps what it learns."""

    def __init__(self) -> None:
        self.changed: list[tuple[list[bytes], int]] = []
        self.persisted: list[list[bytes]] = []

    def on_changed(self, paths: list[bytes], source: int) -> None:
        self.changed.append((paths, source))

    async def on_persisted(self, paths: list[bytes], folders: set[bytes]) -> None:
        self.persisted.append(sorted(paths))


class OlderOwner(OwnerListingClient):
    """Another node, which owns all directories and has old listings of them. It lists them anew when it is told to."""

    def __init__(self, rows: list[NameRow]) -> None:
        self._rows = rows

    def owns(self, path: bytes) -> bool:
        return False

    async def listing(self, path: bytes, *, anew: bool) -> AsyncIterator[Names]:
        self._rows = [] if anew else self._rows
        yield Names(self._rows, 60.0, True)

    async def lookup(self, path: bytes, name: bytes, *, anew: bool = False) -> Names | None:
        return None


async def assert_tree(layer: LayerFixture, files: dict[bytes, bytes | None]) -> None:
    assert {path: await layer.origin_bytes(path) for path in files} == files


async def test_what_a_session_reports_is_persisted(layer: LayerFixture) -> None:
    observer = RecordingObserver()
    async with layer.running(layer.write_back(observer, delay_s=0.0)) as write:
        layer.write(b"/d/f", b"ours")
        write.changed([b"/d", b"/d/f"], 7)
        assert write.waiting(b"/") == (2, 4)
        await until(lambda: write.waiting(b"/") == (0, 0))
        await assert_tree(layer, {b"/d/f": b"ours"})
        assert observer.changed == [([b"/d", b"/d/f"], 7)]
        assert observer.persisted == [[b"/d", b"/d/f"]]
        assert (write.counts.files_persisted, write.counts.bytes_persisted) == (1, 4)


async def test_a_start_finds_what_nobody_reported(layer: LayerFixture) -> None:
    layer.write(b"/d/f", b"ours")
    hide(layer.upper, b"/gone", await layer.hold(b"/gone", b"before"))
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        await until(lambda: write.waiting(b"/") == (0, 0))
        await assert_tree(layer, {b"/d/f": b"ours", b"/gone": None})
        assert layer.names() == [b"d"]


@pytest.mark.expected_warnings("still has it after its removal")
async def test_a_removal_that_the_origin_only_pretends_is_a_failure(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(layer.upper, b"/gone", await layer.hold(b"/gone", b"before"))
    with monkeypatch.context() as patch:
        patch.setattr(layer.origin, "remove", AsyncMock())
        async with layer.running(layer.write_back(delay_s=0.0)) as write:
            await until(lambda: write.counts.failures == 2)
            assert write.counts.removed == 0
            assert write.failing(b"/") == [("/gone", "/gone: the origin still has it after its removal")]


async def test_a_removed_name_of_an_older_listing_is_no_failure(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing of another node may have begun before the removal."""
    base = await layer.hold(b"/gone", b"before")
    hide(layer.upper, b"/gone", base)
    write = layer.write_back(delay_s=0.0)
    refresh = layer.namespace.listings.refresh_after_removal
    listings = iter([False])

    async def refresh_after_removal(path: bytes) -> None:
        await refresh(path)
        if not next(listings, True):
            layer.namespace.changes.record_put(b"/gone", base)

    monkeypatch.setattr(layer.namespace.listings, "refresh_after_removal", refresh_after_removal)
    async with layer.running(write):
        await until(lambda: write.waiting(b"/") == (0, 0))
        assert (write.counts.removed, write.counts.failures) == (1, 0)
        await assert_tree(layer, {b"/gone": None})


async def test_the_older_listing_of_an_owner_brings_no_removed_name_back(tmp_path: Path) -> None:
    """The owner has not heard of the removal, as when this node is cut off. Nobody here has listed the directory."""
    memory = MemoryOrigin()
    version = memory.hold("d/gone", b"before")
    owner = OlderOwner(
        [NameRow(b"gone", int(Kind.FILE), version.size_bytes, version.mtime_ns, version.token)]
    )
    layer = LayerFixture(tmp_path, memory, shared=owner)
    layer.namespace.tree.make_directories(b"/d")
    layer.upper.at(b"/d").make_directories(0o755)
    hide(layer.upper, b"/d/gone", version)
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        await until(lambda: write.counts.removed == 1)
        directory = layer.namespace.tree.directory_at(b"/d")
        assert directory is not None
        await layer.namespace.listings.list(directory)
        assert layer.names(b"/d") == [] and [*layer.namespace.tree.index.children(directory)] == []
    layer.crash()


async def test_a_path_that_is_not_quiet_waits(layer: LayerFixture) -> None:
    async with layer.running(layer.write_back()) as write:
        layer.write(b"/f", b"ours")
        write.changed([b"/f"], 1)
        await pass_time(0.1)
        assert layer.origin.count("put") == 0
        write.persist_soon(b"/")
        await until(lambda: write.waiting(b"/") == (0, 0))
        await assert_tree(layer, {b"/f": b"ours"})


async def test_persist_returns_when_the_origin_has_everything_below(layer: LayerFixture) -> None:
    async with layer.running(layer.write_back()) as write:
        for path in (b"/d/f", b"/d/s/g", b"/other"):
            layer.write(path, path)
        await write.persist(b"/d")
        await assert_tree(layer, {b"/d/f": b"/d/f", b"/d/s/g": b"/d/s/g", b"/other": None})


@pytest.mark.expected_warnings("a change was not persisted, retrying later")
async def test_a_renamed_file_is_never_missing_at_the_origin(layer: LayerFixture) -> None:
    """Files are put before names are removed, and not removed while a put fails."""
    layer.write(b"/old", b"ours")
    async with layer.running(layer.write_back()) as write:
        await write.persist(b"/")
        rename_leaving_whiteout(layer.upper, b"/old", b"/new", await layer.origin_version(b"/old"))
        layer.origin.fail("put", PlannedFault.UNAVAILABLE, numbers=0)
        with pytest.raises(OriginUnavailableError):
            await write.persist(b"/")
        await assert_tree(layer, {b"/old": b"ours", b"/new": None})
        assert write.failing(b"/")[0][0] == "/new"
        await write.persist(b"/")
        await assert_tree(layer, {b"/old": None, b"/new": b"ours"})
        changes = [call for call in layer.origin.asked if call[0] in ("put", "remove")]
        assert changes[-2:] == [("put", "new"), ("remove", "old")]


@pytest.mark.expected_warnings("a change was not persisted, retrying later")
async def test_a_renamed_file_that_is_refused_keeps_its_old_name_at_the_origin(layer: LayerFixture) -> None:
    """The removal was tried again sooner than the put, and alone. Other files are removed meanwhile."""
    for path in (b"/old", b"/removed"):
        layer.write(path, b"ours")
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        await write.persist(b"/")
        rename_leaving_whiteout(layer.upper, b"/old", b"/new", await layer.origin_version(b"/old"))
        hide(layer.upper, b"/removed", await layer.origin_version(b"/removed"))
        layer.origin.fail("put", PlannedFault.DENIED)
        write.changed([b"/old", b"/new", b"/removed"], 1)
        before = layer.origin.count("put")
        await until(lambda: layer.origin.count("put") > before + 4)
        await assert_tree(layer, {b"/old": b"ours", b"/removed": None, b"/new": None})
        with pytest.raises(HeadraceError):
            await write.persist(b"/old")
        layer.origin.mend()
        await until(lambda: write.waiting(b"/") == (0, 0))
        await assert_tree(layer, {b"/old": None, b"/new": b"ours"})


@pytest.mark.expected_warnings("a change was not persisted, retrying later")
async def test_a_new_file_with_the_inode_number_of_a_removed_one_holds_up_no_removal(
    layer: LayerFixture,
) -> None:
    layer.write(b"/old", b"ours")
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        await write.persist(b"/")
        row = layer.journal.get(b"/old")
        assert row is not None
        status = layer.write(b"/new", b"another file")
        layer.journal.note(replace(row, inode=status.st_ino, ctime_ns=status.st_ctime_ns - 1_000_000_000))
        hide(layer.upper, b"/old", None)
        layer.origin.fail("put", PlannedFault.DENIED)
        write.changed([b"/old", b"/new"], 1)
        await until(lambda: layer.origin.count("remove"))
        await assert_tree(layer, {b"/old": None, b"/new": None})
        layer.origin.mend()
        await until(lambda: write.waiting(b"/") == (0, 0))
        await assert_tree(layer, {b"/old": None, b"/new": b"another file"})


async def test_the_removal_of_an_old_name_waits_for_the_new_one_that_is_not_due(layer: LayerFixture) -> None:
    """Somebody waits for the directory of the old name alone."""
    layer.write(b"/d/old", b"ours")
    async with layer.running(layer.write_back()) as write:
        await write.persist(b"/")
        layer.upper.at(b"/e").make_directories(0o755)
        rename_leaving_whiteout(layer.upper, b"/d/old", b"/e/new", await layer.origin_version(b"/d/old"))
        write.changed([b"/d/old", b"/e/new"], 1)
        await write.persist(b"/d")
        changes = [call for call in layer.origin.asked if call[0] in ("put", "remove")]
        assert changes[-2:] == [("put", "e/new"), ("remove", "d/old")]
        await assert_tree(layer, {b"/d/old": None, b"/e/new": b"ours"})


@pytest.mark.expected_warnings("a change was not persisted, retrying later")
async def test_one_file_that_fails_holds_up_no_other(layer: LayerFixture) -> None:
    for number in range(5):
        layer.write(b"/%d" % number, b"ours")
    layer.origin.fail("put", PlannedFault.DENIED, numbers=2)
    async with layer.running(layer.write_back()) as write:
        write.persist_soon(b"/")
        await until(lambda: write.waiting(b"/")[0] == 1 and write.failing(b"/"))
        assert layer.origin.count("put") == 5 and write.counts.failures == 1


@pytest.mark.expected_warnings("a change can't be persisted")
async def test_a_defect_at_one_path_holds_up_no_other(
    layer: LayerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """It was raised out of the round: later steps were not taken, and it was logged every second."""
    layer.write(b"/d/bad", b"ours")
    for number in range(5):
        layer.write(b"/%d" % number, b"ours")
    hide(layer.upper, b"/removed", await layer.hold(b"/removed", b"before"))
    layer.origin.fail("put", ValueError("a defect"), numbers=range(8))
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        write.persist_soon(b"/")
        await until(lambda: write.waiting(b"/") == (0, 0))
        await assert_tree(layer, {b"/d/bad": b"ours", b"/3": b"ours", b"/removed": None})
    lines = [record.message for record in caplog.records if "can't be persisted" in record.message]
    assert len(lines) == len(set(lines)) == 6, "one for each path, however often it is tried"
    assert write.counts.failures == 8


@pytest.mark.expected_warnings("a change can't be persisted")
async def test_a_defect_in_the_plan_of_one_path_holds_up_no_other(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer.write(b"/bad", b"ours")
    layer.write(b"/good", b"ours")
    async with layer.running(layer.write_back()) as write:
        with monkeypatch.context() as patch:
            original = StepPlanner.step

            def step(planner: StepPlanner, path: bytes, status: os.stat_result) -> SyncStep | None:
                if path == b"/bad":
                    raise ValueError("a defect")
                return original(planner, path, status)

            patch.setattr(StepPlanner, "step", step)
            with pytest.raises(HeadraceError, match="a defect"):
                await write.persist(b"/")
            await assert_tree(layer, {b"/good": b"ours", b"/bad": None})
        await write.persist(b"/")
        await assert_tree(layer, {b"/bad": b"ours"})


def spoil_looks(patch: pytest.MonkeyPatch) -> None:
    """Let each look at an entry called `bad` meet a defect."""
    original = StepPlanner.step_by_row

    def step_by_row(
        planner: StepPlanner, path: bytes, status: os.stat_result, row: JournalRecord | None
    ) -> SyncStep | None:
        if path.endswith(b"/bad"):
            raise ValueError("a defect")
        return original(planner, path, status, row)

    patch.setattr(StepPlanner, "step_by_row", step_by_row)


@pytest.mark.expected_warnings("a change can't be persisted")
async def test_a_defect_at_one_path_ends_no_scan(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node did not start, and no file that an earlier run had left was persisted."""
    paths = (b"/bad", b"/d/bad", b"/d/good", b"/z")
    for path in paths:
        layer.write(path, b"ours")
    write = layer.write_back(delay_s=0.0)
    with monkeypatch.context() as patch:
        spoil_looks(patch)
        async with layer.running(write):
            await until(lambda: write.waiting(b"/")[0] == 2)
            await assert_tree(layer, {b"/d/good": b"ours", b"/z": b"ours", b"/bad": None, b"/d/bad": None})
            await pass_time(3 * SCAN_INTERVAL_S)
            assert sorted(path for path, _ in write.failing(b"/")) == ["/bad", "/d/bad"]
            with pytest.raises(HeadraceError, match="a defect"):
                await write.persist(b"/d")
            patch.undo()
            await until(lambda: write.waiting(b"/") == (0, 0))
            await assert_tree(layer, dict.fromkeys(paths, b"ours"))
    lines = [record.message for record in caplog.records if "can't be persisted" in record.message]
    assert len(lines) == len(set(lines)) == 2, "one for each path, however often it is looked at"


@pytest.mark.expected_warnings("a change can't be persisted")
async def test_a_defect_below_a_moved_directory_holds_up_nothing_else_in_it(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session reports the directory alone."""
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        with monkeypatch.context() as patch:
            for path in (b"/d/bad", b"/d/good"):
                layer.write(path, b"ours")
            spoil_looks(patch)
            write.changed([b"/d"], 1)
            await until(lambda: write.waiting(b"/")[0] == 1 and write.failing(b"/") != [])
            assert [path for path, _ in write.failing(b"/")] == ["/d/bad"]
            await assert_tree(layer, {b"/d/good": b"ours", b"/d/bad": None})
        await until(lambda: write.waiting(b"/") == (0, 0))
        await assert_tree(layer, {b"/d/bad": b"ours"})


@pytest.mark.parametrize("fault", [PlannedFault.UNAVAILABLE, PlannedFault.HANG])
@pytest.mark.expected_warnings("headrace.writeback.executor")
async def test_a_removed_directory_of_an_origin_that_is_away_holds_up_no_other_origin(
    layer: LayerFixture, fault: PlannedFault
) -> None:
    """A file has taken the place of the directory. What others wrote, and removed, is persisted meanwhile."""
    away = MemoryOrigin("away")
    origin = FaultyOrigin(away)
    layer.namespace.mount_points.attach(Mount("/b", away.url, origin, 3600.0))
    version = away.hold("s/f", b"before")
    await layer.listed(b"/b/s/f")
    layer.upper.at(b"/b/s").make_directories(0o755)
    hide(layer.upper, b"/b/s/f", version)
    defer_removal(layer.upper, b"/b/s")
    layer.upper.at(b"/b/s").unlink()  # the whiteout in its place, which the new file replaces
    origin.fail("remove", fault)
    hide(layer.upper, b"/removed", await layer.hold(b"/removed", b"before"))
    began_s = monotonic_s()
    async with layer.running(layer.write_back()) as write:
        await until(lambda: origin.count("remove"))
        layer.write(b"/d/f", b"ours")
        await write.persist(b"/d")
        await assert_tree(layer, {b"/d/f": b"ours", b"/removed": b"before"})
        write.persist_soon(b"/")
        await until(lambda: write.waiting(b"/") == (0, 0))
        await assert_tree(layer, {b"/removed": None})
        assert monotonic_s() - began_s < LIMIT_S / 2
        layer.write(b"/b/s", b"a file")
        with pytest.raises(HeadraceError):
            await write.persist(b"/b")
        assert len(pending_removals(layer.upper)) == 1
        origin.mend()
        await write.persist(b"/b")
        assert pending_removals(layer.upper) == []
        assert {key: await at(away, key) for key in ("s", "s/f")} == {"s": b"a file", "s/f": None}


async def at(origin: MemoryOrigin, key: str) -> bytes | None:
    try:
        info = await origin.head(key, deadline=Deadline.after(LIMIT_S))
    except PathNotFoundError:
        return None
    size_bytes = info.version.size_bytes
    arrived = await origin.read_range(
        key, 0, size_bytes, version=info.version, deadline=Deadline.after(LIMIT_S)
    )
    return bytes(arrived.body)


async def test_a_removed_directory_of_an_earlier_run_is_removed(layer: LayerFixture) -> None:
    version = await layer.hold(b"/d/s/f", b"before")
    layer.upper.at(b"/d/s").make_directories(0o755)
    hide(layer.upper, b"/d/s/f", version)
    defer_removal(layer.upper, b"/d/s")
    layer.origin.fail("remove", PlannedFault.UNAVAILABLE, numbers=range(2))
    async with layer.running(layer.write_back()):
        await until(lambda: not pending_removals(layer.upper))
        await assert_tree(layer, {b"/d/s/f": None})


@pytest.mark.parametrize(
    ("path", "is_near"),
    [(b"/a/b", True), (b"/a/b/c", True), (b"/a", True), (b"/", True), (b"/a/bc", False), (b"/a/c", False)],
)
def test_a_removed_directory_touches_what_is_at_above_and_below_it(path: bytes, *, is_near: bool) -> None:
    assert near([b"/a/b"], [path]) == near([b"/a/b"], [b"/z", path]) == ([b"/a/b"] if is_near else [])


async def test_a_file_that_vanishes_during_its_put_leaves_the_loop_to_others(layer: LayerFixture) -> None:
    layer.origin.fail("put", PlannedFault.HANG, numbers=0)
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        layer.write(b"/f", b"ours")
        persisting = asyncio.create_task(write.persist(b"/f"))
        await until(lambda: layer.origin.hanging == 1)
        layer.upper.at(b"/f").unlink()
        write.changed([b"/f"], 1)
        await pass_time(LIMIT_S / 2)
        assert not persisting.done() and layer.origin.hanging == 1
        persisting.cancel()
        await until(lambda: write.waiting(b"/") == (0, 0))
        await assert_tree(layer, {b"/f": None})


@pytest.mark.expected_warnings("another writer changed a file at the origin")
async def test_persist_waits_for_the_copy_of_a_conflict_too(layer: LayerFixture) -> None:
    async with layer.running(layer.write_back()) as write:
        layer.write(b"/f", b"ours")
        layer.memory.hold("f", b"theirs")
        await write.persist(b"/")
        (conflict,) = layer.kept()
        await assert_tree(layer, {b"/f": b"theirs", conflict.kept: b"ours"})
        assert write.status()["conflicts"]
        write.forget_conflicts()
        assert not write.status()["conflicts"]


async def test_a_write_is_secure_in_mode_through_when_the_origin_has_it(tmp_path: Path) -> None:
    layer = LayerFixture(tmp_path, modes="through,/back=back,/local=local")
    async with layer.running(layer.write_back()) as write:
        for path in (b"/f", b"/back/f", b"/local/f"):
            layer.write(path, b"ours")
        await write.secure(b"/f")
        await assert_tree(layer, {b"/f": b"ours", b"/back/f": None})
        await write.secure(b"/back/f")
        await assert_tree(layer, {b"/back/f": None})
        await write.persist(b"/")
        await assert_tree(layer, {b"/back/f": b"ours", b"/local/f": None})
    layer.crash()


async def test_a_layer_above_its_share_is_emptied_into_the_cache(layer: LayerFixture) -> None:
    layer.write(b"/d/f", b"ours")
    async with layer.running(layer.write_back(layer_bytes_max=0)) as write:
        await write.persist(b"/")
        await write.rescan()
        await until(lambda: layer.upper.lookup(b"/d/f") is None)
        entry = layer.namespace.tree.entry_at(b"/d/f")
        assert entry is not None and layer.store.index.cached(entry.id) is not None
        await assert_tree(layer, {b"/d/f": b"ours"})


async def test_the_clean_file_that_others_replaced_is_dropped_by_a_round(layer: LayerFixture) -> None:
    async with layer.running(layer.write_back()) as write:
        layer.write(b"/d/f", b"ours")
        await write.persist(b"/")
        layer.memory.hold("d/f", b"theirs")
        await layer.listed(b"/d/f")
        write.names_changed([b"/d/f"])
        await until(lambda: layer.upper.lookup(b"/d/f") is None)


async def test_a_file_that_others_replaced_while_it_was_open_is_dropped_soon_after(
    layer: LayerFixture,
) -> None:
    """Nothing tells of a close for reading: the next scan came half a minute later, and readers saw the old bytes."""
    async with layer.running(layer.write_back()) as write:
        layer.write(b"/d/f", b"ours")
        await write.persist(b"/")
        layer.memory.hold("d/f", b"theirs")
        fd = layer.upper.at(b"/d/f").open(os.O_RDONLY)
        await layer.listed(b"/d/f")
        asked = layer.origin.count("head")
        write.names_changed([b"/d/f"])
        await pass_time(4.0)
        assert layer.content(b"/d/f") == b"ours"
        assert layer.origin.count("head") - asked <= 4, "the pauses double"
        os.close(fd)
        closed_s = monotonic_s()
        await until(lambda: layer.upper.lookup(b"/d/f") is None)
        assert monotonic_s() - closed_s < 5.0


@pytest.mark.expected_warnings("a change can't be persisted")
async def test_a_round_that_breaks_is_followed_by_another(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        with monkeypatch.context() as patch:
            crash_at(patch, "persist.put")
            layer.write(b"/f", b"ours")
            write.changed([b"/f"], 1)
            await until(lambda: layer.origin.count("put") == 1)
            await asyncio.sleep(0)
        await until(lambda: write.waiting(b"/") == (0, 0))
        await assert_tree(layer, {b"/f": b"ours"})
        assert layer.kept() == []


@pytest.mark.expected_warnings("a change can't be persisted", "a removed directory is still")
@pytest.mark.parametrize("step", [*PUT_STEPS, *NAME_STEPS])
async def test_the_next_round_recovers_from_a_crash_at_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A file is new, one replaces the origin's, one was removed, and a directory was; then the process ends."""
    layer = LayerFixture(tmp_path)
    old = {name: await layer.hold(name, b"before") for name in (b"/replaced", b"/removed", b"/away/f")}
    layer.upper.at(b"/away").make_directories(0o755)
    hide(layer.upper, b"/away/f", old[b"/away/f"])
    layer.upper.mark_removed(b"/away")
    hide(layer.upper, b"/removed", old[b"/removed"])
    layer.write_over(b"/replaced", b"ours", old[b"/replaced"])
    layer.write(b"/d/new", b"new")
    with monkeypatch.context() as patch:
        crash_at(patch, step)
        write = layer.write_back()
        with pytest.raises(HeadraceError, match="CrashError"):
            for _ in range(3):  # the removed directory is due only when nothing is in it
                await write.persist(b"/")
    again = await layer.reopened()
    async with again.running(again.write_back(delay_s=0.0)) as write:
        await write.persist(b"/")
        await until(lambda: write.waiting(b"/") == (0, 0))
        await assert_tree(
            again, {b"/replaced": b"ours", b"/d/new": b"new", b"/removed": None, b"/away/f": None}
        )
        assert again.kept() == []
        assert again.names() == [b"d", b"replaced"]
    again.crash()


async def test_a_directory_that_was_removed_leaves_nothing_dirty_until_the_delay(layer: LayerFixture) -> None:
    """The node itself notes it when it drops its mark. Other nodes took it for unpersisted as long as that lasted."""
    version = await layer.hold(b"/away/f", b"theirs")
    layer.upper.at(b"/away").make_directories(0o755)
    hide(layer.upper, b"/away/f", version)
    layer.upper.mark_removed(b"/away")
    async with layer.running(layer.write_back(delay_s=600.0)) as write:
        write.changed([b"/away"], 1)
        await write.persist(b"/")
        await pass_time(5.0)
        assert write.waiting(b"/") == (0, 0)
        await assert_tree(layer, {b"/away/f": None})
        assert layer.names() == []


class SlowObserver(RecordingObserver):
    """Waits for a slow peer before others learn of a round. is_cut_off: whether a wait was cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.answered = asyncio.Event(), asyncio.Event()
        self.is_cut_off = False

    async def on_persisted(self, paths: list[bytes], folders: set[bytes]) -> None:
        self.begun.set()
        try:
            await self.answered.wait()
        except asyncio.CancelledError:
            self.is_cut_off = True
            raise
        await super().on_persisted(paths, folders)


async def persist_and_kill(
    layer: LayerFixture, write: WriteBack, observer: SlowObserver, tasks: OwnedTasks
) -> None:
    """Persist a file, and cancel the caller while others are notified of it."""
    layer.write(b"/f", b"ours")
    write.changed([b"/f"], 7)
    call = tasks.start(write.persist(b"/f"))
    await observer.begun.wait()
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()


async def test_others_learn_of_a_round_whose_caller_was_killed(layer: LayerFixture) -> None:
    observer = SlowObserver()
    async with layer.running(layer.write_back(observer)) as write, OwnedTasks() as tasks:
        await persist_and_kill(layer, write, observer, tasks)
        observer.answered.set()
        await until(lambda: observer.persisted == [[b"/f"]])


async def test_a_stop_ends_the_notification_of_a_killed_caller(layer: LayerFixture) -> None:
    observer = SlowObserver()
    async with layer.running(layer.write_back(observer)) as write, OwnedTasks() as tasks:
        await persist_and_kill(layer, write, observer, tasks)
    assert observer.is_cut_off


async def test_the_status_names_conflicts_that_are_not_utf8(layer: LayerFixture) -> None:
    layer.journal.add_conflict(Conflict(b"/d/a\xff", b"/d/a%FF", "the origin takes no such name", 1.0))
    write = layer.write_back()
    row = {"path": r"/d/a\xff", "kept": "/d/a%FF", "why": "the origin takes no such name"}
    status = msgspec.msgpack.decode(msgspec.msgpack.encode(write.status()))
    assert status["conflicts"] == [row]
