"""Several ranks, one checkpoint: there for all of them or for none, whoever is slow, fails or is killed."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import CheckpointFailedError, CheckpointNoSpaceError
from headrace.checkpoint import PosixStorage, Retention, SaveOptions, Saver, load, steps, verify
from headrace.checkpoint import folder as checkpoint_folder
from headrace.checkpoint.prune import prune
from tests.unit.checkpoint.crasher import Crasher
from tests.unit.checkpoint.faulty_place import FaultyPlace
from tests.unit.checkpoint.states import same, state_of

RANKS = 3
OPTIONS = SaveOptions(chunk_bytes=4096, slot_bytes=16384, timeout_s=60)


def savers(where: Any, run: str, options: SaveOptions = OPTIONS) -> list[Saver]:
    places = where if isinstance(where, list) else [where] * RANKS
    return [
        Saver(place, options=options, rank=rank, ranks=RANKS, run=run) for rank, place in enumerate(places)
    ]


def of_rank(rank: int, step: int, attempt: int = 0) -> dict[str, Any]:
    return state_of(100 + rank, step, attempt)


def test_each_rank_gets_its_own_state_back(tmp_path: Path) -> None:
    group = savers(str(tmp_path), "first")
    for step in (1, 2, 3):
        under_way = [saver.save(of_rank(rank, step), step) for rank, saver in enumerate(group)]
        for saving in reversed(under_way):
            saving.wait()
        assert steps(PosixStorage(str(tmp_path))) == list(range(1, step + 1))
    for saver in group:
        saver.close()
    for step in (1, 2, 3):
        verify(str(tmp_path), step)
        assert all(same(load(str(tmp_path), step, rank=rank), of_rank(rank, step)) for rank in range(RANKS))
    head = checkpoint_folder.head(PosixStorage(str(tmp_path)), 3)
    assert (head.ranks, head.full) == (RANKS, False)
    prune(PosixStorage(str(tmp_path)), Retention())
    assert os.listdir(tmp_path / "saves") == []


def test_nothing_is_there_until_the_last_rank_has_delivered(tmp_path: Path) -> None:
    group = savers(str(tmp_path), "slow")
    first = [group[rank].save(of_rank(rank, 1), 1) for rank in (0, 2)]
    parts = tmp_path / "saves"
    reached(lambda: parts.exists() and len(list(parts.rglob("*.part"))) == 2)
    assert steps(PosixStorage(str(tmp_path))) == [] and not any(saving.done for saving in first)
    group[1].save(of_rank(1, 1), 1).wait()
    for saver in group:
        saver.close()
    assert same(load(str(tmp_path), rank=1), of_rank(1, 1))


def reached(condition: Any) -> None:
    pause = threading.Event()
    for _ in range(6000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("not reached in a minute")


@pytest.mark.expected_warnings("headrace.checkpoint.save")
def test_a_rank_whose_disk_is_full_fails_the_save_for_all_at_once(tmp_path: Path) -> None:
    full = FaultyPlace(str(tmp_path), CheckpointNoSpaceError("the disk is full"), fail_at=12, stays=False)
    group = savers([str(tmp_path), full, str(tmp_path)], "full")
    under_way = [saver.save(of_rank(rank, 1), 1) for rank, saver in enumerate(group)]
    for rank, saving in enumerate(under_way):
        with pytest.raises(
            CheckpointFailedError, match="the disk is full" if rank == 1 else "rank 1 failed: the disk"
        ):
            saving.wait()
    assert steps(PosixStorage(str(tmp_path))) == []
    full.fail_at = 0
    for saving in [saver.save(of_rank(rank, 2), 2) for rank, saver in enumerate(group)]:
        saving.wait()
    for saver in group:
        saver.close()
    assert steps(PosixStorage(str(tmp_path))) == [2]
    prune(PosixStorage(str(tmp_path)), Retention())
    assert set(os.listdir(tmp_path / "packs")) == set(
        checkpoint_folder.head(PosixStorage(str(tmp_path)), 2).packs
    )


@pytest.mark.expected_warnings("headrace.checkpoint.save")
def test_a_missing_rank_costs_its_time_and_that_save(tmp_path: Path) -> None:
    hasty = SaveOptions(chunk_bytes=4096, slot_bytes=16384, timeout_s=0.3)
    group = [
        Saver(str(tmp_path), options=options, rank=rank, ranks=RANKS, run="missing")
        for rank, options in enumerate((hasty, OPTIONS))
    ]
    alone = [saver.save(of_rank(rank, 1), 1) for rank, saver in enumerate(group)]
    with pytest.raises(CheckpointFailedError, match=r"no part arrived from ranks \[(1, )?2\]"):
        alone[0].wait()
    with pytest.raises(CheckpointFailedError, match=r"rank 0 failed: .*no part arrived"):
        alone[1].wait()
    for saver in group:
        saver.close()
    assert steps(PosixStorage(str(tmp_path))) == []


@pytest.fixture(scope="module")
def crasher() -> Iterator[Crasher]:
    processes = Crasher()
    yield processes
    processes.close()


@pytest.mark.parametrize("name", ["1.claim~", "1.claim"])
def test_a_claim_that_was_never_written_is_pruned(tmp_path: Path, name: str) -> None:
    """A rank that was killed just after it had made the file."""
    left = tmp_path / "saves" / "000000000002-run0-0"
    left.mkdir(parents=True)
    (left / name).touch()
    assert prune(PosixStorage(str(tmp_path)), Retention()).saves == [left.name]
    assert os.listdir(tmp_path / "saves") == []


@pytest.mark.parametrize("killed", range(RANKS))
def test_killed_ranks_and_the_run_after_them(crasher: Crasher, tmp_path: Path, killed: int) -> None:
    """One rank is killed at each step in turn, then all; what the next run saves is never mixed with leftovers."""
    points = ["save.claimed", "save.created", "save.chunk", "save.packed", "save.delivered"]
    points += ["save.manifest", "save.renamed", "save.committed"] if killed == 0 else []
    acknowledged: set[int] = set()
    for attempt, point in enumerate(points):
        answer = crasher.run(
            kind="ranks", folder=str(tmp_path), attempt=attempt, ranks=RANKS, killed=killed, failpoint=point,
            hits=random.Random(attempt).choice([1, 2]), steps=[2 * attempt + 1, 2 * attempt + 2],
        )  # fmt: skip
        assert answer["status"] == -signal.SIGKILL, point
        acknowledged.update(answer["acknowledged"])
        there = steps(PosixStorage(str(tmp_path)))
        assert acknowledged <= set(there)
        for step in there:
            verify(str(tmp_path), step)
            for rank in range(RANKS):
                assert same(load(str(tmp_path), step, rank=rank), of_rank(rank, step, (step - 1) // 2))
    group = savers(str(tmp_path), "after")
    for saving in [saver.save(of_rank(rank, 99, 49), 99) for rank, saver in enumerate(group)]:
        saving.wait()
    for saver in group:
        saver.close()
    prune(PosixStorage(str(tmp_path)), Retention(last=1))
    place = PosixStorage(str(tmp_path))
    assert (place.names("saves"), steps(place)) == ([], [99])
    assert set(place.names("packs")) == set(checkpoint_folder.head(place, 99).packs)
    assert all(same(load(place, rank=rank), of_rank(rank, 99, 49)) for rank in range(RANKS))
