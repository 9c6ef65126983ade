"""Jobs of the whole cluster. Open this first.

A job is a record, which any node may write; every node follows them, and does its part of each that runs: of load and
pin what it owns, of free and unpin what it has. What it did is a record too, under its lease. The job is over when all
nodes have said so for the ring that there is; then the node with the smallest id writes the end. So it survives the
death of any node, the one that took it included: others own what a dead one owned, and their parts begin anew.

    submit ─► jobs/7 ─► each node: JobTask ─► jobs/7/parts/<node> ─► all done? ─► the end, in jobs/7

All that is done about records is done by one task (`_conduct`), one after the other; the work itself goes on beside it,
also while etcd is away: what could not be written is written when it is back.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import HeadraceError, UsageError
from headrace.cluster.records import Records
from headrace.jobs.job_records import (
    CANCELLED,
    DONE,
    ENDS,
    FAILED,
    JOBS,
    RUNNING,
    JobRecord,
    TaskProgress,
    TaskRecord,
    job_key,
    parse_key,
    part_key,
    ring_mark,
    row_of,
    state_of,
    together,
)
from headrace.jobs.jobs import FETCHING, Jobs
from headrace.jobs.options import parse_options
from headrace.jobs.pins import Pins
from headrace.jobs.task import EVERYWHERE, JobTask
from headrace.ring.view import SEGMENT_BYTES, ClusterView
from headrace.wire.messages import JobRow, JobState

log = logging.getLogger(__name__)

KINDS = ("load", "free", "pin", "unpin")
WATCH = "watch"
PUBLISH_INTERVAL_S = 1.0
ENDED_KEPT_MAX = 100
FAILED_NAMED_MAX = 1000
WATCH_INTERVAL_S = 0.5


class _Known:
    """What this node knows of a job. shown: the last figures that were whole."""

    def __init__(self) -> None:
        self.raw = b""
        self.record: JobRecord | None = None
        self.parts: dict[str, TaskRecord] = {}
        self.part: JobTask | None = None
        self.published: TaskRecord | None = None
        self.published_s = float("-inf")
        self.shown = TaskProgress()


class ClusterJobs:
    """me: this node's id. view: the current one; tell every change of it by `on_view`. replicas: that the cluster
    keeps. One asyncio loop."""

    def __init__(
        self,
        me: str,
        records: Records,
        jobs: Jobs,
        *,
        view: Callable[[], ClusterView],
        replicas: int,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._me = me
        self._records = records
        self._jobs = jobs
        self._view = view
        self._replicas = replicas
        self._segment_bytes = segment_bytes
        self.pins = Pins(me, records, jobs, view=view, replicas=replicas, segment_bytes=segment_bytes)
        self._known: dict[str, _Known] = {}
        self._wake = asyncio.Event()
        self._changed = asyncio.Condition()
        self._work: asyncio.Task[None] | None = None
        self._away = False
        self._marked = (view().ring, ring_mark(view().ring))

    async def start(self) -> None:
        """Takes part in what runs from now on. ClusterUnavailableError."""
        await self.pins.start()
        await self._records.follow(JOBS, self._heard)
        self._work = asyncio.ensure_future(self._conduct())

    async def stop(self) -> None:
        """What is done stays done; the other nodes go on."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        for known in self._known.values():
            if known.part is not None:
                await known.part.stop()
        await self.pins.stop()

    def on_view(self) -> None:
        """After a change of the view; returns at once."""
        self._wake.set()
        self.pins.on_view()

    async def submit(self, kind: str, path: str, options: dict[str, str]) -> str:
        """The job's id; it runs, and is in the cluster's records. UsageError, PathNotFoundError,
        ClusterUnavailableError."""
        if kind not in KINDS:
            raise UsageError(f"job kind {kind!r}", why="unknown", hint="load, free, pin or unpin")
        parse_options(kind, options)
        await self._jobs.namespace.resolve(os.fsencode(path))
        number = max((int(id) for id in self._known if id.isdecimal()), default=0)
        while True:
            number += 1
            record = JobRecord(str(number), kind, path, options, self._me)
            raw = msgspec.json.encode(record)
            if await self._records.create(job_key(record.id), raw):
                self._heard(job_key(record.id), raw)
                log.info("job submitted id=%s kind=%s path=%s", record.id, kind, path)
                return record.id

    async def states(self, id: str) -> AsyncIterator[JobState]:
        """Of the whole cluster: one at least every WATCH_INTERVAL_S, the last with done=True. Whoever stops iterating
        cancels nothing. UsageError: no such job."""
        while True:
            record = self._record(id)
            yield state_of(record, self._figures(self._known[id]))
            if record.state in ENDS:
                return
            async with self._changed:
                try:
                    async with asyncio.timeout(WATCH_INTERVAL_S):
                        await self._changed.wait()
                except TimeoutError:
                    pass

    async def run(self, kind: str, path: str, options: dict[str, str]) -> AsyncIterator[JobState]:
        """`submit`, or for kind watch the job whose id is the path, and its states."""
        id = path if kind == WATCH else await self.submit(kind, path, options)
        async for state in self.states(id):
            yield state

    def rows(self, id: str = "") -> list[JobRow]:
        """All that are known, the oldest first; or the one. UsageError: no such job."""
        if id:
            record, known = self._record(id), self._known[id]
            return [row_of(record, self._figures(known), known.parts)]
        ids = [one for one, known in self._known.items() if known.record is not None]
        return [self.rows(one)[0] for one in sorted(ids, key=_order)]

    async def cancel(self, id: str) -> None:
        """All nodes stop within a second; nothing where it is over. UsageError, ClusterUnavailableError."""
        known = self._known[self._record(id).id]

        def ended(record: JobRecord) -> JobRecord | None:
            if record.state != RUNNING:
                return None
            summary = self._figures(known)
            return msgspec.structs.replace(record, state=CANCELLED, summary=_ended(summary))

        await self._change(id, ended)

    async def retry(self, id: str) -> None:
        """What failed, where all of it is named; else all. Nothing where it runs. UsageError,
        ClusterUnavailableError."""

        def again(record: JobRecord) -> JobRecord | None:
            if record.state == RUNNING:
                return None
            paths = _failed_paths(record)
            return msgspec.structs.replace(
                record, state=RUNNING, attempt=record.attempt + 1, paths=paths, summary=None
            )

        self._record(id)
        await self._change(id, again)

    # ------------------------------------------------------------ inside

    def _record(self, id: str) -> JobRecord:
        known = self._known.get(id)
        if known is None or known.record is None:
            raise UsageError(f"job {id}", why="there is none", hint="see `headrace job list`")
        return known.record

    async def _change(self, id: str, change: Callable[[JobRecord], JobRecord | None]) -> None:
        """Of what the record is now, however often others change it meanwhile."""
        while (raw := await self._records.get(job_key(id))) is not None:
            try:
                changed = change(decode_json(raw, JobRecord))
            except msgspec.DecodeError as error:
                raise UsageError(f"job {id}", why=f"its record is not understood: {error}") from error
            if changed is None:
                return
            new = msgspec.json.encode(changed)
            if await self._records.replace(job_key(id), raw, new):
                self._heard(job_key(id), new)
                return
        raise UsageError(f"job {id}", why="it is gone", hint="see `headrace job list`")

    def _figures(self, known: _Known) -> TaskProgress:
        """While nodes begin anew by another ring, the last whole figures: sums over two rings count some twice."""
        record = known.record
        assert record is not None
        if record.summary is not None:
            return record.summary
        parts = self._current_parts(record, known)
        if len(parts) == len(self._members(record)):
            known.shown = together(part.figures for part in parts)
        return known.shown

    def _members(self, record: JobRecord) -> set[str]:
        view = self._view()
        if record.kind in FETCHING:
            return {member.id for member in view.ring.members}
        return set(view.nodes)

    def _current_parts(self, record: JobRecord, known: _Known) -> list[TaskRecord]:
        mark, members = self._mark(record.kind), self._members(record)
        return [
            part
            for node, part in known.parts.items()
            if node in members and part.ring == mark and part.attempt == record.attempt
        ]

    def _mark(self, kind: str) -> str:
        ring = self._view().ring
        if ring is not self._marked[0]:
            self._marked = (ring, ring_mark(ring))
        return self._marked[1] if kind in FETCHING else EVERYWHERE

    def _heard(self, key: str, value: bytes | None) -> None:
        """A record is there, or another one, or gone."""
        id, node = parse_key(key)
        known = self._known.setdefault(id, _Known())
        try:
            if node:
                self._heard_part(known, node, value)
            elif value is None:
                known.raw = b""
            else:
                record = decode_json(value, JobRecord)
                if known.record is not None and known.record.attempt != record.attempt:
                    known.shown = TaskProgress()
                known.raw, known.record = value, record
        except (ValueError, RecursionError) as error:
            log.warning("job record not understood key=%s error=%s", key, error)
        self._wake.set()

    def _heard_part(self, known: _Known, node: str, value: bytes | None) -> None:
        if value is not None:
            known.parts[node] = decode_json(value, TaskRecord)
            return
        known.parts.pop(node, None)
        if node == self._me:
            known.published = None  # the lease was lost, or etcd's data: it is written again

    async def _conduct(self) -> None:
        """The only one that starts and stops parts, and that writes what is not asked for."""
        while True:
            running = any(known.part is not None and not known.part.over for known in self._known.values())
            try:
                async with asyncio.timeout(PUBLISH_INTERVAL_S if running or self._away else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            failed = [id for id in list(self._known) if not await self._attended(id)]
            self._away = bool(failed)
            async with self._changed:
                self._changed.notify_all()

    async def _attended(self, id: str) -> bool:
        """False: it must be tried again."""
        try:
            await self._attend(id, self._known[id])
        except HeadraceError as error:
            if not self._away:
                log.warning("a job can't write what it did, and goes on id=%s error=%s", id, error)
            return False
        except Exception:
            log.exception("a job was not attended to id=%s", id)  # the others must go on
            return False
        return True

    async def _attend(self, id: str, known: _Known) -> None:
        record = known.record
        if record is None or not known.raw:
            await self._gone(id, known)
        elif record.state != RUNNING:
            await self._let_go(id, known)
        else:
            await self._run_part(record, known)
            await self._publish(id, known)
            await self._end_if_over(record, known)

    async def _gone(self, id: str, known: _Known) -> None:
        """Nobody deletes a job that runs: it was lost with etcd's data, and is put there again."""
        record = known.record
        if record is not None and record.state == RUNNING:
            await self._records.create(job_key(id), msgspec.json.encode(record))
            return
        if known.part is not None:
            await known.part.stop()
        if not known.parts:
            del self._known[id]

    async def _let_go(self, id: str, known: _Known) -> None:
        if known.part is not None:
            await known.part.stop()
            known.part = None
        if self._me in known.parts or known.published is not None:
            await self._records.delete(part_key(id, self._me))
            known.parts.pop(self._me, None)
            known.published = None

    async def _run_part(self, record: JobRecord, known: _Known) -> None:
        ring = self._view().ring
        if self._me not in self._members(record):
            await self._let_go(record.id, known)
            return
        before = known.part
        again = before is not None and before.job.attempt == record.attempt
        if before is not None and again and before.mark == self._mark(record.kind):
            return
        if before is not None:
            await before.stop()
        carried = await before.carried(ring) if before is not None and again else None
        known.published_s = float("-inf")
        known.part = JobTask(
            self._me,
            record,
            self._jobs,
            ring=ring,
            mark=self._mark(record.kind),
            replicas=self._replicas,
            segment_bytes=self._segment_bytes,
            on_change=self._wake.set,
            carried=carried,
        )

    async def _publish(self, id: str, known: _Known) -> None:
        """Once a second, and at the beginning and the end at once."""
        part, now_s = known.part, asyncio.get_running_loop().time()
        if part is None:
            return
        written = known.published
        fresh = written is None or (written.ring, written.attempt) != (part.mark, part.job.attempt)
        same = not fresh and written is not None and written.done == part.over
        if same and (part.over or now_s - known.published_s < PUBLISH_INTERVAL_S):
            return
        record = part.record()
        await self._records.put(part_key(id, self._me), msgspec.json.encode(record), leased=True)
        known.published, known.published_s = record, now_s
        known.parts[self._me] = record

    async def _end_if_over(self, record: JobRecord, known: _Known) -> None:
        parts = self._current_parts(record, known)
        whole = len(parts) == len(self._members(record)) and all(part.done for part in parts)
        if not whole or self._me != min(self._view().nodes, default=self._me):
            return
        if record.kind == "pin":  # only now: until then the job itself does it, and counts what it did
            await self.pins.add(record.path, record.options)
        elif record.kind == "unpin":
            await self.pins.remove(record.path)
        summary = together(part.figures for part in parts)
        state = FAILED if summary.failed_files else DONE
        ended = msgspec.structs.replace(record, state=state, summary=_ended(summary))
        new = msgspec.json.encode(ended)
        if await self._records.replace(job_key(record.id), known.raw, new):
            log.info("job ended id=%s state=%s failed=%d", record.id, state, summary.failed_files)
            self._heard(job_key(record.id), new)
            await self._prune()

    async def _prune(self) -> None:
        ended = [id for id, known in self._known.items() if known.record and known.record.state in ENDS]
        for id in sorted(ended, key=_order)[:-ENDED_KEPT_MAX]:
            await self._records.delete(job_key(id))


def _order(id: str) -> tuple[int, str]:
    return (int(id) if id.isdecimal() else 0, id)


def _ended(summary: TaskProgress) -> TaskProgress:
    return msgspec.structs.replace(
        summary, failed=summary.failed[:FAILED_NAMED_MAX], listing=False, bytes_s=0.0
    )


def _failed_paths(record: JobRecord) -> list[str]:
    """Empty, which means all of it: where it was cancelled, or not every failure is named as its origin does."""
    summary = record.summary
    if summary is None or record.state != FAILED or summary.failed_files != len(summary.failed):
        return []
    paths = [path for path, _ in summary.failed]
    return [] if any("\\x" in path for path in paths) else paths
