"""`headrace bench checkpoint`: checkpoints of MLPerf Storage's models, written and read by many ranks.

All ranks begin at one time; a turn has ended when the last has all on the disk, or in memory. Bandwidth is of all bytes
over the slowest rank's seconds.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from headrace.base.errors import DeadlineExceededError, NoSpaceError, PathNotFoundError, UsageError
from headrace.bench import pagecache
from headrace.bench.checkpoint_layout import SUBSET_RANKS, Model, model
from headrace.bench.checkpoint_rank import CheckpointRankPlan, folder_of
from headrace.bench.process import Process

TURNS = 3
MLPERF_TURNS = 10
TURN_WITHIN_S = 4 * 3600.0
MODES = ("subset", "default")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """scale: a factor on all sizes. mode: "subset", the first 8 ranks, or "default", all of them. writes, reads: how
    many checkpoints. keep: they stay. drop: the page cache, before each read. folders: where, each with the words that
    run a command there (a lab's nodes); neighbouring ranks share one."""

    model: str
    folders: Sequence[tuple[str, Sequence[str]]]
    scale: float = 0.01
    mode: str = "subset"
    writes: int = TURNS
    reads: int = TURNS
    keep: bool = False
    drop: bool = True


class PhaseResult(msgspec.Struct, frozen=True):
    """took_s: of the slowest rank. by_rank_s: of each. wall_s: of all of it, between the barriers."""

    took_s: float
    bytes_s: float
    wall_s: float
    by_rank_s: list[float]


class CheckpointResult(msgspec.Struct, kw_only=True):
    """What is printed by --json. full_bytes: of a checkpoint of these ranks at scale 1."""

    called: str
    model: str
    mode: str
    folder: str
    scale: float
    ranks: int
    ranks_of_model: int
    files: int
    checkpoint_bytes: int
    full_bytes: int
    writes: list[PhaseResult]
    reads: list[PhaseResult]
    page_cache: str
    notes: list[str]


def run(plan: CheckpointPlan, *, say: Say) -> CheckpointResult:
    """Blocks to the end; the files are gone on return, unless they are to be kept. UsageError, HeadraceError."""
    one = model(plan.model)
    _check(plan)
    ranks = one.ranks if plan.mode == "default" else min(SUBSET_RANKS, one.ranks)
    files = [
        {name: scaled(size, plan.scale) for name, size in one.files(rank).items()} for rank in range(ranks)
    ]
    total = sum(sum(each.values()) for each in files)
    _check_room(plan, total)
    made = [
        (tempfile.mkdtemp(prefix="headrace-bench-", dir=folder), inside) for folder, inside in plan.folders
    ]
    try:
        writes, reads, dropped = _write_and_read(plan, made, files, say)
    finally:
        if not plan.keep:
            for folder, _ in made:
                shutil.rmtree(folder, ignore_errors=True)
    return CheckpointResult(
        called=_called(plan, one, ranks, dropped),
        model=one.name,
        mode=plan.mode,
        folder=", ".join(folder for folder, _ in (made if plan.keep else plan.folders)),
        scale=plan.scale,
        ranks=ranks,
        ranks_of_model=one.ranks,
        files=sum(len(each) for each in files),
        checkpoint_bytes=total,
        full_bytes=sum(sum(one.files(rank).values()) for rank in range(ranks)),
        writes=writes,
        reads=reads,
        page_cache=dropped,
        notes=_notes(plan, one, total, dropped),
    )


def _write_and_read(
    plan: CheckpointPlan, made: Sequence[tuple[str, Sequence[str]]], files: Sequence[dict[str, int]], say: Say
) -> tuple[list[PhaseResult], list[PhaseResult], str]:
    """Write and read each checkpoint with a process for each rank. → the writes, the reads, how the page cache was
    dropped."""
    dropped = "kept, as asked"
    writes: list[PhaseResult] = []
    reads: list[PhaseResult] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as notes:
        processes = _start(made, files, notes)
        try:
            for number in range(plan.writes):
                for folder, _ in made:
                    os.mkdir(folder_of(folder, number))
                writes.append(_turn(processes, "write", number))
                say(f"write {number + 1} of {plan.writes}: {writes[-1].bytes_s / 2**30:.3f} GiB/s")
            for number in range(min(plan.reads, plan.writes)):
                if plan.drop:
                    dropped = pagecache.drop(_paths(made, number))
                reads.append(_turn(processes, "read", number))
                say(f"read {number + 1} of {plan.reads}: {reads[-1].bytes_s / 2**30:.3f} GiB/s")
        finally:
            for process in processes:
                process.kill()
    return writes, reads, dropped


def scaled(size: int, scale: float) -> int:
    return max(1, round(size * scale))


def _start(
    made: Sequence[tuple[str, Sequence[str]]], files: Sequence[dict[str, int]], notes: str
) -> list[Process]:
    """One process a rank, all ready."""
    started: list[Process] = []
    each = -(-len(files) // len(made))
    try:
        for number, (folder, inside) in enumerate(made):
            first = number * each
            mine = list(files[first : first + each])
            path = os.path.join(notes, f"plan-{number}.json")
            with open(path, "wb") as out:
                out.write(msgspec.json.encode(CheckpointRankPlan(folder=folder, first=first, files=mine)))
            for local in range(len(mine)):
                words = ["-m", "headrace.bench.checkpoint_rank", path, str(local)]
                started.append(Process(words, inside=inside, log=f"{path}-{local}.log"))
        _answers(started)
    except BaseException:
        for one in started:
            one.kill()
        raise
    return started


def _turn(processes: Sequence[Process], verb: str, number: int) -> PhaseResult:
    begin_s = time.perf_counter()
    for one in processes:
        one.answer(f"{verb} {number}")
    found = _answers(processes)
    wall_s = time.perf_counter() - begin_s
    seconds = [float(one["took_s"]) for one in found]
    return PhaseResult(max(seconds), sum(int(one["bytes"]) for one in found) / max(seconds), wall_s, seconds)


def _answers(processes: Sequence[Process]) -> list[dict[str, float]]:
    found = []
    until_s = time.monotonic() + TURN_WITHIN_S
    for one in processes:
        while (said := one.heard()) is None:
            if time.monotonic() > until_s:
                raise DeadlineExceededError("a rank does not answer")
        found.append(said)
    return found


def _paths(made: Sequence[tuple[str, Sequence[str]]], number: int) -> list[str]:
    folders = [folder_of(folder, number) for folder, _ in made]
    return [os.path.join(folder, name) for folder in folders for name in os.listdir(folder)]


def _check(plan: CheckpointPlan) -> None:
    if plan.mode not in MODES:
        raise UsageError(f"--mode {plan.mode}", why="unknown", hint=" or ".join(MODES))
    if not 0 < plan.scale < math.inf or plan.writes < 1 or plan.reads < 0:
        raise UsageError("bench checkpoint", why="--scale is above 0, --writes 1 or more, --reads 0 or more")
    for folder, _ in plan.folders:
        if not os.path.isdir(folder):
            raise PathNotFoundError(folder, why="no such folder")


def _check_room(plan: CheckpointPlan, total: int) -> None:
    for folder, _ in plan.folders:
        about = os.statvfs(folder)
        needed, free = total * plan.writes // len(plan.folders), about.f_bavail * about.f_frsize
        if about.f_blocks and needed > free:
            hint = f"--scale {plan.scale * free / needed * 0.9:.2g}, or fewer --writes"
            raise NoSpaceError(
                folder,
                why=f"{plan.writes} checkpoints are {needed >> 20} MiB, {free >> 20} are free",
                hint=hint,
            )


def _called(plan: CheckpointPlan, one: Model, ranks: int, dropped: str) -> str:
    whole = plan.scale == 1 and plan.writes == plan.reads == MLPERF_TURNS and dropped == pagecache.DROPPED
    return "MLPerf Storage workload" + ("" if whole else ", scaled")


def _notes(plan: CheckpointPlan, one: Model, total: int, dropped: str) -> list[str]:
    notes = []
    if plan.writes != MLPERF_TURNS or plan.reads != MLPERF_TURNS:
        notes.append(f"MLPerf Storage writes and reads {MLPERF_TURNS}")
    if one.ranks > SUBSET_RANKS and plan.mode == "subset":
        notes.append(f"subset mode: {SUBSET_RANKS} of {one.ranks} ranks, as for storage inside of a host")
    if dropped != pagecache.DROPPED and plan.drop:
        notes.append("reads may have come from memory")
    if total * plan.writes < pagecache.memory_bytes() and dropped != pagecache.DROPPED:
        notes.append("all checkpoints fit into memory")
    return notes
