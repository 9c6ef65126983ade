"""Run jobs of the whole cluster. Read this module first.

A job is a record that any node may write. Every node follows the records and does its task of each running job: it
loads and pins the files that it owns, and frees and unpins the files that it has. Its progress is a record too, under
its lease. The job is over when all nodes have reported that they are done by the current ring; then the node with the
smallest id writes the end. A job therefore survives the death of any node, including the one that accepted it: other
nodes own the dead node's files now, and start their tasks again.

    submit ─► jobs/7 ─► each node: JobTask ─► jobs/7/parts/<node> ─► all done? ─► the end, in jobs/7

One asyncio task (`_conduct`) handles all records, one after the other. The work itself runs beside it, also while
etcd is unavailable; records that could not be written are written when etcd is back.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import HeadraceError, UsageError
from headrace.base.tasks import OwnedTasks
from headrace.cluster.records import Records
from headrace.jobs.job_records import (
    CANCELLED,
    DONE,
    ENDS,
    FAILED,
    JOBS,
    KINDS,
    RUNNING,
    JobRecord,
    TaskProgress,
    TaskRecord,
    decode_job,
    job_key,
    parse_key,
    ring_mark,
    row_of,
    state_of,
    sum_progress,
    task_key,
)
from headrace.jobs.jobs import FETCHING, Jobs
from headrace.jobs.options import parse_options
from headrace.jobs.pins import Pins
from headrace.jobs.shares import RingShares
from headrace.jobs.task import EVERYWHERE, JobTask
from headrace.ring.view import SEGMENT_BYTES, ClusterView
from headrace.wire.messages import JobRow, JobState

log = logging.getLogger(__name__)

WATCH = "watch"
PUBLISH_INTERVAL_S = 1.0
"""Least seconds between two writes of a task's record, except at its beginning and its end."""
ENDED_KEPT_MAX = 100
"""Most jobs whose records are kept after their end."""
FAILED_NAMED_MAX = 1000
"""Most failed paths that the record of an ended job names."""
WATCH_INTERVAL_S = 0.5
"""Most seconds between two states that a caller receives."""


class _LocalJob:
    """Holds the local state of one job. `shown` is the last progress that included all nodes."""

    def __init__(self) -> None:
        self.raw = b""
        self.record: JobRecord | None = None
        self.tasks: dict[str, TaskRecord] = {}
        self.task: JobTask | None = None
        self.published: TaskRecord | None = None
        self.published_s = float("-inf")
        self.shown = TaskProgress()

    def is_older(self, record: JobRecord, before: bytes) -> bool:
        """Return whether the known record is older than this one, which was written in place of `before`."""
        known = self.record if self.raw else None
        return self.raw == before or (known is not None and _stage_of(known) < _stage_of(record))

    def apply(self, raw: bytes, record: JobRecord) -> None:
        if self.record is not None and self.record.attempt != record.attempt:
            self.shown = TaskProgress()
        self.raw, self.record = raw, record

    async def drop_task(self, records: Records, id: str, me: str) -> None:
        """Stop this node's task of the job, and delete the task's record."""
        if self.task is not None:
            await self.task.stop()
            self.task = None
        if me in self.tasks or self.published is not None:
            await records.delete(task_key(id, me))
            self.tasks.pop(me, None)
            self.published = None


class ClusterJobs:
    """Follows the jobs of the cluster, and runs this node's tasks of them.

    `me` is this node's id. `view` returns the current view; call `on_view` after every change of it. `replicas`
    returns the number of owners of a path. All calls belong on one asyncio loop.
    """

    def __init__(
        self,
        me: str,
        records: Records,
        jobs: Jobs,
        *,
        view: Callable[[], ClusterView],
        replicas: Callable[[bytes], int],
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._me = me
        self._records = records
        self.local = jobs
        self._view = view
        self._replicas = replicas
        self._segment_bytes = segment_bytes
        self.pins = Pins(me, records, jobs, view=view, replicas=replicas, segment_bytes=segment_bytes)
        self._states: dict[str, _LocalJob] = {}
        self._wake = asyncio.Event()
        self._changed = asyncio.Condition()
        self._tasks = OwnedTasks()
        self._away = False
        self._marked = (view().ring, ring_mark(view().ring))

    async def start(self) -> None:
        """Follow the job records and run this node's tasks from now on. Raise ClusterUnavailableError."""
        await self.pins.start()
        await self._records.follow(JOBS, self._on_record)
        self._tasks.start(self._conduct())

    async def stop(self) -> None:
        """Stop this node's tasks. Finished work is kept, and the other nodes continue."""
        await self._tasks.close()
        for state in self._states.values():
            if state.task is not None:
                await state.task.stop()
        await self.pins.stop()

    def on_view(self) -> None:
        """Schedule the changes that a new view needs. Returns at once."""
        self._wake.set()
        self.pins.on_view()

    async def submit(self, kind: str, path: str, options: dict[str, str]) -> str:
        """Write the record of a new job and return its id; the job runs from then on. Raise UsageError,
        PathNotFoundError or ClusterUnavailableError."""
        if kind not in KINDS:
            raise UsageError(f"job kind {kind!r}", why="no such kind", hint="use load, free, pin or unpin")
        parse_options(kind, options)
        data = await self.local.data_of(kind, os.fsencode(path))
        number = max((int(id) for id in self._states if id.isdecimal()), default=0)
        while True:
            number += 1
            record = JobRecord(str(number), kind, path, options, self._me, data=data)
            raw = msgspec.json.encode(record)
            if await self._records.create(job_key(record.id), raw):
                self._on_record(job_key(record.id), raw, before=b"")
                log.info("job submitted id=%s kind=%s path=%s", record.id, kind, path)
                return record.id

    async def states(self, id: str) -> AsyncIterator[JobState]:
        """Yield the job's progress in the whole cluster: at least one state every WATCH_INTERVAL_S, and a last one
        with done=True. A caller that stops iterating cancels nothing. Raise UsageError if the job does not exist."""
        while True:
            record = self._record(id)
            yield state_of(record, self._progress(self._states[id]))
            if record.state in ENDS:
                return
            async with self._changed:
                try:
                    async with asyncio.timeout(WATCH_INTERVAL_S):
                        await self._changed.wait()
                except TimeoutError:
                    pass

    async def run(self, kind: str, path: str, options: dict[str, str]) -> AsyncIterator[JobState]:
        """Submit a job and yield its states; for kind `watch`, yield the states of the job whose id is the path."""
        id = path if kind == WATCH else await self.submit(kind, path, options)
        async for state in self.states(id):
            yield state

    def rows(self, id: str = "") -> list[JobRow]:
        """Return the rows of all known jobs, oldest first, or of one job. Raise UsageError if the job does not
        exist."""
        if id:
            record, state = self._record(id), self._states[id]
            return [row_of(record, self._progress(state), state.tasks)]
        ids = [id for id, state in self._states.items() if state.record is not None]
        return [self.rows(id)[0] for id in sorted(ids, key=_order)]

    async def cancel(self, id: str) -> None:
        """Cancel a job; all nodes stop within a second. Do nothing if it is over. Raise UsageError or
        ClusterUnavailableError."""
        state = self._states[self._record(id).id]

        def cancelled(record: JobRecord) -> JobRecord | None:
            if record.state != RUNNING:
                return None
            summary = self._progress(state)
            return msgspec.structs.replace(record, state=CANCELLED, summary=_ended(summary))

        await self._change(id, cancelled)

    async def retry(self, id: str) -> None:
        """Run a finished job again: only the failed paths if the record names all of them, otherwise everything. Do
        nothing if it is running. Raise UsageError or ClusterUnavailableError."""

        def restarted(record: JobRecord) -> JobRecord | None:
            if record.state == RUNNING:
                return None
            paths = [] if record.data else _failed_paths(record)  # a path names no version
            return msgspec.structs.replace(
                record, state=RUNNING, attempt=record.attempt + 1, paths=paths, summary=None
            )

        self._record(id)
        await self._change(id, restarted)

    # ------------------------------------------------------------ records

    def _record(self, id: str) -> JobRecord:
        state = self._states.get(id)
        if state is None or state.record is None:
            raise UsageError(f"job {id}", why="no such job exists", hint="see `headrace job list`")
        return state.record

    async def _change(self, id: str, change: Callable[[JobRecord], JobRecord | None]) -> None:
        """Apply a change to the current record, and repeat it if another node changes the record meanwhile."""
        while (raw := await self._records.get(job_key(id))) is not None:
            try:
                changed = change(decode_job(id, raw))
            except msgspec.DecodeError as error:
                raise UsageError(f"job {id}", why=f"its record is invalid: {error}") from error
            if changed is None:
                return
            new = msgspec.json.encode(changed)
            if await self._records.replace(job_key(id), raw, new):
                self._on_record(job_key(id), new, before=raw)
                return
        raise UsageError(f"job {id}", why="the job was deleted", hint="see `headrace job list`")

    def _progress(self, state: _LocalJob) -> TaskProgress:
        """Return the sum of all nodes' progress. While nodes restart their tasks for another ring, return the last
        complete sum: a sum over two rings would count some files twice."""
        record = state.record
        assert record is not None
        if record.summary is not None:
            return record.summary
        tasks = self._current_tasks(record, state)
        if len(tasks) == len(self._members(record)):
            state.shown = sum_progress(task.progress for task in tasks)
        return state.shown

    def _members(self, record: JobRecord) -> set[str]:
        view = self._view()
        if record.kind in FETCHING:
            return {member.id for member in view.ring.members}
        return set(view.nodes)

    def _current_tasks(self, record: JobRecord, state: _LocalJob) -> list[TaskRecord]:
        mark, members = self._mark(record.kind), self._members(record)
        return [
            task
            for node, task in state.tasks.items()
            if node in members and task.ring == mark and task.attempt == record.attempt
        ]

    def _mark(self, kind: str) -> str:
        ring = self._view().ring
        if ring is not self._marked[0]:
            self._marked = (ring, ring_mark(ring))
        return self._marked[1] if kind in FETCHING else EVERYWHERE

    def _on_record(self, key: str, value: bytes | None, *, before: bytes | None = None) -> None:
        """Apply a record that was created, changed, or deleted (None). before: this node wrote the record in place of
        that one, and the watch may have reported newer ones already."""
        id, node = parse_key(key)
        state = self._states.setdefault(id, _LocalJob())
        try:
            if node:
                self._on_task_record(state, node, value)
            elif value is None:
                state.raw = b""
            else:
                record = decode_job(id, value)
                if before is None or state.is_older(record, before):
                    state.apply(value, record)
        except (ValueError, RecursionError) as error:
            log.warning("job record is invalid key=%s error=%s", key, error)
        self._wake.set()

    def _on_task_record(self, state: _LocalJob, node: str, value: bytes | None) -> None:
        if value is not None:
            state.tasks[node] = decode_json(value, TaskRecord)
            return
        state.tasks.pop(node, None)
        if node == self._me:
            # The lease or etcd's data was lost: the next round writes the record again.
            state.published = None

    async def _conduct(self) -> None:
        """Handle all jobs in turn. Only this asyncio task starts and stops tasks, and writes records without a
        request."""
        while True:
            running = any(state.task is not None and not state.task.over for state in self._states.values())
            try:
                async with asyncio.timeout(PUBLISH_INTERVAL_S if running or self._away else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            failed = [id for id in list(self._states) if not await self._attempt(id)]
            self._away = bool(failed)
            async with self._changed:
                self._changed.notify_all()

    async def _attempt(self, id: str) -> bool:
        """Reconcile one job. Return False if it must be tried again."""
        try:
            await self._reconcile(id, self._states[id])
        except HeadraceError as error:
            if not self._away:
                log.warning("job records can't be written, the job continues id=%s error=%s", id, error)
            return False
        except Exception:
            log.exception("job reconciliation failed id=%s", id)  # the other jobs must continue
            return False
        return True

    async def _reconcile(self, id: str, state: _LocalJob) -> None:
        """Bring this node's task and its records in line with the record of the job."""
        record, raw = state.record, state.raw
        if record is None or not raw:
            await self._on_deleted(id, state)
        elif record.state != RUNNING:
            await state.drop_task(self._records, id, self._me)
        else:
            await self._ensure_task(record, state)
            await self._publish(id, state)
            await self._end_if_over(record, raw, state)

    async def _on_deleted(self, id: str, state: _LocalJob) -> None:
        """Forget a deleted job. No node deletes a running job: if its record vanished, etcd lost its data, and this
        node writes it again. A job that ended while this node was cut off may be among the oldest, which go."""
        record = state.record
        if record is not None and record.state == RUNNING and not _is_old(id, self._states):
            await self._records.create(job_key(id), msgspec.json.encode(record))
            return
        await state.drop_task(self._records, id, self._me)
        if not state.tasks:
            del self._states[id]

    async def _ensure_task(self, record: JobRecord, state: _LocalJob) -> None:
        """Start this node's task, or restart it if the ring or the attempt has changed."""
        ring, mark = self._view().ring, self._mark(record.kind)  # both change while this task waits
        if self._me not in self._members(record):
            await state.drop_task(self._records, record.id, self._me)
            return
        before = state.task
        is_same_attempt = before is not None and before.job.attempt == record.attempt
        if before is not None and is_same_attempt and before.mark == mark:
            return
        if before is not None:
            await before.stop()
        carried = await before.carried(ring) if before is not None and is_same_attempt else None
        state.published_s = float("-inf")
        state.task = JobTask(
            record,
            self.local,
            RingShares(self._me, ring, self._segment_bytes),
            mark=mark,
            replicas=self._replicas,
            on_change=self._wake.set,
            carried=carried,
        )

    async def _publish(self, id: str, state: _LocalJob) -> None:
        """Write the task's record: at most once a second, and at its beginning and its end at once."""
        task, now_s = state.task, asyncio.get_running_loop().time()
        if task is None:
            return
        written = state.published
        is_new = written is None or (written.ring, written.attempt) != (task.mark, task.job.attempt)
        is_current = not is_new and written is not None and written.done == task.over
        if is_current and (task.over or now_s - state.published_s < PUBLISH_INTERVAL_S):
            return
        record = task.record()
        await self._records.put(task_key(id, self._me), msgspec.json.encode(record), leased=True)
        state.published, state.published_s = record, now_s
        state.tasks[self._me] = record

    async def _end_if_over(self, record: JobRecord, raw: bytes, state: _LocalJob) -> None:
        """Write the end of the job if all tasks are done and this node has the smallest id. raw: the record that this
        round began with; a job that was changed meanwhile isn't over."""
        tasks = self._current_tasks(record, state)
        is_over = len(tasks) == len(self._members(record)) and all(task.done for task in tasks)
        if not is_over or self._me != min(self._view().nodes, default=self._me):
            return
        if record.kind == "pin":  # until now the job itself pinned the files and counted them
            await self.pins.add(record.path, record.options)
        elif record.kind == "unpin":
            await self.pins.remove(record.path)
        summary = sum_progress(task.progress for task in tasks)
        outcome = FAILED if summary.failed_files else DONE
        ended = msgspec.structs.replace(record, state=outcome, summary=_ended(summary))
        new = msgspec.json.encode(ended)
        if await self._records.replace(job_key(record.id), raw, new):
            log.info("job ended id=%s state=%s failed=%d", record.id, outcome, summary.failed_files)
            self._on_record(job_key(record.id), new, before=raw)
            await _prune(self._records, self._states)


async def _prune(records: Records, states: Mapping[str, _LocalJob]) -> None:
    """Delete the records of the oldest jobs that have ended."""
    ended = [id for id, state in states.items() if state.record and state.record.state in ENDS]
    for id in sorted(ended, key=_order)[:-ENDED_KEPT_MAX]:
        await records.delete(job_key(id))


def _is_old(id: str, states: Mapping[str, _LocalJob]) -> bool:
    """Return whether there are as many later jobs as are kept after their end."""
    later = sum(bool(state.raw) for other, state in states.items() if _order(other) > _order(id))
    return later >= ENDED_KEPT_MAX


def _stage_of(record: JobRecord) -> tuple[int, bool]:
    """Return how far a job is. It grows with every change of the record: an attempt ends once, and then the next one
    begins."""
    return record.attempt, record.state in ENDS


def _order(id: str) -> tuple[int, str]:
    return (int(id) if id.isdecimal() else 0, id)


def _ended(summary: TaskProgress) -> TaskProgress:
    return msgspec.structs.replace(
        summary, failed=summary.failed[:FAILED_NAMED_MAX], listing=False, bytes_s=0.0
    )


def _failed_paths(record: JobRecord) -> list[str]:
    """Return the failed paths; empty means the whole job, if it was cancelled or the record does not name every
    failed path exactly."""
    summary = record.summary
    if summary is None or record.state != FAILED or summary.failed_files != len(summary.failed):
        return []
    paths = [path for path, _ in summary.failed]
    return [] if any("\\x" in path for path in paths) else paths
