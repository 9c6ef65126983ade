"""Run one node's task of a cluster job: the files that the node owns by one ring, and the progress with them.

Only the primary owner counts a file, so sums over nodes are right. Replicas load the file as well and report only
failures. When the ring changes, a new task starts: it skips files that are loaded, and keeps the earlier counts of
files of which the node is still the primary.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, PathNotFoundError
from headrace.base.model import Entry, FileId
from headrace.base.printable import utf8_text
from headrace.base.rate_meter import RateMeter
from headrace.base.tasks import OwnedTasks
from headrace.jobs.files import LoadJob
from headrace.jobs.job_records import BYTES_S_MAX, FAILED_KEPT_MAX, JobRecord, TaskProgress, TaskRecord
from headrace.jobs.jobs import FETCHING, Jobs
from headrace.jobs.options import parse_options
from headrace.jobs.shares import Assignment, RingShares, SegmentCounter
from headrace.jobs.walk import walk
from headrace.jobs.workers import run_workers
from headrace.ring.ring import Ring, key_of

log = logging.getLogger(__name__)

PATH_PATIENCE_S = 3.0
"""Seconds for which a path that is not found is resolved again, every PATH_RETRY_S seconds."""
PATH_RETRY_S = 0.25
EVERYWHERE = "everywhere"
"""Mark of tasks that cover all files of a node, whether it owns them or not."""


@dataclass(frozen=True, slots=True)
class CarriedProgress:
    """Holds the progress that a task inherits from its predecessor of the same attempt, by an earlier ring. `listed`
    and `done` are (files, bytes) that count by the current ring; `sound` are verified files."""

    listed: tuple[int, int]
    done: tuple[int, int]
    sound: set[FileId]
    began_s: float


class JobTask:
    """Runs a task. `mark` is the ring's mark, or EVERYWHERE. `replicas` returns the number of owners of a path.
    `on_change` is called on the loop when the task is over."""

    def __init__(
        self,
        job: JobRecord,
        jobs: Jobs,
        shares: RingShares,
        *,
        mark: str,
        replicas: Callable[[bytes], int],
        on_change: Callable[[], None],
        carried: CarriedProgress | None = None,
    ) -> None:
        self.job = job
        self._jobs = jobs
        self._shares = shares
        self.mark = mark
        self._options = parse_options(job.kind, job.options)
        self._replicas = replicas
        self._on_change = on_change
        self._listed, self._done = SegmentCounter(), SegmentCounter()
        carried = carried or CarriedProgress((0, 0), (0, 0), set(), monotonic_s())
        self._floor_listed, self._floor_done = carried.listed, carried.done
        self._sound = carried.sound
        self._began_s = carried.began_s
        self._failed: list[tuple[str, str]] = []
        self._failed_files = 0
        self._listing = True
        self.over = False
        self._took_s = 0.0
        self._rate = RateMeter()
        self._tasks = OwnedTasks()
        self._tasks.start(self._run())

    async def stop(self) -> None:
        await self._tasks.close()

    async def carried(self, ring: Ring) -> CarriedProgress:
        """Return the progress for the task that follows this one, which is stopped. A thread counts: millions take
        seconds."""
        listed = await asyncio.to_thread(self._listed.under, ring, self._shares.me)
        done = await asyncio.to_thread(self._done.under, ring, self._shares.me)
        return CarriedProgress(listed, done, self._sound, self._began_s)

    def record(self) -> TaskRecord:
        bytes_done = max(self._done.bytes, self._floor_done[1])
        progress = TaskProgress(
            files_done=max(self._done.files, self._floor_done[0]),
            files_total=max(self._listed.files, self._floor_listed[0]),
            bytes_done=bytes_done,
            bytes_total=max(self._listed.bytes, self._floor_listed[1]),
            failed_files=self._failed_files,
            failed=self._failed[:],
            listing=self._listing,
            bytes_s=0.0 if self.over else self._bytes_s(bytes_done),
            took_s=round(self._took_s or monotonic_s() - self._began_s, 3),
        )
        return TaskRecord(self.mark, self.job.attempt, self.over, progress)

    def _bytes_s(self, bytes_done: int) -> float:
        """Return the rate of the last seconds. It is enormous if a large file ends a moment after the last sample."""
        return min(BYTES_S_MAX, round(self._rate.update(bytes_done, monotonic_s()), 1))

    async def _run(self) -> None:
        try:
            await run_workers(self._all_shares(), self._work)
        except Exception as error:
            log.exception("job task failed id=%s", self.job.id)
            self._fail(self.job.path, f"internal error: {error!r}")
        self._listing, self.over = False, True
        self._floor_listed = self._floor_done = (0, 0)
        self._took_s = monotonic_s() - self._began_s
        self._on_change()

    async def _all_shares(self) -> AsyncIterator[Assignment]:
        for path in self.job.paths or [self.job.path]:
            async for share in self._shares_below(os.fsencode(path)):
                yield share
        self._listing = False

    async def _shares_below(self, path: bytes) -> AsyncIterator[Assignment]:
        fetching = self.job.kind in FETCHING
        try:
            files = await self._files(path)
        except HeadraceError as error:
            if fetching:  # otherwise this node has no file of it
                self._fail(os.fsdecode(path), str(error))
            return
        async for file_path, entry in files:
            if fetching:
                copies = self._options.replicas or self._replicas(file_path)
                share = self._shares.of(file_path, entry, copies)
            else:
                share = self._cached_share(file_path, entry)
            if share is None:
                continue
            for key, size_bytes, first, mine in share.segments:
                self._listed.add(key, size_bytes, first=first, mine=mine)
            yield share

    async def _files(self, path: bytes) -> AsyncIterator[tuple[bytes, Entry]]:
        """Return the files at and below a path, or in the job's seal."""
        jobs = self._jobs
        if self.job.data:
            sealed = await jobs.sealed_walk.find(path)
            if sealed is None or sealed.data != self.job.data:
                why = "this node finds no such seal, or another one of that name"
                raise PathNotFoundError(os.fsdecode(path), why=why)
            return jobs.sealed_walk.files(sealed, self._fail)
        top, fresh = await self._resolve(path), self.job.kind in FETCHING
        return walk(jobs.namespace.listings, jobs.store.index, top, fresh=fresh, failed=self._fail)

    async def _resolve(self, path: bytes) -> Entry:
        """Return the entry of the path. If it is not found, retry for PATH_PATIENCE_S: the node that accepted the job
        resolved it, and a mount that was just added reaches this node soon."""
        deadline = Deadline.after(PATH_PATIENCE_S if self.job.kind in FETCHING else 0)
        while True:
            try:
                return await self._jobs.namespace.resolver.resolve(path)
            except PathNotFoundError:
                if deadline.passed():
                    raise
                await asyncio.sleep(PATH_RETRY_S)

    def _cached_share(self, path: bytes, entry: Entry) -> Assignment | None:
        """Return the file as a share if this node has it, owned or borrowed, and the job concerns it."""
        files = self._jobs.files
        is_held = files.is_cached(entry) if self.job.kind == "free" else files.is_pinned(entry)
        if not is_held:
            return None
        return Assignment(path, entry, (), ((key_of(path, 0), entry.version.size_bytes, True, True),))

    async def _work(self, share: Assignment) -> None:
        try:
            await self._process(share)
        except HeadraceError as error:
            self._fail(os.fsdecode(share.path), str(error))
            return
        for key, size_bytes, first, mine in share.segments:
            self._done.add(key, size_bytes, first=first, mine=mine)

    async def _process(self, share: Assignment) -> None:
        files, entry = self._jobs.files, share.entry
        if self.job.kind == "free":
            files.free(entry)
            return
        if self.job.kind == "unpin":
            files.unpin(entry)
            return
        verify = self._options.verify and entry.id not in self._sound
        job = LoadJob(f"{self.job.kind} {self.job.path}", self._options.priority)
        if self.job.kind == "pin":
            await files.pin(entry, share.spans, job=job, verify=verify)
        elif verify:
            await files.load_verified(entry, share.spans, job=job)
        else:
            await files.load(entry, share.spans, job=job)
        files.own(entry)
        if verify:
            self._sound.add(entry.id)

    def _fail(self, path: str, reason: str) -> None:
        self._failed_files += 1
        if len(self._failed) < FAILED_KEPT_MAX:  # records are JSON, but names need not be UTF-8
            self._failed.append((utf8_text(path), utf8_text(reason)))
