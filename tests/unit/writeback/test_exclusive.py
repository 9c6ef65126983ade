"""An exclusive directory: programs change it without a session, and no marker may stand there for a name."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import signal
import stat
from pathlib import Path

import pytest

from headrace.base.beneath import SafePath
from headrace.base.errors import ClusterUnavailableError, StoreError, UsageError
from headrace.config.load import load
from headrace.node.writing import CacheOfLayer, WriteBackSettings, build_write_back
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until
from headrace.writeback.exclusive_claims import ExclusiveClaims
from headrace.writeback.planner import PATHS_PER_TURN, in_turns
from tests.faulty_origin import PlannedFault
from tests.unit.writeback.layer_fixture import LIMIT_S, LayerFixture

MODES = "off,/out=back,exclusive"


def layer_of(folder: Path) -> LayerFixture:
    return LayerFixture(folder, modes=MODES)


async def assert_origin(layer: LayerFixture, files: dict[bytes, bytes | None]) -> None:
    assert {path: await layer.origin_bytes(path) for path in files} == files


async def test_what_vanished_is_removed_at_the_origin_without_a_marker(tmp_path: Path) -> None:
    layer = layer_of(tmp_path)
    async with layer.running(layer.write_back()) as write:
        for path in (b"/out/d/f", b"/out/d/s/g", b"/out/h"):
            layer.write(path, path)
        await write.persist(b"/")
        layer.upper.at(b"/out/d").rename(layer.upper.at(b"/out/e"))
        layer.upper.at(b"/out/h").unlink()
        await write.persist(b"/out")
        await assert_origin(
            layer, {b"/out/d/f": None, b"/out/d/s/g": None, b"/out/h": None, b"/out/e/f": b"/out/d/f"}
        )
        assert layer.names(b"/out") == [b"e"]
    layer.crash()


@pytest.mark.expected_warnings("a change was not persisted, retrying later")
async def test_a_file_that_vanishes_during_its_put_is_removed_at_the_origin(tmp_path: Path) -> None:
    layer = layer_of(tmp_path)
    layer.origin.fail("put", PlannedFault.LOST, numbers=0)
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        layer.write(b"/out/f", b"ours")
        persisting = asyncio.create_task(write.persist(b"/out"))
        await until(lambda: layer.origin.count("put") == 1)
        layer.upper.at(b"/out/f").unlink()
        await asyncio.gather(persisting, return_exceptions=True)
        write.changed([b"/out/f"], 0)
        await write.persist(b"/out")
        await assert_origin(layer, {b"/out/f": None})
        assert layer.names(b"/out") == []
    layer.crash()


async def test_directories_that_an_upload_made_are_removed_like_it(tmp_path: Path) -> None:
    """Their own turn did not come before programs removed them, and an origin of files has them."""
    layer = layer_of(tmp_path)
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        layer.write(b"/out/a/b/f", b"ours")
        write.changed([b"/out/a/b/f"], 0)
        await until(lambda: write.waiting(b"/") == (0, 0))
        await assert_origin(layer, {b"/out/a/b/f": b"ours"})
        requests = layer.origin.count("directory")
        shutil.rmtree(tmp_path / "volume/upper/tree/out/a")
        await write.rescan()
        await write.persist(b"/out")
        await assert_origin(layer, {b"/out/a/b/f": None})
        assert layer.origin.count("directory") == requests + 2
        rows = [layer.journal.get(path) for path in (b"/out/a", b"/out/a/b")]
        assert [row is not None and row.is_absent for row in rows] == [True, True]
    layer.crash()


async def test_a_file_that_is_open_for_writing_waits(tmp_path: Path) -> None:
    layer = layer_of(tmp_path)
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        layer.write(b"/out/f", b"half")
        layer.write(b"/out/g", b"whole")
        with open(tmp_path / "volume/upper/tree/out/f", "ab") as file:
            write.changed([b"/out/f", b"/out/g"], 0)
            await until(lambda: write.waiting(b"/")[0] == 1)
            await pass_time(5.0)
            assert layer.origin.count("put") == 1
            file.write(b" and half")
        await until(lambda: write.waiting(b"/") == (0, 0))
        await assert_origin(layer, {b"/out/f": b"half and half", b"/out/g": b"whole"})
    layer.crash()


async def test_removals_go_on_while_a_file_is_open_for_writing(tmp_path: Path) -> None:
    layer = layer_of(tmp_path)
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        layer.write(b"/out/f", b"half")
        layer.write(b"/out/g", b"gone")
        await write.persist(b"/out")
        with open(tmp_path / "volume/upper/tree/out/f", "ab") as file:
            file.write(b"more")
            file.flush()
            layer.upper.at(b"/out/g").unlink()
            write.changed([b"/out/f", b"/out/g"], 0)
            await until(lambda: write.waiting(b"/")[0] == 1)
            await assert_origin(layer, {b"/out/g": None, b"/out/f": b"half"})
    layer.crash()


@pytest.mark.expected_warnings("programs fill the disk by exclusive directories")
async def test_clean_files_stay_in_the_directory(tmp_path: Path) -> None:
    layer = layer_of(tmp_path)
    async with layer.running(layer.write_back(layer_bytes_max=0)) as write:
        layer.write(b"/out/f", b"ours")
        await write.persist(b"/out")
        await write.rescan()
        entry = layer.namespace.tree.entry_at(b"/out/f")
        assert entry is not None and not await write.demote(b"/out/f", entry)
        await pass_time(60.0)
        layer.memory.hold("out/f", b"theirs")
        await layer.listed(b"/out/f")
        write.names_changed([b"/out/f"])
        await pass_time(60.0)
        assert layer.content(b"/out/f") == b"ours"
    layer.crash()


async def test_a_name_that_the_origin_alone_has_is_refused(tmp_path: Path) -> None:
    layer = layer_of(tmp_path)
    claims = ExclusiveClaims(layer.namespace, layer.layer, limit_s=LIMIT_S)
    await layer.hold(b"/out/d/theirs", b"theirs")
    with pytest.raises(UsageError, match="/out/d among them"):
        await claims.claim(again=False)
    layer.memory.delete("out/d/theirs")
    await claims.claim(again=False)
    await claims.claim(again=True)
    layer.crash()


@pytest.mark.expected_warnings("an exclusive directory is not compared with its origin")
async def test_a_claimed_directory_does_not_wait_for_its_origin(tmp_path: Path) -> None:
    layer = layer_of(tmp_path)
    claims = ExclusiveClaims(layer.namespace, layer.layer, limit_s=LIMIT_S)
    await claims.claim(again=False)
    layer.origin.fail("list", PlannedFault.UNAVAILABLE)
    await claims.claim(again=False)
    layer.crash()


@pytest.mark.expected_warnings("the record of exclusive directories is damaged")
@pytest.mark.parametrize("record", [b"", b"{", b'["/out"]', b'{"/out": "1"}', b"\xff\xfe", b"[" * 100_000])
async def test_a_damaged_record_of_claims_claims_nothing(tmp_path: Path, record: bytes) -> None:
    layer = layer_of(tmp_path)
    (tmp_path / "volume/upper/exclusive").write_bytes(record)
    await layer.hold(b"/out/theirs", b"theirs")
    with pytest.raises(UsageError, match="/out/theirs among them"):
        await ExclusiveClaims(layer.namespace, layer.layer, limit_s=LIMIT_S).claim(again=True)
    layer.crash()


async def test_a_record_of_claims_that_a_kill_left_unfinished_is_removed(tmp_path: Path) -> None:
    layer = layer_of(tmp_path)
    unfinished = tmp_path / "volume/upper/exclusive.new"
    claims = ExclusiveClaims(layer.namespace, layer.layer, limit_s=LIMIT_S)
    await claims.claim(again=False)
    unfinished.write_bytes(b'{"/o')
    await claims.claim(again=True)
    assert not unfinished.exists()
    layer.crash()


async def test_a_directory_that_was_made_again_is_no_removal_of_its_files(tmp_path: Path) -> None:
    """Nothing but the journal is left, as when an administrator removed the tree of the layer."""
    layer = layer_of(tmp_path)
    async with layer.running(layer.write_back()) as write:
        await ExclusiveClaims(layer.namespace, layer.layer, limit_s=LIMIT_S).claim(again=False)
        layer.write(b"/out/f", b"ours")
        await write.persist(b"/out")
    layer.crash()
    again = LayerFixture(tmp_path, layer.memory, modes=MODES)
    again.upper.at(b"/out").rename(again.upper.at(b"/kept"))
    again.upper.at(b"/out").mkdir(0o755)
    with pytest.raises(UsageError, match="/out/f among them"):
        await ExclusiveClaims(again.namespace, again.layer, limit_s=LIMIT_S).claim(again=True)
    again.crash()


async def test_only_root_has_exclusive_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings themselves are read by all users' commands."""
    layer = layer_of(tmp_path)
    claims = ExclusiveClaims(layer.namespace, layer.layer, limit_s=LIMIT_S)
    with monkeypatch.context() as patch, pytest.raises(UsageError, match="only root can mount it"):
        patch.setattr("os.geteuid", lambda: 1000)
        assert load({"write": MODES}).config.write == MODES
        await claims.claim(again=False)
    with pytest.raises(UsageError, match="only root can mount"):
        load({"write": MODES, "user": "nobody"})
    layer.crash()


async def test_a_device_of_a_program_is_no_removal_and_stays(tmp_path: Path) -> None:
    """Any user may make a device 0:0, as overlayfs does in its layers. Only in other modes it is a whiteout."""
    layer = layer_of(tmp_path)
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        layer.write(b"/out/f", b"ours")
        await write.persist(b"/out")
        await layer.hold(b"/out/theirs", b"theirs")
        layer.upper.at(b"/out/f").unlink()
        for path in (b"/out/f", b"/out/theirs", b"/out/new"):
            layer.upper.at(path).mknod(stat.S_IFCHR | 0o600, 0)
        write.changed([b"/out/f", b"/out/theirs", b"/out/new"], 0)
        await write.persist(b"/out")
        await write.rescan()
        assert write.waiting(b"/") == (0, 0)
        await assert_origin(layer, {b"/out/f": None, b"/out/theirs": b"theirs", b"/out/new": None})
        assert sorted(layer.names(b"/out")) == [b"f", b"new", b"theirs"]
    layer.crash()


async def test_a_file_that_a_program_leases_stays_dirty(tmp_path: Path) -> None:
    layer = layer_of(tmp_path)
    handler = signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel asks for the lease
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        layer.write(b"/out/f", b"ours")
        with open(tmp_path / "volume/upper/tree/out/f", "rb") as file:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            persisting = asyncio.create_task(write.persist(b"/out"))
            await pass_time(3.0)
            assert not persisting.done() and layer.origin.count("put") == 0
        await persisting
        await assert_origin(layer, {b"/out/f": b"ours"})
    signal.signal(signal.SIGIO, handler)
    layer.crash()


@pytest.mark.expected_warnings("a change was not persisted, retrying later", "can't be read, retrying")
async def test_a_file_that_cannot_be_opened_fails_its_persist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = layer_of(tmp_path)
    async with layer.running(layer.write_back()) as write:
        layer.write(b"/out/f", b"ours")
        with monkeypatch.context() as patch:
            patch.setattr(SafePath, "open", _no_descriptor_is_left)
            with pytest.raises(StoreError, match="Too many open files"):
                await write.persist(b"/out")
        await write.persist(b"/out")
        await assert_origin(layer, {b"/out/f": b"ours"})
    layer.crash()


def _no_descriptor_is_left(path: SafePath, flags: int, mode: int = 0) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path.path)


async def test_a_layer_that_an_administrator_removes_is_no_removal_of_its_files(tmp_path: Path) -> None:
    layer = layer_of(tmp_path)
    async with layer.running(layer.write_back(delay_s=0.0)) as write:
        layer.write(b"/out/d/f", b"ours")
        await write.persist(b"/out")
        layer.upper.at(b"/out").remove_tree()
        write.changed([b"/out/d/f", b"/out/d"], 0)
        await write.rescan()
        await write.programs.rescan_below(b"/out/d")
        await pass_time(60.0)
        assert write.waiting(b"/") == (0, 0)
        await assert_origin(layer, {b"/out/d/f": b"ours"})
    layer.crash()


async def test_other_tasks_run_while_many_paths_are_compared() -> None:
    """A program that removes a directory of a million files must not stop the node's answers."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    paths = [path async for path in in_turns(range(5 * PATHS_PER_TURN))]
    counting.cancel()
    assert paths == list(range(5 * PATHS_PER_TURN)) and turns >= 5


async def test_with_another_token_the_directory_is_compared_with_the_origin(tmp_path: Path) -> None:
    """Another node may have had it, and may have changed a file that this node wrote."""
    layer = layer_of(tmp_path)
    claims = ExclusiveClaims(layer.namespace, layer.layer, limit_s=LIMIT_S)
    await claims.claim(again=False, tokens={b"/out": "a1"})
    assert claims.tokens() == {b"/out": "a1"}
    async with layer.running(layer.write_back()) as write:
        layer.write(b"/out/d/f", b"ours")
        await write.persist(b"/out")
        await claims.claim(again=True, tokens={b"/out": "b2"})
        layer.memory.hold("out/d/f", b"theirs")
        await claims.claim(again=False, tokens={b"/out": "b2"})
        for tokens in ({b"/out": "c3"}, {}):
            with pytest.raises(UsageError, match="/out/d/f among them"):
                await claims.claim(again=True, tokens=tokens)
        assert claims.tokens() == {b"/out": "b2"}
        assert layer.content(b"/out/d/f") == b"ours"
    layer.crash()


@pytest.mark.expected_warnings("an exclusive directory is not compared with its origin")
async def test_a_record_of_an_earlier_release_is_a_claim_without_a_token(tmp_path: Path) -> None:
    layer = layer_of(tmp_path)
    claims = ExclusiveClaims(layer.namespace, layer.layer, limit_s=LIMIT_S)
    await claims.claim(again=False)
    inode = layer.upper.at(b"/out").lstat().st_ino
    (tmp_path / "volume/upper/exclusive").write_text(f'{{"/out": {inode}}}')
    layer.origin.fail("list", PlannedFault.UNAVAILABLE)
    await claims.claim(again=False)  # a directory without a claim would not start without its origin
    assert claims.tokens() == {}
    layer.crash()


async def test_where_the_node_may_not_persist_now_a_change_waits(tmp_path: Path) -> None:
    layer, trouble = layer_of(tmp_path), ["another node has it"]
    settings = WriteBackSettings(delay_s=0.0, timeout_s=LIMIT_S, layer_bytes_max=1 << 30)
    write = build_write_back(
        *(layer.state, settings, ()),
        cache=CacheOfLayer(layer.store),
        trouble_at=lambda path: trouble[0] if path.startswith(b"/out/") else "",
    )
    async with layer.running(write):
        layer.write(b"/out/f", b"ours")
        write.changed([b"/out/f"], 0)
        await pass_time(10.0)
        assert layer.origin.count("put") == 0
        assert write.failing(b"/") == [("/out/f", "another node has it")] and write.counts.failures == 0
        with pytest.raises(ClusterUnavailableError, match="another node has it"):
            await write.persist(b"/out")
        trouble[0] = ""
        await pass_time(2.0)
        assert write.waiting(b"/") == (0, 0)
        await assert_origin(layer, {b"/out/f": b"ours"})
    layer.crash()


@pytest.mark.expected_warnings("programs fill the disk by exclusive directories")
async def test_a_warning_comes_before_the_disk_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layer = layer_of(tmp_path)
    layer.origin.fail("put", PlannedFault.UNAVAILABLE, numbers=range(3))
    async with layer.running(layer.write_back(delay_s=1.0, layer_bytes_max=1 << 20)) as write:
        layer.write(b"/out/small", b"x" * 1000)
        write.programs.changed([b"/out/small"])
        await pass_time(0.5)
        assert write.status()["exclusive_fills_disk"] is False
        layer.write(b"/out/large", b"x" * (600 << 10))
        write.programs.changed([b"/out/large"])
        await pass_time(0.5)
        assert write.status()["exclusive_fills_disk"] is True
        assert caplog.text.count("programs fill the disk") == 1
    layer.crash()


async def test_a_change_that_was_persisted_before_its_report_is_not_dirty(tmp_path: Path) -> None:
    layer = layer_of(tmp_path)
    async with layer.running(layer.write_back(delay_s=600.0)) as write:
        for path in (b"/out/f", b"/out/g"):
            layer.write(path, b"ours")
        await write.persist(b"/out")
        write.programs.changed([b"/out/f", b"/out", b"/out/never-there"])
        assert write.waiting(b"/") == (0, 0)
        layer.upper.at(b"/out/g").unlink()
        write.programs.changed([b"/out/f", b"/out/g"])
        assert write.waiting(b"/") == (1, 0)
    layer.crash()
