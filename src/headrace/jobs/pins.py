"""What the cluster keeps pinned: every node pins what it owns at and below the pinned paths, now and later.

Records `pins/<path>`, one where a path was pinned or unpinned; the longest path above a file decides. A path that was
unpinned leaves its record, as pinned=False: a record that is not there any more was lost with etcd's data, and is
written again by whoever knows it. After a change of the members, or of a name, the node goes over what it concerns.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import HeadraceError
from headrace.base.model import Entry, FileId
from headrace.cluster.records import Records
from headrace.jobs.files import Span
from headrace.jobs.job_records import Count
from headrace.jobs.jobs import Jobs
from headrace.jobs.options import Priority
from headrace.jobs.walk import walk
from headrace.ring.ring import key_of
from headrace.ring.view import ClusterView

log = logging.getLogger(__name__)

PREFIX = "pins"
AT_ONCE = 16
AGAIN_S = 60.0
"""What could not be pinned is tried again after this long."""


class PinRecord(msgspec.Struct, frozen=True):
    """replicas: owners that pin it; 0: as many as the cluster keeps."""

    pinned: bool
    replicas: Count = 0


class Pins:
    """See ClusterJobs, which has one. One asyncio loop."""

    def __init__(
        self,
        me: str,
        records: Records,
        jobs: Jobs,
        *,
        view: Callable[[], ClusterView],
        replicas: int,
        segment_bytes: int,
    ) -> None:
        self._me = me
        self._records = records
        self._jobs = jobs
        self._view = view
        self._replicas = replicas
        self._segment_bytes = segment_bytes
        self._here: dict[str, PinRecord] = {}
        self._lost: set[str] = set()
        self._todo: set[str] = set()
        self._wake = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """ClusterUnavailableError."""
        await self._records.follow(f"{PREFIX}/", self._heard)
        self._work = asyncio.ensure_future(self._keep())

    async def stop(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def add(self, path: str, options: dict[str, str]) -> None:
        """In the records on return. ClusterUnavailableError."""
        await self._put(path, PinRecord(pinned=True, replicas=int(options.get("replicas", "0"))))

    async def remove(self, path: str) -> None:
        """Of a path and all below it. ClusterUnavailableError."""
        for known in [one for one in self._here if one != path and _is_at(path, one)]:
            await self._put(known, PinRecord(pinned=False))
        if self.of(path) is not None:
            await self._put(path, PinRecord(pinned=False))

    def of(self, path: str) -> PinRecord | None:
        """What is said of a file; None where it is not pinned."""
        above = [one for one in self._here if _is_at(one, path)]
        found = self._here[max(above, key=len)] if above else None
        return found if found is not None and found.pinned else None

    def on_view(self) -> None:
        """After a change of the members."""
        self._look_at(path for path, record in self._here.items() if record.pinned)

    def names_changed(self, names: Iterable[tuple[FileId, bytes]]) -> None:
        """(parent, name) that mean something else than before: a new version of what is pinned is pinned."""
        if not any(record.pinned for record in self._here.values()):
            return
        index = self._jobs.store.index
        for parent, name in names:
            folder = index.path_of(parent)
            if folder is None:
                continue
            path = os.fsdecode(folder.rstrip(b"/") + b"/" + name)
            if self.of(path) is not None and index.lookup(parent, name) is not None:
                self._look_at([path])

    def _look_at(self, paths: Iterable[str]) -> None:
        self._todo.update(paths)
        self._wake.set()

    async def _put(self, path: str, record: PinRecord) -> None:
        if self._here.get(path) == record:
            return
        await self._records.put(f"{PREFIX}{path}", msgspec.json.encode(record))
        self._here[path] = record
        self._look_at([path])

    def _heard(self, key: str, value: bytes | None) -> None:
        path = key.removeprefix(PREFIX)
        if value is None:
            self._lost.add(path)
            self._wake.set()
            return
        try:
            record = decode_json(value, PinRecord)
        except msgspec.DecodeError as error:
            log.warning("pin record not understood path=%s error=%s", path, error)
            return
        if self._here.get(path) != record:
            self._here[path] = record
            self._look_at([path])

    async def _keep(self) -> None:
        again_s: float | None = None
        while True:
            try:
                async with asyncio.timeout(again_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            todo, self._todo = self._todo, set()
            lost, self._lost = self._lost, set()
            failed: set[str] = set()
            for path in sorted(todo):
                if not await self._go_over(path):
                    failed.add(path)
            for path in sorted(lost):
                if not await self._put_back(path):
                    self._lost.add(path)
            self._todo |= failed
            again_s = AGAIN_S if failed or self._lost else None

    async def _put_back(self, path: str) -> bool:
        record = self._here.get(path)
        if record is None:
            return True
        try:
            await self._records.create(f"{PREFIX}{path}", msgspec.json.encode(record))
        except HeadraceError as error:
            log.warning("pin not put back path=%s error=%s", path, error)
            return False
        return True

    async def _go_over(self, path: str) -> bool:
        """Pins what this node owns at and below a path, unpins what it doesn't. False when some of it failed."""
        failed: list[str] = []
        jobs, turns = self._jobs, asyncio.Semaphore(AT_ONCE)

        def fail(name: str, reason: str) -> None:
            failed.append(name)
            log.warning("not pinned path=%s reason=%s", name, reason)

        async def one(name: bytes, entry: Entry) -> None:
            try:
                await self._settle(name, entry)
            except HeadraceError as error:
                fail(os.fsdecode(name), str(error))
            finally:
                turns.release()

        try:
            top = await jobs.namespace.resolve(os.fsencode(path))
        except FileNotFoundError:
            return False  # it went at its origin, or its mount is not here yet: looked at again
        except HeadraceError as error:
            fail(path, str(error))
            return False
        async with asyncio.TaskGroup() as group:
            async for name, entry in walk(jobs.namespace, jobs.store.index, top, fresh=True, failed=fail):
                await turns.acquire()
                group.create_task(one(name, entry))
        return not failed

    async def _settle(self, path: bytes, entry: Entry) -> None:
        files, record = self._jobs.files, self.of(os.fsdecode(path))
        spans = [] if record is None else self._owned(path, entry, record.replicas or self._replicas)
        if not spans:
            if files.is_pinned(entry):
                files.unpin(entry)
            return
        if files.is_pinned(entry) and files.is_whole(entry):
            return
        whole = sum(end - start for start, end in spans) == entry.version.size_bytes
        await files.pin(entry, () if whole else spans, priority=Priority.LOW, verify=False)
        files.own(entry)

    def _owned(self, path: bytes, entry: Entry, replicas: int) -> list[Span]:
        size_bytes, step, ring = entry.version.size_bytes, self._segment_bytes, self._view().ring
        return [
            (start, min(size_bytes, start + step))
            for start in range(0, max(1, size_bytes), step)
            if any(member.id == self._me for member in ring.owners(key_of(path, start // step), replicas))
        ]


def _is_at(above: str, path: str) -> bool:
    """Whether a path is at or below another."""
    return path == above or path.startswith(above.rstrip("/") + "/")
