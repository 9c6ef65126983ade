"""Save checkpoints. `Saver.save` runs in the trainer's thread, `Saver._save` in the background.

The trainer stops while its state is copied to host memory (stage.py). The save's thread then finds by hash which chunks
the base, the last checkpoint, already has, and refers to them (job.py, pack.py). It writes the others and commits the
manifest (commit.py). Saves are committed in the order of the calls. restore.py is the other direction.

With several ranks, each rank has a Saver with its rank and the same `run`, and all save the same steps in the same
order.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
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
from headrace.checkpoint.data_versions import Data, resolve_versions
from headrace.checkpoint.job import SaveJob, SlotInbox, StageEvent
from headrace.checkpoint.manifest import Leaf, RankPart
from headrace.checkpoint.open_storage import storage_at
from headrace.checkpoint.part import PartSaver, manifest_of
from headrace.checkpoint.retention import Retention
from headrace.checkpoint.saving import SaveHandle, SaveOptions, SaveResult
from headrace.checkpoint.stage import Arena, Stager, pin
from headrace.checkpoint.storage import CheckpointStorage
from headrace.checkpoint.tensors import HostLeaf, flatten
from headrace.checkpoint.worker_pool import WorkerPool

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """Hold the arguments of one save."""

    step: int
    metadata: dict[str, Any] = field(default_factory=dict)
    pinned: bool = False
    full: bool = False
    data: dict[str, str] = field(default_factory=dict)


def save(
    state: Any,
    where: str | CheckpointStorage,
    step: int,
    *,
    options: SaveOptions | None = None,
    data: Data = None,
) -> SaveResult:
    """Save one checkpoint of one process, committed on return. See `Saver.save`."""
    with Saver(where, options=options) as saver:
        return saver.save(state, step, data=data).wait()


class Saver:
    """Save one rank's states to a directory. Not thread-safe.

    run: a word of lower-case letters and digits that all ranks of this run share and no other run has; required with
    several ranks. A restart of the ranks is another run.
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
            raise UsageError(f"rank {rank} of {ranks}", why="it must be 0 to ranks - 1")
        if ranks > 1 and not run:
            raise UsageError(
                f"rank {rank} of {ranks}",
                why="several ranks need a run",
                hint="give a word that only the ranks of this run share",
            )
        self._storage = storage_at(where)
        self._options = options or SaveOptions()
        self._rank, self._ranks = rank, ranks
        self._run = layout.check_run(run or secrets.token_hex(6))
        self._tries: dict[int, int] = {}
        self._arena = Arena(self._options.slot_bytes, on_new=pin)
        self._copiers = ThreadPoolExecutor(self._options.copy_threads, "checkpoint-copy")
        self._stager = Stager(self._arena, self._copiers, chunk_bytes=self._options.chunk_bytes)
        self._in_progress: list[SaveHandle] = []
        self._last: threading.Thread | None = None
        self._parts = PartSaver(self._storage, self._options, rank)

    def reserve(self, state_bytes: int) -> None:
        """Allocate the memory for states of that size now. Otherwise the first save does so, while training waits."""
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
        data: Data = None,
    ) -> SaveHandle:
        """Copy the state and return. A thread writes and commits it in the background (`SaveHandle.wait`).

        state: dicts, lists, tuples of tensors, arrays and plain values; NotSupportedError names a value that can't be
        saved. metadata: any JSON value; `headrace checkpoint show` prints it. pinned: exempt from retention. full:
        refer to no older pack. data: the sealed versions that it was trained on, as ["imagenet@3"], which rank 0 looks
        up at the node; or with their ids, as {"imagenet@3": ID}.

        The commit replaces a checkpoint of the same step. If an earlier save failed and its error was not raised yet,
        it is raised first, before anything is done.
        """
        self._raise_unreported()
        start_s = time.perf_counter()
        versions = resolve_versions(data) if self._rank == 0 else {}
        request = SaveRequest(step, _checked(metadata), pinned, full, versions)
        save_id = layout.save_id(step, self._run, self._tries.get(step, 0))
        tree, leaves = flatten(state)
        self._tries[step] = self._tries.get(step, 0) + 1
        handle, inbox = SaveHandle(step), SlotInbox(step, self._arena)
        self._allow(sum(leaf.size_bytes for leaf in leaves))
        try:
            job = self._begin(handle, save_id, tree, leaves, request, inbox)
            job.inline = self._stager.stage(leaves, inbox.put, lambda: inbox.put(StageEvent.STARVED))
            handle.stopped_s = time.perf_counter() - start_s
            inbox.put(StageEvent.STAGED)
        except BaseException:  # the thread of the save waits for an end in any case
            inbox.put(StageEvent.CANCELLED)
            raise
        self._in_progress.append(handle)
        return handle

    def wait(self) -> None:
        """Block until all saves are committed. Raises the error of a failed save unless it was raised before."""
        for handle in self._in_progress:
            handle.join()
        self._raise_unreported()

    def close(self) -> None:
        """Wait as `wait` does, then free the staging memory."""
        try:
            self.wait()
        finally:
            if self._last is not None:
                self._last.join()
            self._copiers.shutdown()
            self._arena.clear()

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(HeadraceError):  # the caller's own error matters more
            self.close()

    def _allow(self, state_bytes: int) -> None:
        budget_bytes = self._options.budget_bytes
        if budget_bytes is None:
            budget_bytes = plan.budget(
                state_bytes, slot_bytes=self._options.slot_bytes, available_bytes=available_bytes()
            )
        self._arena.allow(budget_bytes)

    def _raise_unreported(self) -> None:
        """Raise the error of an ended save, unless it was raised before."""
        ended = [handle for handle in self._in_progress if handle.done]
        self._in_progress = [handle for handle in self._in_progress if not handle.done]
        for handle in ended:
            if handle.has_unreported_error:
                handle.raise_error()

    def _begin(
        self,
        handle: SaveHandle,
        save: layout.SaveId,
        tree: Any,
        host_leaves: list[HostLeaf],
        request: SaveRequest,
        inbox: SlotInbox,
    ) -> SaveJob:
        """Start the thread of a save. It ends when the inbox has got STAGED or CANCELLED."""
        leaves = [
            Leaf(each.name, each.kind, each.size_bytes, each.dtype, list(each.shape)) for each in host_leaves
        ]
        previous = self._last
        thread: threading.Thread | None = None
        pool = WorkerPool(self._options.threads, f"checkpoint-{request.step}")
        try:
            job = SaveJob(handle, leaves, self._arena, self._options, pool, inbox)
            attempt = Attempt(
                self._storage, save, request.step, self._rank, self._ranks, self._options.timeout_s
            )
            arguments = (job, attempt, tree, request, previous, time.perf_counter())
            self._last = thread = threading.Thread(
                target=self._run_save, args=arguments, name=f"checkpoint-{request.step}"
            )
            thread.start()
        except BaseException:  # the system may refuse a thread, and Ctrl-C may come here
            if thread is None or thread.ident is None:
                self._last = previous
            pool.close()
            raise
        return job

    def _run_save(
        self,
        job: SaveJob,
        attempt: Attempt,
        tree: Any,
        request: SaveRequest,
        previous: threading.Thread | None,
        start_s: float,
    ) -> None:
        """Run the save's thread. In any case all slots return to the arena, and the handle gets the outcome."""
        outcome: SaveResult | BaseException
        try:
            if previous is not None:
                previous.join()
            outcome = self._save(job, attempt, tree, request, start_s)
        except BaseException as error:  # the thread ends here; `SaveHandle.wait` raises it
            outcome = error
            log.warning(
                "a checkpoint was not saved step=%d error=%s", request.step, error, exc_info=_is_defect(error)
            )
        works: list[Callable[[], object]] = [job.inbox.drain, job.pool.close, attempt.end]
        if isinstance(outcome, BaseException):
            works = [partial(self._parts.drop, attempt), partial(attempt.fail, outcome), *works]
        else:  # the checkpoint is committed
            works.append(partial(self._prune, request.step))
        for work in works:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the outcome stays, and somebody may wait for it
                log.warning("deleting old checkpoint files failed step=%d error=%s", request.step, error)
        job.handle.finish(outcome)

    def _save(
        self, job: SaveJob, attempt: Attempt, tree: Any, request: SaveRequest, start_s: float
    ) -> SaveResult:
        """Run the background work, from the first staged slot to the commit."""
        base = self._parts.claim(attempt, full=request.full)
        written = self._parts.write(job, attempt, tree, base)
        self._commit(attempt, written.part, request)
        self._parts.remember(attempt, written.part)
        return SaveResult(
            step=request.step,
            save=attempt.save,
            full=written.full,
            data_bytes=sum(leaf.size_bytes for leaf in job.leaves),
            written_bytes=written.part.written_bytes,
            stored_bytes=written.stored_bytes,
            stopped_s=job.handle.stopped_s,
            took_s=time.perf_counter() - start_s,
        )

    def _commit(self, attempt: Attempt, part: RankPart, request: SaveRequest) -> None:
        if self._ranks > 1:
            attempt.deliver(part)
        if self._rank > 0:
            attempt.await_commit()
            return
        parts = attempt.gather() if self._ranks > 1 else [part]
        if request.pinned:
            folder.pin(self._storage, request.step)
        attempt.publish(manifest_of(attempt, parts, metadata=request.metadata, data=request.data))

    def _prune(self, step: int) -> None:
        if self._rank == 0:
            prune.prune(self._storage, self._options.retention or Retention(), saved=step)


def _is_defect(error: BaseException) -> bool:
    return not isinstance(error, HeadraceError)


def available_bytes() -> int:
    """Return the memory available without swapping. In a container with a lower limit, set a budget instead."""
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _checked(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the metadata in its JSON form. Raises UsageError now rather than in the background."""
    try:
        encodable: dict[str, Any] = decode_json(msgspec.json.encode(dict(metadata or {})), dict[str, Any])
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise UsageError("metadata of a checkpoint", why=str(error)) from None
    return encodable
