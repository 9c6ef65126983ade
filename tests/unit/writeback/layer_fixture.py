"""An upper layer over an origin in memory, with the journal, the index and the store of a node, and what persists it.

A test writes into the layer as a session would, and runs one part of write-back alone. `crash` ends the node as kill -9
does, at a step that `crash_at` names; `reopened` is the next node over the same directory and the same origin.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.base import failpoint
from headrace.base.deadline import Deadline
from headrace.base.errors import PathNotFoundError
from headrace.base.keyed_lock import KeyedLock
from headrace.base.model import Version
from headrace.base.write_modes import WriteModes
from headrace.namespace.mounts import Mount, MountTable
from headrace.namespace.namespace import Namespace
from headrace.namespace.owner_listing import OwnerListingClient
from headrace.node.writing import CacheOfLayer, WriteBackSettings, WriteState, build_write_back
from headrace.origin.memory import MemoryOrigin
from headrace.overlay.marks import set_base
from headrace.overlay.upper import Upper
from headrace.store.store import Store
from headrace.store.volume import Volume
from headrace.writeback.conflicts import ConflictCopies
from headrace.writeback.observers import WriteObserver
from headrace.writeback.preconditions import Preconditions
from headrace.writeback.removal import RemovalPropagator
from headrace.writeback.sync_journal import Conflict, SyncJournal
from headrace.writeback.upload import Uploader
from headrace.writeback.writable_layer import WritableLayer
from headrace.writeback.write_ahead import WriteAhead
from headrace.writeback.writeback import WriteBack
from tests.faulty_origin import FaultyOrigin

LIMIT_S = 20.0


class CrashError(Exception):
    """The process ended at a failpoint."""


def crash_at(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Let the first task that comes to the step end there, and all others at the next step."""
    left = [step]

    def hit(name: str) -> None:
        if name in left:
            left.clear()
        if not left:
            raise CrashError(name)

    monkeypatch.setattr(failpoint, "hit", hit)


class LayerFixture:
    """A node's upper layer. memory: the objects of the origin, as others see and change them. origin: the same as this
    node reaches it, which fails by plan. flush_error: what the disk says to a flush. meant_anew: the paths that a part
    reported as changed."""

    def __init__(
        self,
        folder: Path,
        memory: MemoryOrigin | None = None,
        *,
        modes: str = "back",
        query_replicas: Callable[[bytes], Awaitable[None]] | None = None,
        resolve_version: Callable[[bytes, Version], Awaitable[Version | None]] | None = None,
        shared: OwnerListingClient | None = None,
    ) -> None:
        self.folder = folder
        self.memory = memory or MemoryOrigin("truth")
        self.origin = FaultyOrigin(self.memory)
        volume = Volume(0, str(folder / "volume"), 64 << 20)
        self.store = Store.open(str(folder / "volume/index"), [volume], boot_id="1")
        self.namespace = Namespace.build(
            self.store.index, MountTable(), timeout_s=LIMIT_S, on_changed=lambda _: None, shared=shared
        )
        self.namespace.mount_points.attach(Mount("/", self.memory.url, self.origin, 3600.0))
        self.upper = Upper(str(folder / "volume/upper"))
        self.upper.make()
        self.journal = SyncJournal(str(folder / "volume/upper/known.db"))
        self._threads = ThreadPoolExecutor(4)
        self._is_closed = False
        self.flush_error: OSError | None = None
        ahead = WriteAhead(self._flush, self._threads)
        self.layer = WritableLayer(self.upper, self.journal, WriteModes.parse(modes), ahead, self._threads)
        self.meant_anew: list[bytes] = []
        self.state = WriteState.of(
            self.namespace, self.layer, query_replicas=query_replicas, resolve_version=resolve_version
        )
        self.conflicts = ConflictCopies(
            self.namespace, self.upper, self.journal, on_written=self.meant_anew.extend
        )
        self.uploads = Uploader(
            self.namespace, self.layer, self.preconditions, self.conflicts, limit_s=lambda _: LIMIT_S
        )
        self.removals = RemovalPropagator(
            self.namespace,
            self.layer,
            self.preconditions,
            self.conflicts,
            KeyedLock(),
            limit_s=LIMIT_S,
            on_written=self.meant_anew.extend,
        )

    @property
    def preconditions(self) -> Preconditions:
        return self.state.preconditions

    def write_back(
        self, *observers: WriteObserver, delay_s: float = 60.0, layer_bytes_max: int = 1 << 30
    ) -> WriteBack:
        """Build the whole of write-back over this layer, as a node does."""
        settings = WriteBackSettings(delay_s=delay_s, timeout_s=LIMIT_S, layer_bytes_max=layer_bytes_max)
        return build_write_back(self.state, settings, observers, cache=CacheOfLayer(self.store))

    @asynccontextmanager
    async def running(self, write: WriteBack) -> AsyncIterator[WriteBack]:
        """Run write-back, which closes the layer at its end."""
        await write.start()
        try:
            yield write
        finally:
            await write.stop()
            self._is_closed = True

    def _flush(self) -> None:
        """Flush nothing: no test here takes the power away."""
        if self.flush_error is not None:
            raise self.flush_error

    # ------------------------------------------------------------ the layer

    def write(self, path: bytes, data: bytes) -> os.stat_result:
        """Write a file in place, with what its name hides, as a session does."""
        self.upper.at(os.path.dirname(path)).make_directories(0o755)
        fd = self.upper.at(path).open(os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.write(fd, data)
            return os.fstat(fd)
        finally:
            os.close(fd)

    def write_over(self, path: bytes, data: bytes, base: Version) -> os.stat_result:
        """Write a file that replaces a version of the origin's, as after a copy up."""
        self.write(path, data)
        set_base(self.upper.at(path), path, base)
        return self.upper.at(path).lstat()

    def content(self, path: bytes) -> bytes:
        with open(self.upper.at(path).open(os.O_RDONLY), "rb") as file:
            return file.read()

    def names(self, directory: bytes = b"/") -> list[bytes]:
        return sorted(self.upper.names(directory))

    def kept(self) -> list[Conflict]:
        """Return the conflicts that users see."""
        return self.journal.conflicts()

    # ------------------------------------------------------------ the origin

    async def hold(self, path: bytes, data: bytes) -> Version:
        """Have another client put a file, and list its directory here."""
        version = self.memory.hold(os.fsdecode(path[1:]), data)
        await self.listed(path)
        return version

    async def listed(self, path: bytes) -> None:
        """List a path's directory anew."""
        self.namespace.changes.expire(b"/")
        directory = await self.namespace.resolver.resolve(os.path.dirname(path))
        await self.namespace.listings.relist(directory.id)

    async def origin_bytes(self, path: bytes) -> bytes | None:
        """Return what the origin has at a path; None if it has no object there."""
        version = await self.origin_version(path)
        if version is None or not version.size_bytes:
            return None if version is None else b""
        arrived = await self.memory.read_range(
            os.fsdecode(path[1:]), 0, version.size_bytes, version=version, deadline=Deadline.after(LIMIT_S)
        )
        return bytes(arrived.body)

    async def origin_version(self, path: bytes) -> Version | None:
        try:
            info = await self.memory.head(os.fsdecode(path[1:]), deadline=Deadline.after(LIMIT_S))
        except PathNotFoundError:
            return None
        return info.version

    # ------------------------------------------------------------ life

    def crash(self) -> None:
        """End as kill -9 does: nothing is synced or marked."""
        self._threads.shutdown(wait=True)
        if not self._is_closed:
            self.journal.close()
            self.upper.close()
        self.store.index.close(clean=False)
        for volume in self.store.volumes:
            volume.close()

    async def reopened(self) -> LayerFixture:
        """End as kill -9 does, with all tasks of the node, and return the next node."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.layer.write_ahead.stop()  # a flush that was due soon would begin without threads
        self.crash()
        return LayerFixture(self.folder, self.memory)
