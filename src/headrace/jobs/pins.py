"""Keep the cluster's pins: every node pins the files that it owns at and below the pinned paths, now and later.

A record `pins/<path>` exists for each path that was pinned or unpinned. The record with the longest path above a file
decides. An unpinned path keeps its record, with pinned=False. A record that disappears was therefore lost with etcd's
data, and a node that knows it writes it again. After a change of the members or of a name, the node reconciles the
paths that are affected.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import HeadraceError
from headrace.base.model import Entry, FileId
from headrace.base.namespace_path import is_at_or_below
from headrace.base.priority import Priority
from headrace.base.tasks import OwnedTasks
from headrace.cluster.records import Records
from headrace.jobs.files import LoadJob
from headrace.jobs.job_records import Count
from headrace.jobs.jobs import Jobs
from headrace.jobs.shares import RingShares
from headrace.jobs.walk import walk
from headrace.ring.view import ClusterView

log = logging.getLogger(__name__)

PREFIX = "pins"
AT_ONCE = 16
"""Most files that are pinned at a time."""
RETRY_S = 60.0
"""Seconds before failed pins are retried."""


class PinRecord(msgspec.Struct, frozen=True):
    """Describes the pin of a path. `replicas` is the number of owners that pin each file; 0 means as many as the
    cluster keeps."""

    pinned: bool
    replicas: Count = 0


class Pins:
    """Follows the pins of the cluster, and applies them to this node's files. ClusterJobs has one. All calls belong on
    one asyncio loop."""

    def __init__(
        self,
        me: str,
        records: Records,
        jobs: Jobs,
        *,
        view: Callable[[], ClusterView],
        replicas: Callable[[bytes], int],
        segment_bytes: int,
    ) -> None:
        self._me = me
        self._records = records
        self._jobs = jobs
        self._view = view
        self._replicas = replicas
        self._segment_bytes = segment_bytes
        self._pins: dict[str, PinRecord] = {}
        self._lost: set[str] = set()
        self._todo: set[str] = set()
        self._wake = asyncio.Event()
        self._tasks = OwnedTasks()

    async def start(self) -> None:
        """Follow the pin records and keep the pins from now on. Raise ClusterUnavailableError."""
        await self._records.follow(f"{PREFIX}/", self._on_record)
        self._tasks.start(self._conduct())

    async def stop(self) -> None:
        await self._tasks.close()

    async def add(self, path: str, options: dict[str, str]) -> None:
        """Write the record of a pinned path. Raise ClusterUnavailableError."""
        await self._put(path, PinRecord(pinned=True, replicas=int(options.get("replicas", "0"))))

    async def remove(self, path: str) -> None:
        """Unpin a path and everything below it. Raise ClusterUnavailableError."""
        for pinned in [pin for pin in self._pins if pin != path and is_at_or_below(pin, path)]:
            await self._put(pinned, PinRecord(pinned=False))
        if self.of(path) is not None:
            await self._put(path, PinRecord(pinned=False))

    def of(self, path: str) -> PinRecord | None:
        """Return the record that decides for a file; None if the file is not pinned."""
        above = [pin for pin in self._pins if is_at_or_below(path, pin)]
        record = self._pins[max(above, key=len)] if above else None
        return record if record is not None and record.pinned else None

    def copies(self, path: bytes) -> int:
        """Return how many owners the pin of a file asks for; 0 without a pin, and for one that leaves it to others."""
        record = self.of(os.fsdecode(path))
        return 0 if record is None else record.replicas

    def on_view(self) -> None:
        """Reconcile all pinned paths after a change of the members or of the numbers of copies."""
        self._schedule(path for path, record in self._pins.items() if record.pinned)

    def names_changed(self, names: Iterable[tuple[FileId, bytes]]) -> None:
        """Pin the new versions of pinned files. `names` are (parent, name) whose meaning changed."""
        if not any(record.pinned for record in self._pins.values()):
            return
        index = self._jobs.store.index
        for parent, name in names:
            directory = index.path_of(parent)
            if directory is None:
                continue
            path = os.fsdecode(directory.rstrip(b"/") + b"/" + name)
            if self.of(path) is not None and index.lookup(parent, name) is not None:
                self._schedule([path])

    def _schedule(self, paths: Iterable[str]) -> None:
        self._todo.update(paths)
        self._wake.set()

    async def _put(self, path: str, record: PinRecord) -> None:
        if self._pins.get(path) == record:
            return
        await self._records.put(f"{PREFIX}{path}", msgspec.json.encode(record))
        self._pins[path] = record
        self._schedule([path])

    def _on_record(self, key: str, value: bytes | None) -> None:
        path = key.removeprefix(PREFIX)
        if value is None:
            self._lost.add(path)
            self._wake.set()
            return
        try:
            record = decode_json(value, PinRecord)
        except msgspec.DecodeError as error:
            log.warning("pin record is invalid path=%s error=%s", path, error)
            return
        if self._pins.get(path) != record:
            self._pins[path] = record
            self._schedule([path])

    async def _conduct(self) -> None:
        timeout_s: float | None = None
        while True:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            todo, self._todo = self._todo, set()
            lost, self._lost = self._lost, set()
            failed: set[str] = set()
            for path in sorted(todo):
                if not await self._attempt(self._reconcile, path):
                    failed.add(path)
            for path in sorted(lost):
                if not await self._attempt(self._restore, path):
                    self._lost.add(path)
            self._todo |= failed
            timeout_s = RETRY_S if failed or self._lost else None

    async def _attempt(self, work: Callable[[str], Awaitable[bool]], path: str) -> bool:
        """Do the work for one path. Return False if it must be done again."""
        try:
            return await work(path)
        except Exception:
            log.exception("pins can't be kept path=%s", path)  # those of other paths must be
            return False

    async def _restore(self, path: str) -> bool:
        record = self._pins.get(path)
        if record is None:
            return True
        try:
            await self._records.create(f"{PREFIX}{path}", msgspec.json.encode(record))
        except HeadraceError as error:
            log.warning("lost pin record not restored path=%s error=%s", path, error)
            return False
        return True

    async def _reconcile(self, path: str) -> bool:
        """Pin the files that this node owns at and below a path, and unpin the others. Return False if some
        failed."""
        failed: list[str] = []
        jobs, slots = self._jobs, asyncio.Semaphore(AT_ONCE)

        def fail(name: str, reason: str) -> None:
            failed.append(name)
            log.warning("pin failed path=%s reason=%s", name, reason)

        async def apply(name: bytes, entry: Entry) -> None:
            try:
                await self._apply(name, entry)
            except HeadraceError as error:
                fail(os.fsdecode(name), str(error))
            finally:
                slots.release()

        try:
            top = await jobs.namespace.resolver.resolve(os.fsencode(path))
        except FileNotFoundError:
            return False  # removed at its origin, or not mounted here yet: retry later
        except HeadraceError as error:
            fail(path, str(error))
            return False
        async with asyncio.TaskGroup() as group:
            async for name, entry in walk(
                jobs.namespace.listings, jobs.store.index, top, fresh=True, failed=fail
            ):
                await slots.acquire()
                group.create_task(apply(name, entry))
        return not failed

    async def _apply(self, path: bytes, entry: Entry) -> None:
        files, record = self._jobs.files, self.of(os.fsdecode(path))
        shares = RingShares(self._me, self._view().ring, self._segment_bytes)
        share = None if record is None else shares.of(path, entry, record.replicas or self._replicas(path))
        if share is None:
            if files.is_pinned(entry):
                files.unpin(entry)
            return
        if files.is_pinned(entry) and files.is_whole(entry):
            return
        await files.pin(entry, share.spans, job=LoadJob("pins", Priority.LOW), verify=False)
        files.own(entry)
