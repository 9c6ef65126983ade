"""Saving a checkpoint: open this first. `Saver.save` is the trainer's half, `Saver._save` the background's.

The trainer is stopped while its state is copied to host memory (stage.py). Then, in a thread of this save: what the
base, the last checkpoint, has already is found by hash and referred to (job.py, pack.py); the rest is written; the
manifest is committed (commit.py). Saves are committed in the order they were made. Restoring is restore.py.

Several ranks: each has a Saver with its rank and the same `run`, and all save the same steps in the same order.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import (
    HeadraceError,
    UsageError,
)
from headrace.checkpoint import folder, layout, plan, prune
from headrace.checkpoint.commit import Attempt
from headrace.checkpoint.job import SaveJob, StageEvent
from headrace.checkpoint.manifest import Leaf, RankPart
from headrace.checkpoint.part import PartSaver, manifest_of
from headrace.checkpoint.retention import Retention
from headrace.checkpoint.saving import SaveHandle, SaveOptions, SaveResult
from headrace.checkpoint.stage import Arena, Stager, pin
from headrace.checkpoint.storage import CheckpointStorage, place_of
from headrace.checkpoint.tensors import HostLeaf, flatten
from headrace.checkpoint.worker_pool import WorkerPool

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """What the caller said of one save."""

    step: int
    metadata: dict[str, Any] = field(default_factory=dict)
    pinned: bool = False
    full: bool = False


def save(
    state: Any, where: str | CheckpointStorage, step: int, *, options: SaveOptions | None = None
) -> SaveResult:
    """One checkpoint of one process, committed on return. See `Saver.save`."""
    with Saver(where, options=options) as saver:
        return saver.save(state, step).wait()


class Saver:
    """Saves one rank's states to a folder. Not to be used by several threads at once.

    run: what all ranks of this run have in common, and no other run has: small letters and digits; needed when there
    are several ranks. A restart of the ranks is another run.
    """

    def __init__(
        self,
        where: str | CheckpointStorage,
        *,
        options: SaveOptions | None = None,
        rank: int = 0,
        ranks: int = 1,
        run: str = "",
    ) -> None:
        if not 0 <= rank < ranks:
            raise UsageError(f"rank {rank} of {ranks}", why="ranks are counted from 0")
        if ranks > 1 and not run:
            raise UsageError(
                f"rank {rank} of {ranks}",
                why="several ranks need a run",
                hint="a word that only this run's ranks share",
            )
        self._place = place_of(where)
        self._options = options or SaveOptions()
        self._rank, self._ranks = rank, ranks
        self._run = layout.check_run(run or secrets.token_hex(6))
        self._tries: dict[int, int] = {}
        self._arena = Arena(self._options.slot_bytes, on_new=pin)
        self._copiers = ThreadPoolExecutor(self._options.copy_threads, "checkpoint-copy")
        self._stager = Stager(self._arena, self._copiers, chunk_bytes=self._options.chunk_bytes)
        self._under_way: list[SaveHandle] = []
        self._last: threading.Thread | None = None
        self._parts = PartSaver(self._place, self._options, rank)

    def reserve(self, state_bytes: int) -> None:
        """Gets the memory for states of that size now; else the first save pays for it, while training waits."""
        self._allow(state_bytes)
        self._arena.reserve(state_bytes)

    def save(
        self,
        state: Any,
        step: int,
        *,
        metadata: Mapping[str, Any] | None = None,
        pinned: bool = False,
        full: bool = False,
    ) -> SaveHandle:
        """Copies the state and returns; it is written and committed in the background (`SaveHandle.wait`).

        state: dicts, lists, tuples of tensors, arrays and plain values; NotSupportedError names what can't be saved.
        An error of an earlier save that nobody was told of is raised here, before anything is done. A checkpoint of
        the same step is replaced, at the commit. metadata: anything JSON can hold, shown by `headrace checkpoint show`.
        pinned: retention passes it by. full: refer to no older pack.
        """
        self._raise_untold()
        start_s = time.perf_counter()
        wish = SaveRequest(step, _checked(metadata), pinned, full)
        save_id = layout.save_id(step, self._run, self._tries.get(step, 0))
        tree, held = flatten(state)
        self._tries[step] = self._tries.get(step, 0) + 1
        saving = SaveHandle(step)
        self._allow(sum(one.size_bytes for one in held))
        one = self._begin(saving, save_id, tree, held, wish)
        try:
            one.inline = self._stager.stage(held, one.inbox.put, lambda: one.inbox.put(StageEvent.STARVED))
        except BaseException:
            one.inbox.put(StageEvent.CANCELLED)
            raise
        saving.stopped_s = time.perf_counter() - start_s
        one.inbox.put(StageEvent.STAGED)
        self._under_way.append(saving)
        return saving

    def wait(self) -> None:
        """Blocks until all saves are committed; raises what one failed with, if nobody was told yet."""
        for one in self._under_way:
            one.settle()
        self._raise_untold()

    def close(self) -> None:
        """Waits as `wait` does; the staging memory goes."""
        try:
            self.wait()
        finally:
            if self._last is not None:
                self._last.join()
            self._copiers.shutdown()

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(HeadraceError):  # what the caller fails with counts
            self.close()

    def _allow(self, state_bytes: int) -> None:
        wanted = self._options.budget_bytes
        if wanted is None:
            wanted = plan.budget(
                state_bytes, slot_bytes=self._options.slot_bytes, available_bytes=available_bytes()
            )
        self._arena.allow(wanted)

    def _raise_untold(self) -> None:
        over = [one for one in self._under_way if one.done]
        self._under_way = [one for one in self._under_way if not one.done]
        for one in over:
            if one.error_untold:
                one.raise_error()

    def _begin(
        self, saving: SaveHandle, save: layout.SaveId, tree: Any, held: list[HostLeaf], wish: SaveRequest
    ) -> SaveJob:
        leaves = [Leaf(one.name, one.kind, one.size_bytes, one.dtype, list(one.shape)) for one in held]
        crew = WorkerPool(self._options.threads, f"checkpoint-{wish.step}")
        one = SaveJob(saving, leaves, self._arena, self._options, crew)
        attempt = Attempt(self._place, save, wish.step, self._rank, self._ranks, self._options.timeout_s)
        words = (one, attempt, tree, wish, self._last, time.perf_counter())
        self._last = threading.Thread(target=self._run_save, args=words, name=f"checkpoint-{wish.step}")
        self._last.start()
        return one

    def _run_save(
        self,
        one: SaveJob,
        attempt: Attempt,
        tree: Any,
        wish: SaveRequest,
        before: threading.Thread | None,
        start_s: float,
    ) -> None:
        """The save's thread: whatever happens, slots go back and the handle is told."""
        outcome: SaveResult | BaseException
        try:
            if before is not None:
                before.join()
            outcome = self._save(one, attempt, tree, wish, start_s)
        except BaseException as error:  # the thread ends here; `SaveHandle.wait` raises it
            outcome = error
            self._parts.drop(attempt)
            log.warning(
                "a checkpoint was not saved step=%d error=%s", wish.step, error, exc_info=_is_defect(error)
            )
            attempt.fail(error)
        finally:
            one.drain()
            one.crew.close()
        try:
            attempt.end()
            if not isinstance(outcome, BaseException):
                self._tidy()
        except HeadraceError as error:  # the checkpoint is there all the same
            log.warning("leftovers of a checkpoint stay step=%d error=%s", wish.step, error)
        one.saving.finish(outcome)

    def _save(
        self, one: SaveJob, attempt: Attempt, tree: Any, wish: SaveRequest, start_s: float
    ) -> SaveResult:
        """The background's journey, from the first staged slot to the commit."""
        base = self._parts.claim(attempt, full=wish.full)
        done = self._parts.write(one, attempt, tree, base)
        self._commit(attempt, done.part, wish)
        self._parts.remember(attempt, done.part)
        return SaveResult(
            step=wish.step,
            save=attempt.save,
            full=done.full,
            data_bytes=sum(leaf.size_bytes for leaf in one.leaves),
            written_bytes=done.part.written_bytes,
            stored_bytes=done.stored_bytes,
            stopped_s=one.saving.stopped_s,
            took_s=time.perf_counter() - start_s,
        )

    def _commit(self, attempt: Attempt, part: RankPart, wish: SaveRequest) -> None:
        if self._ranks > 1:
            attempt.deliver(part)
        if self._rank > 0:
            attempt.await_commit()
            return
        parts = attempt.gather() if self._ranks > 1 else [part]
        if wish.pinned:
            folder.pin(self._place, wish.step)
        attempt.publish(manifest_of(attempt, parts, metadata=wish.metadata))

    def _tidy(self) -> None:
        if self._rank == 0:
            prune.prune(self._place, self._options.retention or Retention())


def _is_defect(error: BaseException) -> bool:
    return not isinstance(error, HeadraceError)


def available_bytes() -> int:
    """Memory that can be had without swapping. A container may be allowed less: give a budget there."""
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _checked(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """UsageError when JSON can't hold it, now rather than in the background."""
    try:
        found: dict[str, Any] = decode_json(msgspec.json.encode(dict(metadata or {})), dict[str, Any])
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise UsageError("metadata of a checkpoint", why=str(error)) from None
    return found
