"""Answer programs of other users: descriptors of cache files, and what is at a path.

`answer_now` handles, on the node's loop, all requests that need no wait: a warm open is some lookups in the index
and one open(2). Otherwise `answer` first waits for listings and bytes. Clients get descriptors of cache files only.
These files belong to the node's user. So a client can't reopen a descriptor for writing (/proc/self/fd), take leases
on the file or change its mode.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from headrace.base.errors import (
    CorruptIndexError,
    EvictedError,
    HeadraceError,
    IsADirectoryPathError,
    PathNotFoundError,
    StaleIdError,
    StoreError,
    VersionChangedError,
)
from headrace.base.model import Entry, FileId
from headrace.base.tasks import OwnedTasks
from headrace.dataplane.read import ReadPath
from headrace.entry.broker.access import READ, User, may
from headrace.entry.broker.view import StaleError, View, not_allowed, short_token
from headrace.namespace.namespace import Namespace
from headrace.store.reader import CacheReader
from headrace.store.store import Store
from headrace.wire.broker_messages import (
    Answer,
    BrokerRefusal,
    ListNames,
    LookAt,
    Looked,
    OpenedFile,
    OpenedFiles,
    OpenFiles,
    Request,
    UpperFile,
    refusal_of,
)

ATTEMPTS_MAX = 32
"""Attempts to open a file that is replaced or evicted each time."""

_Opened = tuple[OpenedFile | UpperFile | BrokerRefusal, int]
"""The descriptor is -1 when the answer has none."""


class Reply:
    """Holds an answer and its descriptors, which `close` closes."""

    def __init__(self, answer: Answer, fds: list[int] | None = None) -> None:
        self.answer = answer
        self.fds = fds or []

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []


class BrokerService:
    """Answers requests with the rights of their user. on_corrupt: called when the index is damaged."""

    def __init__(
        self,
        view: View,
        namespace: Namespace,
        store: Store,
        reads: ReadPath,
        *,
        on_corrupt: Callable[[CorruptIndexError], None],
    ) -> None:
        self._view = view
        self._namespace = namespace
        self._store = store
        self._reads = reads
        self._on_corrupt = on_corrupt
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="broker")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def answer_now(self, request: Request, user: User) -> Reply | None:
        """Return the answer, or None when `answer` must wait for something."""
        try:
            if isinstance(request, OpenFiles):
                return self._open_now(request, user)
            if isinstance(request, ListNames) and self._view.may_be_long(request.path):
                return None
            return Reply(self._answer_query(request, user))
        except StaleError:
            return None
        except CorruptIndexError as error:
            self._on_corrupt(error)
            return Reply(refusal_of(error))
        except HeadraceError as error:
            return Reply(refusal_of(error))

    async def answer(self, request: Request, user: User) -> Reply:
        """Return the answer; wait for listings and for bytes from peers or the origin."""
        try:
            if isinstance(request, OpenFiles):
                return await self._open_all(request, user)
            for _ in range(ATTEMPTS_MAX):
                try:
                    if isinstance(request, ListNames):
                        # a directory in the upper layer may have any number of names
                        answer = partial(self._answer_query, request, user)
                        return Reply(await asyncio.get_running_loop().run_in_executor(self._thread, answer))
                    return Reply(self._answer_query(request, user))
                except StaleError as stale:
                    await self._freshen(stale)
            raise StoreError(
                os.fsdecode(request.path),
                why=f"it changed {ATTEMPTS_MAX} times during the lookup",
                hint="try again",
            )
        except CorruptIndexError as error:
            self._on_corrupt(error)
            return Reply(refusal_of(error))
        except HeadraceError as error:
            return Reply(refusal_of(error))

    def _answer_query(self, request: LookAt | ListNames, user: User) -> Answer:
        if isinstance(request, ListNames):
            return self._view.names(request.path, request.after, user)
        return Looked(self._view.row(self._view.find(request.path, user)))

    async def _freshen(self, stale: StaleError) -> None:
        """Refresh a stale listing as mounts and the library do. A listing that became fresh meanwhile is not fetched
        again."""
        if stale.name is None:
            await self._namespace.listings.list(stale.directory.id)
        else:
            await self._namespace.resolver.lookup(stale.directory.id, stale.name)
            if not self._namespace.tree.is_fresh(stale.directory.id):
                await self._namespace.listings.list(stale.directory.id)

    # ------------------------------------------------------------ opening

    def _open_now(self, request: OpenFiles, user: User) -> Reply | None:
        """Open all files without waiting, or return None and open none."""
        reply = Reply(OpenedFiles([]))
        files: list[OpenedFile | UpperFile | BrokerRefusal] = []
        try:
            for path in request.paths:
                opened = self._open_one_now(path, request.start, request.end, user)
                if opened is None:
                    reply.close()
                    return None
                files.append(opened[0])
                if opened[1] >= 0:
                    reply.fds.append(opened[1])
        except BaseException:
            reply.close()
            raise
        reply.answer = OpenedFiles(files)
        return reply

    def _open_one_now(self, path: bytes, start: int, end: int, user: User) -> _Opened | None:
        try:
            entry = self._readable(path, user)
            if isinstance(entry, UpperFile):
                return entry, -1
            return self._open_cached(entry, start, end)
        except CorruptIndexError:
            raise
        except HeadraceError as error:
            return refusal_of(error), -1

    def _readable(self, path: bytes, user: User) -> Entry | UpperFile:
        """Return what is at the path. Raise StaleError, and the errors of `View.find`."""
        entry = self._view.find(path, user)
        if entry.is_directory:
            raise IsADirectoryPathError(os.fsdecode(path), why="it is a directory")
        if not may(user, self._view.modes(entry), READ):
            raise not_allowed(path)
        if entry.upper is not None:
            return UpperFile()
        assert entry.lower is not None
        return entry.lower

    def _open_cached(self, entry: Entry, start: int, end: int) -> _Opened | None:
        """Open the cache file, or return None when the range is not completely cached."""
        cached = self._store.index.cached(entry.id)
        if cached is None or cached.unverified or cached.volume >= len(self._store.volumes):
            return None
        try:
            reader = CacheReader.open(self._store.volumes[cached.volume].folder, cached)
        except PathNotFoundError:
            return None
        try:
            if not reader.present(start, min(end, entry.version.size_bytes)):
                return None
            self._store.touch([entry.id])
            self._namespace.refresh_ahead.note_opens([entry.id])
            return _opened(entry, is_complete=reader.complete), os.dup(reader.fd)
        finally:
            reader.close()

    async def _open_all(self, request: OpenFiles, user: User) -> Reply:
        """Open all files concurrently and wait for all."""
        tasks = OwnedTasks(HeadraceError)
        opens = [
            tasks.start(self._open_one(path, request.start, request.end, user)) for path in request.paths
        ]
        try:
            await tasks.wait()
            opened = [task.result() for task in opens]
        except BaseException:
            await tasks.close()
            for result in await asyncio.gather(*opens, return_exceptions=True):
                if isinstance(result, tuple) and result[1] >= 0:
                    os.close(result[1])
            raise
        return Reply(OpenedFiles([file for file, _ in opened]), [fd for _, fd in opened if fd >= 0])

    async def _open_one(self, path: bytes, start: int, end: int, user: User) -> _Opened:
        try:
            for _ in range(ATTEMPTS_MAX):
                try:
                    opened = self._open_one_now(path, start, end, user)
                    if opened is not None:
                        return opened
                    entry = self._readable(path, user)
                    assert isinstance(entry, Entry)
                    await self._fill(entry, start, end)
                except StaleError as stale:
                    await self._freshen(stale)
                except (StaleIdError, VersionChangedError):
                    continue  # the file was replaced: look it up again
            raise EvictedError(
                os.fsdecode(path),
                why=f"it was replaced or evicted {ATTEMPTS_MAX} times while it was opened",
                hint="give the cache more capacity",
            )
        except CorruptIndexError:
            raise
        except HeadraceError as error:
            return refusal_of(error), -1

    async def _fill(self, entry: Entry, start: int, end: int) -> None:
        file_id, fill_end = FileId(entry.id), min(end, entry.version.size_bytes)
        if not await self._reads.open(file_id) and start < fill_end:
            await self._reads.fill(file_id, start, fill_end)


def _opened(entry: Entry, *, is_complete: bool) -> OpenedFile:
    version = entry.version
    return OpenedFile(entry.id, version.size_bytes, entry.mtime_ns, short_token(version.token), is_complete)
