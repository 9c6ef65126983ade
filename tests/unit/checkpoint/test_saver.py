"""Saving in the background: when the trainer waits, what is written again, and what becomes of errors."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import (
    CheckpointFailedError,
    CheckpointNoSpaceError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    DeadlineExceededError,
    UsageError,
)
from headrace.checkpoint import (
    PosixStorage,
    Retention,
    SaveOptions,
    Saver,
    load,
    pin,
    save,
    steps,
    unpin,
    verify,
)
from headrace.checkpoint import folder as checkpoint_folder
from headrace.checkpoint.commit import Attempt
from headrace.checkpoint.memory import page_aligned
from headrace.checkpoint.pack import PackWriter
from headrace.checkpoint.prune import prune
from headrace.checkpoint.stage import Slot
from headrace.checkpoint.storage import SaveClaim
from tests.unit.checkpoint.faulty_place import FaultyPlace, GatedPlace
from tests.unit.checkpoint.states import same, state_of

KIB = 1024
WAIT_S = 60.0
SMALL = SaveOptions(chunk_bytes=4 * KIB, slot_bytes=16 * KIB, budget_bytes=256 * KIB)


def noise(size: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def packs(where: Path) -> dict[str, int]:
    return {name: os.path.getsize(where / "packs" / name) for name in os.listdir(where / "packs")}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[GatedPlace]:
    """Its gate is opened in the end, also for savers of a test that failed."""
    gated_place = GatedPlace(str(tmp_path))
    yield gated_place
    gated_place.open_gate()


def test_what_is_saved_is_what_was_there_at_the_call(tmp_path: Path, place: GatedPlace) -> None:
    state = {"w": noise(100 * KIB)}
    before = {"w": state["w"].copy()}
    saver = Saver(place, options=SMALL)
    saving = saver.save(state, 1)
    state["w"][:] = 0  # the next step of training
    with pytest.raises(DeadlineExceededError):
        saving.wait(timeout_s=0)
    assert steps(PosixStorage(str(tmp_path))) == []
    place.open_gate()
    saver.close()
    assert saving.done
    assert same(load(str(tmp_path)), before)


def test_a_second_save_waits_only_when_the_budget_is_used_up(tmp_path: Path, place: GatedPlace) -> None:
    saver = Saver(place, options=SMALL)  # 256 KiB: two states and a bit
    saver.save({"w": noise(100 * KIB, 1)}, 1)
    saver.save({"w": noise(100 * KIB, 2)}, 2)  # returns though the first one can't be written
    third_done = threading.Event()

    def third() -> None:
        saver.save({"w": noise(100 * KIB, 3)}, 3)
        third_done.set()

    thread = threading.Thread(target=third)
    thread.start()
    assert place.waiting.wait(60)
    assert not third_done.wait(0.2)  # can only pass by: it waits for the gate
    place.open_gate()
    thread.join()
    saver.close()
    for step in (1, 2, 3):
        assert same(load(str(tmp_path), step), {"w": noise(100 * KIB, step)})


@pytest.mark.parametrize("compress", ["never", "always", "auto"])
def test_a_state_larger_than_the_budget_passes_through(tmp_path: Path, compress: Any) -> None:
    options = SaveOptions(chunk_bytes=16 * KIB, slot_bytes=32 * KIB, budget_bytes=64 * KIB, compress=compress)
    state = {"a": noise(300 * KIB + 17), "b": [noise(5000), noise(300), noise(100), np.arange(70_000)]}
    with Saver(str(tmp_path), options=options) as saver:
        saver.save(state, 1)
        state["a"][:4096] = 1
        assert saver.save(state, 2).wait().written_bytes == 16 * KIB
    assert same(load(str(tmp_path)), state)
    if compress == "always":
        assert sum(packs(tmp_path).values()) < 500 * KIB  # the numbers are next to nothing


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    state = {f"w{n}": noise(64 * KIB, n) for n in range(10)}
    with Saver(str(tmp_path), options=SMALL) as saver:
        first = saver.save(state, 1).wait()
        state["w3"] = noise(64 * KIB, 99)
        second = saver.save(state, 2).wait()
    assert first.full and first.written_bytes == 640 * KIB
    assert not second.full and second.written_bytes == 64 * KIB
    assert same(load(str(tmp_path), 2), state)
    with Saver(str(tmp_path), options=SMALL) as resumed:  # another process would do the same
        third = resumed.save(state, 3).wait()
        assert third.written_bytes == 0
        assert resumed.save(state, 4, full=True).wait().written_bytes == 640 * KIB
    assert same(load(str(tmp_path), 3), state)


def test_full_again_when_much_changed_or_the_chain_is_long(tmp_path: Path) -> None:
    options = SaveOptions(chunk_bytes=4 * KIB, slot_bytes=16 * KIB, full_share=0.5, chain_max=3)
    state = {f"w{n}": noise(16 * KIB, n) for n in range(10)}
    fulls = []
    with Saver(str(tmp_path), options=options) as saver:
        for step in range(1, 9):
            changed = range(6) if step == 6 else [step]
            state.update({f"w{n}": noise(16 * KIB, 1000 * step + n) for n in changed})
            fulls.append(saver.save(state, step).wait().full)
            assert same(load(str(tmp_path), step), state)
    assert fulls == [True, False, False, True, False, True, False, False]
    assert len(checkpoint_folder.head(PosixStorage(str(tmp_path)), 3).packs) == 3


def test_the_same_bytes_are_stored_once_in_a_save(tmp_path: Path) -> None:
    state = {name: noise(64 * KIB) for name in "abc"}
    assert save(state, str(tmp_path), 1, options=SMALL).written_bytes == 64 * KIB
    assert same(load(str(tmp_path)), state)


def test_retention_keeps_what_kept_ones_refer_to(tmp_path: Path) -> None:
    options = SaveOptions(
        chunk_bytes=4 * KIB, slot_bytes=16 * KIB, retention=Retention(last=2, every=4), full_share=1.0
    )
    place = PosixStorage(str(tmp_path))
    state = {f"w{n}": noise(16 * KIB, n) for n in range(10)}
    expected = {}
    with Saver(place, options=options) as saver:
        for step in range(1, 10):
            state[f"w{step}"] = noise(16 * KIB, 100 + step)
            expected[step] = dict(state)
            saver.save(state, step, pinned=step == 2).wait()
    assert steps(place) == [2, 4, 8, 9]
    for step in steps(place):
        assert same(load(place, step), expected[step])
    assert len(packs(tmp_path)) == 9 or len(packs(tmp_path)) < 9
    unpin(place, 2)
    pin(place, 4)
    done = prune(place, Retention(last=1))
    assert done.steps == [2, 8]
    assert steps(place) == [4, 9]
    assert set(packs(tmp_path)) == {
        name for step in (4, 9) for name in checkpoint_folder.head(place, step).packs
    }
    for step in (4, 9):
        verify(place, step)
        assert same(load(place, step), expected[step])


def test_a_training_that_continues_from_an_earlier_checkpoint_keeps_its_own(tmp_path: Path) -> None:
    options = SaveOptions(chunk_bytes=4 * KIB, slot_bytes=16 * KIB, retention=Retention(last=2))
    place = PosixStorage(str(tmp_path))
    with Saver(place, options=options) as saver:
        for step in (700, 800, 900):
            saver.save({"w": noise(16 * KIB, step)}, step)
    assert steps(place) == [800, 900]
    with Saver(place, options=options) as saver:  # the run diverged: it is repeated from step 300 on
        for step, kept in (
            (400, [400, 800, 900]),
            (500, [400, 500, 800, 900]),
            (600, [500, 600, 800, 900]),
            (800, [600, 800, 900]),
            (900, [800, 900]),
            (950, [900, 950]),
        ):
            state = {"w": noise(16 * KIB, 1000 + step)}
            saver.save(state, step).wait()
            assert steps(place) == kept
            assert same(load(place, step), state)


def test_packs_that_a_save_under_way_refers_to_are_not_pruned(tmp_path: Path, place: GatedPlace) -> None:
    state = {f"w{n}": noise(16 * KIB, n) for n in range(10)}
    save(state, str(tmp_path), 1, options=SMALL)
    saver = Saver(place, options=SMALL)
    state["w0"] = noise(16 * KIB, 77)
    saving = saver.save(state, 2)
    assert place.waiting.wait(60)  # the claim is made, the base was looked at
    done = prune(PosixStorage(str(tmp_path)), Retention(), also=[1])
    assert (done.steps, done.packs) == ([1], [])
    place.open_gate()
    assert not saving.wait().full
    saver.close()
    assert same(load(str(tmp_path)), state)
    assert len(packs(tmp_path)) == 2


def test_a_base_that_went_before_the_claim_is_not_referred_to(tmp_path: Path) -> None:
    state = {"w": noise(64 * KIB)}
    with Saver(str(tmp_path), options=SMALL) as saver:
        saver.save(state, 1).wait()
        prune(PosixStorage(str(tmp_path)), Retention(), also=[1])
        assert saver.save(state, 2).wait().full
    assert same(load(str(tmp_path)), state)


def test_a_step_saved_again_is_replaced(tmp_path: Path) -> None:
    for attempt in range(3):
        save(state_of(1, 5, attempt), str(tmp_path), 5, options=SMALL)
        assert same(load(str(tmp_path), 5), state_of(1, 5, attempt))
    assert steps(PosixStorage(str(tmp_path))) == [5]


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.expected_warnings("headrace.checkpoint.save")
def test_a_call_that_fails_costs_that_save_only(tmp_path: Path, stays: bool) -> None:
    """Each call of a save fails once, one after the other; what was acknowledged before is whole each time."""
    fail_at, failures = 0, 0
    while True:
        fail_at += 1
        where = tmp_path / str(fail_at)
        save(state_of(3, 1, 0), str(where), 1, options=SMALL)
        place = FaultyPlace(str(where), CheckpointNoSpaceError("x"), fail_at=fail_at, stays=stays)
        saver = Saver(place, options=SMALL)
        saving = saver.save(state_of(3, 2, 0), 2)
        failed = False
        try:
            saving.wait()
        except CheckpointNoSpaceError:
            failed = True
        failures += failed
        assert same(load(str(where), 1), state_of(3, 1, 0))
        there = steps(PosixStorage(str(where)))
        if 2 in there:
            assert same(load(str(where), 2), state_of(3, 2, 0))
        assert failed or 2 in there
        place.fail_at = 0
        saver.save(state_of(3, 3, 0), 3).wait()
        saver.close()
        assert same(load(str(where), 3), state_of(3, 3, 0))
        assert os.listdir(where / "saves") == []
        if place.calls < fail_at or not failed:
            break
    assert failures >= 10


@pytest.mark.expected_warnings("headrace.checkpoint.save")
def test_an_error_surfaces_at_wait_and_at_the_next_save_but_once(tmp_path: Path) -> None:
    place = FaultyPlace(str(tmp_path), CheckpointFailedError("the disk"), fail_at=1, stays=True)
    saver = Saver(place, options=SMALL)
    first = saver.save({"w": noise(9000)}, 1)
    first.join()
    with pytest.raises(CheckpointFailedError, match="the disk"):
        saver.save({"w": noise(9000)}, 2)
    place.fail_at = 0
    second = saver.save({"w": noise(9000)}, 3)
    second.wait()
    with pytest.raises(CheckpointFailedError):
        first.wait()
    saver.close()
    assert steps(PosixStorage(str(tmp_path))) == [3]


@pytest.mark.expected_warnings("headrace.checkpoint.save")
def test_close_raises_what_nobody_was_told(tmp_path: Path) -> None:
    place = FaultyPlace(str(tmp_path), CheckpointFailedError("the disk"), fail_at=3, stays=True)
    saver = Saver(place, options=SMALL)
    saver.save({"w": noise(9000)}, 1)
    with pytest.raises(CheckpointFailedError, match="the disk"):
        saver.close()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.expected_warnings("headrace.checkpoint.save")
def test_a_failing_clean_up_leaves_nobody_waiting(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The close of a file may fail at the end, as on NFS. The outcome of the save stays as it was."""

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    place = FaultyPlace(str(tmp_path), CheckpointFailedError("the disk"), fail_at=3 * fails, stays=True)
    for kind, name in ((SaveClaim, "release"), (PackWriter, "drop"), (Attempt, "fail")):
        monkeypatch.setattr(kind, name, broken)
    saver = Saver(place, options=SMALL)
    saving = saver.save({"w": noise(9000)}, 1)
    if fails:
        with pytest.raises(CheckpointFailedError, match="the disk"):
            saving.wait(WAIT_S)
    else:
        saving.wait(WAIT_S)
        assert same(load(str(tmp_path)), {"w": noise(9000)})
    saver.close()


def test_a_slot_without_memory_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next save would wait for ever for a slot that does not exist."""

    def no_memory(size_bytes: int) -> Any:
        raise MemoryError

    saver = Saver(str(tmp_path), options=SMALL)
    with monkeypatch.context() as patches:
        patches.setattr("headrace.checkpoint.stage.page_aligned", no_memory)
        for _ in range(SMALL.budget_bytes // SMALL.slot_bytes + 1):  # type: ignore[operator]
            with pytest.raises(MemoryError):
                saver.reserve(SMALL.slot_bytes)
    with ThreadPoolExecutor(1) as threads:
        saving = threads.submit(saver.save, {"w": noise(9000)}, 1)
        try:
            saving.result(WAIT_S).wait(WAIT_S)
        finally:  # no thread of a failed test hangs
            saver._arena.release(Slot(page_aligned(SMALL.slot_bytes)))
    saver.close()
    assert same(load(str(tmp_path)), {"w": noise(9000)})


@pytest.mark.parametrize("how", ["flipped", "short", "gone"])
def test_a_pack_that_rotted_is_noticed(tmp_path: Path, how: str) -> None:
    save({"a": noise(9000), "b": noise(50_000)}, str(tmp_path), 1, options=SMALL)
    (name,) = packs(tmp_path)
    path = tmp_path / "packs" / name
    if how == "flipped":
        data = bytearray(path.read_bytes())
        data[20_000] ^= 1
        path.write_bytes(data)
    elif how == "short":
        os.truncate(path, 40_000)
    else:
        path.unlink()
    for read in (load, verify):
        with pytest.raises((CorruptCheckpointError, CheckpointFailedError)):
            read(str(tmp_path))


def test_a_manifest_that_rotted_is_noticed_wherever_a_bit_flips(tmp_path: Path) -> None:
    save({"a": noise(9000), "b": 1}, str(tmp_path), 1, options=SMALL)
    path = tmp_path / "manifests" / f"{1:012d}"
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(CorruptCheckpointError):
            load(str(tmp_path))
        path.write_bytes(whole[:place])
        with pytest.raises(CorruptCheckpointError):
            load(str(tmp_path))


@pytest.mark.expected_warnings("headrace.checkpoint.prune")
def test_no_pack_is_deleted_while_a_manifest_cannot_be_read(tmp_path: Path) -> None:
    place = PosixStorage(str(tmp_path))
    for step in (1, 2):
        save({"a": noise(9000, step)}, place, step, options=SMALL)
    path = tmp_path / "manifests" / f"{1:012d}"
    path.write_bytes(b"?" + path.read_bytes()[1:])
    (tmp_path / "manifests" / f"{2:012d}").unlink()
    done = prune(place, Retention())
    assert (done.corrupt, done.packs, len(packs(tmp_path))) == ([1], [], 2)
    done = prune(place, Retention(), also=[1])
    assert (done.corrupt, len(done.packs), packs(tmp_path)) == ([], 2, {})


def test_words_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint in this directory"):
        load(str(tmp_path))
    save({"a": 1}, str(tmp_path), 7)
    with pytest.raises(CheckpointNotFoundError, match="from 7 to 7"):
        load(str(tmp_path), 8)
    with pytest.raises(CheckpointNotFoundError, match="rank 3"):
        load(str(tmp_path), rank=3)
    with Saver(str(tmp_path)) as saver:
        for step in (-1, 10**12, True, "7"):
            with pytest.raises(UsageError):
                saver.save({}, step)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="metadata"):
            saver.save({}, 1, metadata={"a": object()})
    words: dict[str, Any]
    for words in ({"chunk_bytes": 5}, {"slot_bytes": 5}, {"compress": "maybe"}, {"threads": 0}):
        with pytest.raises(UsageError):
            SaveOptions(**words)
    with pytest.raises(UsageError, match="run"):
        Saver(str(tmp_path), rank=0, ranks=2)
