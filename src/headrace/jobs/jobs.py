"""Run the jobs of one node over a prefix: load, free, pin, unpin, sync, fsck.

Jobs of a cluster are in `jobs/cluster_jobs.py`, which uses the same building blocks. A job is an async iterator of
JobState: at least one state every REPORT_INTERVAL_S, and a last one with done=True. A caller that stops iterating
cancels the job; finished work is kept. A job whose result was just made can't be cancelled: a caller that is cancelled
then still gets the last state.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial

from headrace.base.errors import (
    CancelledByUserError,
    HeadraceError,
    PathNotFoundError,
    StoreError,
    UsageError,
)
from headrace.base.model import Entry, FileId, Kind
from headrace.base.tasks import OwnedTasks
from headrace.base.write_modes import WriteModes
from headrace.dataplane.read import ReadPath
from headrace.jobs.auto_seal import AutoSeal, AutoSealRules
from headrace.jobs.automatic_seals import AutomaticSeals
from headrace.jobs.files import FileWork, LoadJob
from headrace.jobs.lazy_seals import LazySeals
from headrace.jobs.missing_files import MissingFiles
from headrace.jobs.named_digests import NamedDigests
from headrace.jobs.options import JobOptions, parse_options
from headrace.jobs.progress import FileAction, JobProgress, each_file
from headrace.jobs.seal import Sealing
from headrace.jobs.sealed_walk import SealedWalk
from headrace.jobs.shared_seals import SharedSeals
from headrace.jobs.walk import walk
from headrace.namespace.namespace import Namespace
from headrace.policy.current import CurrentPolicy
from headrace.seal.catalogue import Catalogue, SealId
from headrace.store.fsck import Fault
from headrace.store.schema import CachedFile
from headrace.store.store import Store
from headrace.wire.messages import JobState

REPORT_INTERVAL_S = 0.25
"""Seconds between two states of a running job."""

FETCHING = ("load", "pin")
"""Kinds that fetch missing files; the others walk only the names in the index."""
SEALED_KIND = "load"
"""A seal can be loaded by its path. Whoever wants to keep its files pulls it."""
SEAL_KINDS = ("seal", "complete-seal", "unseal", "verify-seal", "push-seal", "pull-seal")
KINDS = ("load", "free", "pin", "unpin", "sync", "fsck", *SEAL_KINDS)


class Jobs:
    """Runs the jobs of this node.

    Checks of cached files run in `disk`, each in one thread. `on_damaged` makes the clients of this host drop the bytes
    of files that are wrong. `catalogue` has the node's seals. `modes` names the directories that users can write, which
    can't be sealed. auto_seal: None: only commands seal.
    """

    def __init__(
        self,
        namespace: Namespace,
        store: Store,
        reads: ReadPath,
        disk: Executor,
        *,
        catalogue: Catalogue,
        modes: WriteModes,
        on_damaged: Callable[[list[FileId]], Awaitable[None]],
        auto_seal: AutoSealRules | None = None,
    ) -> None:
        self.namespace = namespace
        self.store = store
        self.files = FileWork(store, reads, disk)
        missing = MissingFiles(catalogue, store)
        self.sealing = Sealing(namespace, store, self.files, catalogue, disk, modes=modes, missing=missing)
        self.lazy_seals = LazySeals(namespace, store, self.files, catalogue, self.sealing, missing)
        self.shared_seals = SharedSeals(namespace, store, self.sealing, catalogue)
        self.sealed_walk = SealedWalk(namespace, store, self.shared_seals)
        self.auto_seal = AutoSeal(
            namespace,
            AutomaticSeals(namespace, self.sealing, catalogue, disk),
            auto_seal or AutoSealRules(CurrentPolicy()),
            relist=lambda path: self._sync(path, JobProgress()),
        )
        self._disk = disk
        self._on_damaged = on_damaged

    async def run(self, kind: str, path: str, options: dict[str, str]) -> AsyncIterator[JobState]:
        """Run a job and yield its states. Raise UsageError for an unknown kind or option, PathNotFoundError for an
        unknown path."""
        progress = JobProgress()
        async with OwnedTasks(Exception) as tasks:
            work = tasks.start(self._start(kind, os.fsencode(path), options, progress))
            try:
                while not (await asyncio.wait([work], timeout=REPORT_INTERVAL_S))[0]:
                    yield progress.state(done=False)
            except (asyncio.CancelledError, GeneratorExit) as ending:
                progress.cancel()
                await tasks.close()
                has_failed = not work.cancelled() and work.exception() is not None
                if progress.is_final and not has_failed and isinstance(ending, asyncio.CancelledError):
                    yield progress.state(done=True)  # too late: its result stays, and the caller must know it
                raise
            work.result()
            progress.listing = False
            yield progress.state(done=True)

    async def _start(self, kind: str, path: bytes, options: dict[str, str], progress: JobProgress) -> None:
        if kind not in KINDS:
            raise UsageError(f"job kind {kind!r}", why="no such kind", hint=f"use one of {', '.join(KINDS)}")
        parsed = parse_options(kind, options)
        if parsed.replicas > 1:
            raise UsageError(
                f"{kind} --replicas", why="this node belongs to no cluster", hint="leave the option out"
            )
        if parsed.seal is not None:
            await self._seal(kind, path, parsed.seal, progress, lazy=parsed.lazy)
        elif kind == "fsck":
            await self._fsck(progress)
        elif kind == "sync":
            await self._sync(path, progress)
        else:
            if kind == "free":
                await self.auto_seal.revoke(path, "some of its files were freed")
            await self._each_file(path, self._action(kind, path, parsed), progress, kind)

    def _action(self, kind: str, path: bytes, options: JobOptions) -> FileAction:
        files, job = self.files, LoadJob(f"{kind} {os.fsdecode(path)}", options.priority)

        async def load(entry: Entry) -> int:
            return await (files.load_verified if options.verify else files.load)(entry, job=job)

        async def pin(entry: Entry) -> int:
            return await files.pin(entry, job=job, verify=options.verify)

        async def unpin(entry: Entry) -> int:
            return files.unpin(entry)

        async def free(entry: Entry) -> int:
            return files.free(entry)

        return {"load": load, "pin": pin, "unpin": unpin, "free": free}[kind]

    async def _each_file(self, path: bytes, action: FileAction, progress: JobProgress, kind: str) -> None:
        walked = await self._walk(path, progress, kind)

        async def files() -> AsyncIterator[tuple[bytes, Entry]]:
            async for file in walked:
                progress.files_total += 1
                progress.bytes_total += file[1].version.size_bytes
                yield file
            progress.listing = False

        await each_file(files(), action, progress)

    async def data_of(self, kind: str, path: bytes) -> dict[str, str]:
        """Return the id of the seal that a job's path is in, by its name; nothing for a plain path. Raises
        PathNotFoundError."""
        sealed = await self.sealed_walk.find(path) if kind == SEALED_KIND else None
        if sealed is not None:
            return sealed.data
        await self.namespace.resolver.resolve(path)
        return {}

    async def _walk(
        self, path: bytes, progress: JobProgress, kind: str
    ) -> AsyncIterator[tuple[bytes, Entry]]:
        """Return the files of a job. Raises PathNotFoundError."""
        sealed = await self.sealed_walk.find(path) if kind == SEALED_KIND else None
        if sealed is not None:
            progress.data = sealed.data
            return self.sealed_walk.files(sealed, progress.add_failure)
        top, fresh = await self.namespace.resolver.resolve(path), kind in FETCHING
        return walk(self.namespace.listings, self.store.index, top, fresh=fresh, failed=progress.add_failure)

    async def _seal(self, kind: str, path: bytes, seal: SealId, progress: JobProgress, *, lazy: bool) -> None:
        if kind == "seal":
            await self.sealing.make(path, seal, progress, lazy=lazy)
        elif kind == "complete-seal":
            await self.lazy_seals.complete(seal, progress)
        elif kind == "unseal":
            await self.sealing.remove(seal, progress)
        elif kind == "push-seal":
            await self.shared_seals.push(seal, progress)
        elif kind == "pull-seal":
            await self.shared_seals.pull(seal, "" if path == b"/" else os.fsdecode(path), progress)
        else:
            await self._verify(seal, progress)

    async def _verify(self, seal: SealId, progress: JobProgress) -> None:
        try:
            await self.sealing.verify(seal, progress)
        except PathNotFoundError:  # this node has not sealed it, but an origin may have it
            await self.sealed_walk.verify(seal, progress)

    async def _sync(self, path: bytes, progress: JobProgress) -> None:
        """List again every directory at and below a path that was ever listed."""
        pending: list[FileId] = [(await self.namespace.resolver.resolve(path)).id]
        while pending:
            directory = pending.pop()
            if self.store.index.fresh_until_ns(directory) == 0:
                continue  # never listed: the first access lists it
            try:
                await self.namespace.listings.refresh(directory)
                progress.files_done += 1
            except HeadraceError as error:
                path_of = self.store.index.path_of(directory)
                if path_of is None:
                    continue  # removed meanwhile
                progress.add_failure(os.fsdecode(path_of), str(error))
            pending.extend(e.id for e in self.store.index.children(directory) if e.kind is Kind.DIRECTORY)

    def _origin_of(self, cached: CachedFile) -> str:
        path = self.store.index.path_of(cached.id)
        location = None if path is None else self.namespace.tree.mounts.find(path)
        return "" if location is None else location[0].url

    def _free_mismatched(self, digests: NamedDigests) -> list[Fault]:
        wrong = [cached for cached in digests.wrong() if self.store.index.cached(cached.id) == cached]
        for cached in wrong:
            with suppress(StoreError):  # its record is gone, and a disk that fails keeps the file
                self.store.free(cached.id)
        why = "the bytes do not match the checksum that the origin names; the file was removed from the cache"
        return [(cached.id, why) for cached in wrong]

    async def _fsck(self, progress: JobProgress) -> None:
        stop = threading.Event()
        progress.listing = False
        store = self.store
        digests = NamedDigests(
            self._origin_of, lambda cached: store.volumes[cached.volume].data_path(cached.id)
        )

        def report_progress(files: int, files_total: int, size_bytes: int, bytes_total: int) -> None:
            if stop.is_set():
                raise CancelledByUserError("fsck")
            progress.files_done, progress.files_total = files, max(files, files_total)
            progress.bytes_done, progress.bytes_total = size_bytes, max(size_bytes, bytes_total)

        try:
            check = partial(self.store.fsck, report_progress, digests.compare)
            report = await asyncio.get_running_loop().run_in_executor(self._disk, check)
        finally:
            stop.set()
        faults = [*report.faults, *self._free_mismatched(digests)]
        if faults:
            await self._on_damaged([id for id, _ in faults])
        for id, reason in faults:
            path = self.store.index.path_of(id)
            progress.add_failure(f"cache file {id:x}" if path is None else os.fsdecode(path), reason)
        for problem in report.problems:
            progress.add_failure("the cache", problem)
