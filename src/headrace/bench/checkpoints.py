"""Run `headrace bench checkpoint`: many ranks write and read checkpoints of MLPerf Storage's models.

All ranks begin a turn together. A turn ends when the last rank has everything on the disk, or in memory. Bandwidth is
the bytes of all ranks over the seconds of the slowest.
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
"""Default number of checkpoints that are written, and read."""
MLPERF_TURNS = 10
"""Number that MLPerf Storage requires."""
TURN_WITHIN_S = 4 * 3600.0
"""Longest time of one turn, in seconds."""
MODES = ("subset", "default")
Say = Callable[[str], None]
"""A callback that prints a line of progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """Describe a run.

    scale: factor on all sizes. mode: "subset" for the first 8 ranks, or "default" for all. writes, reads: number of
    checkpoints. keep: do not delete the files. drop: drop the page cache before each read. folders: directories, each
    with the command prefix that runs a command on its host (a lab's nodes); neighbouring ranks share one.
    """

    model: str
    folders: Sequence[tuple[str, Sequence[str]]]
    scale: float = 0.01
    mode: str = "subset"
    writes: int = TURNS
    reads: int = TURNS
    keep: bool = False
    drop: bool = True


class PhaseResult(msgspec.Struct, frozen=True):
    """Hold the times of a turn. took_s: the slowest rank. by_rank_s: each rank. wall_s: between the barriers."""

    took_s: float
    bytes_s: float
    wall_s: float
    by_rank_s: list[float]


class CheckpointResult(msgspec.Struct, kw_only=True):
    """Hold the output of --json. full_bytes: size of a checkpoint of these ranks at scale 1."""

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
    """Run all turns and block until they end. On return the files are deleted, unless the plan keeps them.

    Raises UsageError, HeadraceError.
    """
    layout = model(plan.model)
    _check(plan)
    ranks = layout.ranks if plan.mode == "default" else min(SUBSET_RANKS, layout.ranks)
    files = [
        {name: scaled(size, plan.scale) for name, size in layout.files(rank).items()} for rank in range(ranks)
    ]
    total = sum(sum(each.values()) for each in files)
    _check_room(plan, total)
    targets = [
        (tempfile.mkdtemp(prefix="headrace-bench-", dir=folder), inside) for folder, inside in plan.folders
    ]
    try:
        writes, reads, dropped = _write_and_read(plan, targets, files, say)
    finally:
        if not plan.keep:
            for folder, _ in targets:
                shutil.rmtree(folder, ignore_errors=True)
    return CheckpointResult(
        called=_called(plan, layout, ranks, dropped),
        model=layout.name,
        mode=plan.mode,
        folder=", ".join(folder for folder, _ in (targets if plan.keep else plan.folders)),
        scale=plan.scale,
        ranks=ranks,
        ranks_of_model=layout.ranks,
        files=sum(len(each) for each in files),
        checkpoint_bytes=total,
        full_bytes=sum(sum(layout.files(rank).values()) for rank in range(ranks)),
        writes=writes,
        reads=reads,
        page_cache=dropped,
        notes=_notes(plan, layout, total, dropped),
    )


def _write_and_read(
    plan: CheckpointPlan,
    targets: Sequence[tuple[str, Sequence[str]]],
    files: Sequence[dict[str, int]],
    say: Say,
) -> tuple[list[PhaseResult], list[PhaseResult], str]:
    """Write and read each checkpoint with a process for each rank. Return the writes, the reads, and how the page cache
    was dropped."""
    dropped = "kept, as asked"
    writes: list[PhaseResult] = []
    reads: list[PhaseResult] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as notes:
        processes = _start(targets, files, notes)
        try:
            for number in range(plan.writes):
                for folder, _ in targets:
                    os.mkdir(folder_of(folder, number))
                writes.append(_turn(processes, "write", number))
                say(f"write {number + 1} of {plan.writes}: {writes[-1].bytes_s / 2**30:.3f} GiB/s")
            for number in range(min(plan.reads, plan.writes)):
                if plan.drop:
                    dropped = pagecache.drop(_paths(targets, number))
                reads.append(_turn(processes, "read", number))
                say(f"read {number + 1} of {plan.reads}: {reads[-1].bytes_s / 2**30:.3f} GiB/s")
        finally:
            for process in processes:
                process.kill()
    return writes, reads, dropped


def scaled(size: int, scale: float) -> int:
    """Return a scaled size, at least 1 byte."""
    return max(1, round(size * scale))


def _start(
    targets: Sequence[tuple[str, Sequence[str]]], files: Sequence[dict[str, int]], notes: str
) -> list[Process]:
    """Start a process for each rank, and return them when all are ready."""
    started: list[Process] = []
    each = -(-len(files) // len(targets))
    try:
        for number, (folder, inside) in enumerate(targets):
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
        for process in started:
            process.kill()
        raise
    return started


def _turn(processes: Sequence[Process], verb: str, number: int) -> PhaseResult:
    begin_s = time.perf_counter()
    for process in processes:
        process.answer(f"{verb} {number}")
    answers = _answers(processes)
    wall_s = time.perf_counter() - begin_s
    seconds = [float(answer["took_s"]) for answer in answers]
    return PhaseResult(
        max(seconds), sum(int(answer["bytes"]) for answer in answers) / max(seconds), wall_s, seconds
    )


def _answers(processes: Sequence[Process]) -> list[dict[str, float]]:
    answers = []
    until_s = time.monotonic() + TURN_WITHIN_S
    for process in processes:
        while (line := process.read_message()) is None:
            if time.monotonic() > until_s:
                raise DeadlineExceededError("a rank does not answer")
        answers.append(line)
    return answers


def _paths(targets: Sequence[tuple[str, Sequence[str]]], number: int) -> list[str]:
    folders = [folder_of(folder, number) for folder, _ in targets]
    return [os.path.join(folder, name) for folder in folders for name in os.listdir(folder)]


def _check(plan: CheckpointPlan) -> None:
    if plan.mode not in MODES:
        raise UsageError(f"--mode {plan.mode}", why="unknown", hint=" or ".join(MODES))
    if not 0 < plan.scale < math.inf or plan.writes < 1 or plan.reads < 0:
        raise UsageError("bench checkpoint", why="--scale is above 0, --writes 1 or more, --reads 0 or more")
    for folder, _ in plan.folders:
        if not os.path.isdir(folder):
            raise PathNotFoundError(
                folder, why="no such directory", hint=f"mkdir -p {folder}, or mount it first"
            )


def _check_room(plan: CheckpointPlan, total: int) -> None:
    """Raise NoSpaceError if the checkpoints do not fit."""
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


def _called(plan: CheckpointPlan, layout: Model, ranks: int, dropped: str) -> str:
    """Return the name that the run may bear."""
    whole = plan.scale == 1 and plan.writes == plan.reads == MLPERF_TURNS and dropped == pagecache.DROPPED
    return "MLPerf Storage workload" + ("" if whole else ", scaled")


def _notes(plan: CheckpointPlan, layout: Model, total: int, dropped: str) -> list[str]:
    notes = []
    if plan.writes != MLPERF_TURNS or plan.reads != MLPERF_TURNS:
        notes.append(f"MLPerf Storage writes and reads {MLPERF_TURNS}")
    if layout.ranks > SUBSET_RANKS and plan.mode == "subset":
        notes.append(f"subset mode: {SUBSET_RANKS} of {layout.ranks} ranks, as for storage inside of a host")
    if dropped != pagecache.DROPPED and plan.drop:
        notes.append("reads may have come from memory")
    if total * plan.writes < pagecache.memory_bytes() and dropped != pagecache.DROPPED:
        notes.append("all checkpoints fit into memory")
    return notes
