"""Persist the replicas of a writer that left the cluster, and report to the writer when it returns.

All names stay visible on the other nodes throughout. First the origin gets everything, and earlier listings are
invalidated. Then the writer's record is deleted, so other nodes stop querying its names and list the origin. The
replicas are deleted last, because other nodes may still read from them.

Each replica persists under the preconditions that the writer would have used, so a second replica finds the same bytes
at the origin. A writer that returns first queries all nodes (failback.py). A file that the writer still has as it was
persisted is clean. A writer that was only cut off queries them when the origin has a version that it did not upload.

When the writer returns, its failover begins no more uploads. Those in flight have PUTS_END_S to end, because the origin
may have their objects already: the report must name them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable

from headrace.base import failpoint
from headrace.base.beneath import Root
from headrace.base.errors import HeadraceError
from headrace.base.tasks import OwnedTasks, ended
from headrace.overlay.upper import Upper
from headrace.ring.view import ClusterView
from headrace.wire.peer_messages import FailedOverFile, FailoverReport
from headrace.writeback.replication.placement import ReplicaSetRecords
from headrace.writeback.replication.replica_host import (
    PERSISTED_FILE,
    ReplicaHost,
    forget_persisted,
)
from headrace.writeback.replication.replica_layer import copy_of
from headrace.writeback.sync_journal import JOURNAL_FILE, JournalRecord, SyncJournal
from headrace.writeback.writeback import WriteBack

log = logging.getLogger(__name__)

PUTS_END_S = 5.0
"""Seconds for which uploads in flight may end when their writer returns; half of the limit of its query."""
RETRY_S = 2.0
"""Pause before a failed failover is repeated, in seconds."""
REPLICA_LINGER_S = 3.0
"""Seconds for which replicas stay after the writer's record was deleted, as other nodes may not have seen that yet."""
REPORT_FILES_MAX = 50_000
"""Most files of one report to a writer."""
REPORT_BYTES_MAX = 8 << 20
"""Bytes of one report after which it ends. A node accepts answers of 16 MiB."""
REPORT_ROW_BYTES = 100
"""Bytes of a file in a report without its path and the token of its version, at most."""


class _Run:
    """Hold the failover of one writer. write: persists its replicas now; None before and after. is_ended: the writer
    returned."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.write: WriteBack | None = None
        self.is_ended = False

    @property
    def is_done(self) -> bool:
        return self.task is not None and self.task.done()


class Failover:
    """Persist the replicas of writers that left.

    build: builds the write-back of an upper layer from its directory. on_persisted: called with a writer whose files
    are all persisted; after it no node queries that writer's names. delay_s: seconds for which a writer may be absent.
    """

    def __init__(
        self,
        me: str,
        replica_host: ReplicaHost,
        records: ReplicaSetRecords,
        *,
        view: Callable[[], ClusterView],
        build: Callable[[str], WriteBack],
        on_persisted: Callable[[str], Awaitable[None]],
        delay_s: float,
    ) -> None:
        self._me = me
        self._replica_host = replica_host
        self._records = records
        self._view = view
        self._build = build
        self._on_persisted = on_persisted
        self._delay_s = delay_s
        self._tasks = OwnedTasks()
        self._finishing = OwnedTasks(Exception)
        """Ends by itself: a failover that is cancelled waits for it."""
        self._failovers: dict[str, _Run] = {}
        self._reported: dict[str, list[JournalRecord]] = {}
        """The last report to each writer, until the writer has recorded it."""
        self.files_persisted = 0

    def on_view(self) -> None:
        """Start the delay for writers that left, and end the failover of those that returned."""
        nodes = self._view().nodes
        for writer in self._replica_host.writers():
            if writer in nodes:
                self._end(writer)
            elif writer not in self._failovers:
                run = self._failovers[writer] = _Run()
                run.task = self._tasks.start(self._fail_over(writer, run))

    async def stop(self) -> None:
        await self._tasks.close()

    def status(self) -> dict[str, object]:
        """Return the writers with replicas here, those in failover, and the number of files persisted for them."""
        return {
            "copies_of": self._replica_host.writers(),
            "taking_over": [writer for writer, run in self._failovers.items() if not run.is_done],
            "files_persisted_for_others": self.files_persisted,
        }

    def _end(self, writer: str) -> None:
        """End the failover of a writer, if one runs. Its lock is held until uploads in flight have ended."""
        run = self._failovers.pop(writer, None)
        if run is None or run.task is None:
            return
        run.is_ended = True
        if run.write is None:
            run.task.cancel()
        else:
            run.write.hold_back("the writer is back")
            self._tasks.start(_cancel_later(run.task))

    async def _fail_over(self, writer: str, run: _Run) -> None:
        """Wait for the delay, then persist a writer's replicas, unless they are outdated, and delete them. A failure is
        retried until the writer returns."""
        await asyncio.sleep(self._delay_s)
        last_error = ""
        while True:
            try:
                is_current = await self._records.is_holder(writer, self._me)
                if is_current and self._has_replicas(writer):
                    async with self._replica_host.lock_of(writer):
                        try:
                            await self._persist(writer, run)
                        finally:
                            run.write = None
                    if run.is_ended:
                        return
                    await self._on_persisted(writer)
                    failpoint.hit("failover.cleared")
                    await asyncio.sleep(REPLICA_LINGER_S)
                async with self._replica_host.lock_of(writer):
                    await self._replica_host.forget(writer)
                    self._drop(writer)
                return
            except HeadraceError as error:
                if run.is_ended:
                    return
                if last_error != str(error):
                    last_error = str(error)
                    log.warning(
                        "replicated files of a node that left can't be persisted node=%s error=%s",
                        writer,
                        error,
                    )
            except Exception:
                log.exception("replicated files of a node that left can't be persisted node=%s", writer)
                if run.is_ended:
                    return
            await asyncio.sleep(RETRY_S)

    async def _persist(self, writer: str, run: _Run) -> None:
        """Persist everything in a writer's replicas. The report for the writer is durable before any replica is
        deleted."""
        directory = self._replica_host.folder_of(writer)
        log.warning("a node left the cluster, this replica persists its files node=%s", writer)
        await self._replica_host.forget(writer)
        run.write = write = self._build(directory)
        try:
            await write.start()
            await write.persist(b"/")
        finally:
            await ended(self._finishing.start(self._finish(write, directory)))
        failpoint.hit("failover.persisted")

    async def _finish(self, write: WriteBack, directory: str) -> None:
        """Stop persisting, and record what was persisted. This may be when PUTS_END_S are over, and the report needs
        the record."""
        await write.stop()
        self.files_persisted += write.counts.files_persisted
        _record_persisted(directory)

    def _has_replicas(self, writer: str) -> bool:
        return _is_there(os.path.join(self._replica_host.folder_of(writer), "tree"))

    def _drop(self, writer: str) -> None:
        """Delete a writer's replicas, but not the report for it. They are no replicas any more before their journal is
        deleted: after a crash, the rest of them would be persisted without it, also what others removed since."""
        directory = self._replica_host.folder_of(writer)
        if self._has_replicas(writer):
            os.makedirs(os.path.join(directory, "work"), mode=0o700, exist_ok=True)
            place = Root(os.fsencode(directory)).at(b"/")
            tree, dropped = place / b"tree", place / b"work" / b"dropped"
            dropped.remove_tree()
            tree.rename(dropped)
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            if os.path.isdir(path):
                Root(os.fsencode(directory)).at(b"/" + os.fsencode(name)).remove_tree()
            elif not name.startswith(PERSISTED_FILE):
                os.unlink(path)

    async def report(self, writer: str, *, done: bool) -> FailoverReport:
        """Return the files that this node persisted for a writer. The writer is back, or was cut off; then its replicas
        stay. done: the writer has recorded the last report, and the next one has other files."""
        self._end(writer)
        try:
            return await self._report(writer, done=done)
        finally:
            self.on_view()

    async def _report(self, writer: str, *, done: bool) -> FailoverReport:
        directory = self._replica_host.folder_of(writer)
        path = os.path.join(directory, PERSISTED_FILE)
        async with self._replica_host.lock_of(writer):
            if not _is_there(path):
                return FailoverReport([])
            with contextlib.closing(SyncJournal(path)) as table:
                if done:
                    recorded = [row for row in self._reported.pop(writer, []) if table.get(row.path) == row]
                    table.drop(*(row.path for row in recorded))
                rows = _report_rows(table)
            if not done:
                self._reported[writer] = rows
            elif not rows:
                os.unlink(path)
                if writer in self._view().nodes:
                    forget_persisted(directory)
            reported = [] if done else rows
        return FailoverReport(
            [
                FailedOverFile(row.path, row.inode, row.ctime_ns, row.size_bytes, row.version)
                for row in reported
            ]
        )


def _report_rows(table: SyncJournal) -> list[JournalRecord]:
    """Return the rows of the next report."""
    rows: list[JournalRecord] = []
    size_bytes = 0
    for row in table.rows():
        if len(rows) == REPORT_FILES_MAX or size_bytes >= REPORT_BYTES_MAX:
            break
        if row.is_there:
            rows.append(row)
            size_bytes += REPORT_ROW_BYTES + len(row.path) + len(row.version.token)
    return rows


async def _cancel_later(task: asyncio.Task[None]) -> None:
    """Cancel a failover that has not ended after PUTS_END_S."""
    await asyncio.wait([task], timeout=PUTS_END_S)
    task.cancel()


def _is_there(path: str) -> bool:
    return os.path.exists(path)


def _record_persisted(directory: str) -> None:
    """Record the persisted files by the inode numbers of their writer, which the replicas have. Durable on return.
    Raises OSError."""
    upper = Upper(directory)
    with (
        contextlib.closing(SyncJournal(os.path.join(directory, JOURNAL_FILE))) as known,
        contextlib.closing(SyncJournal(os.path.join(directory, PERSISTED_FILE))) as persisted,
    ):
        for row in known.rows():
            try:
                own = copy_of(upper.at(row.path))
            except OSError as error:  # its writer compares the bytes
                path = os.fsdecode(row.path)
                log.warning("a persisted replica can't be reported path=%s error=%s", path, error)
                continue
            if len(own) == 3 and row.is_there and not row.begun:
                persisted.note(JournalRecord(row.path, *own, row.version))
        persisted.sync()
