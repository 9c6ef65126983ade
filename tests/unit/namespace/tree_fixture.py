"""Run a namespace over origins in memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from headrace.base.deadline import Deadline
from headrace.base.errors import OriginUnavailableError
from headrace.base.model import FileId, ObjectInfo
from headrace.namespace.mounts import Mount, MountTable
from headrace.namespace.namespace import Namespace
from headrace.origin.memory import MemoryOrigin
from headrace.origin.origin import ListPage
from headrace.store.index import Index


class GatedOrigin(MemoryOrigin):
    """Listings wait before each page while the gate is closed; or fail after the first page. hangs: all other calls
    wait while the gate is closed, too."""

    def __init__(self, name: str = "", page_size: int = 2) -> None:
        super().__init__(name, page_size=page_size)
        self.gate = asyncio.Event()
        self.gate.set()
        self.listings = 0
        self.broken = False
        self.hangs = False

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        if self.hangs:
            await self.gate.wait()
        return await super().head(key, deadline=deadline)

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        self.listings += 1
        async for page in super().list_directory(key, deadline=deadline):
            yield page
            if self.broken:
                raise OriginUnavailableError(key, why="the test says so")
            await self.gate.wait()


class NamespaceFixture:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changed: list[tuple[FileId, bytes]] = []
        self.on_changed: Callable[[list[tuple[FileId, bytes]]], None] = self.changed.extend
        self.restart()

    def report(self, names: list[tuple[FileId, bytes]]) -> None:
        self.on_changed(names)

    def restart(self) -> None:
        self.index = Index.open(str(self.folder), writable=True)
        self.mounts = MountTable()
        self.namespace = Namespace.build(self.index, self.mounts, timeout_s=5, on_changed=self.report)

    def attach(self, path: str, origin: MemoryOrigin, interval_s: float = 3600.0) -> None:
        self.namespace.mount_points.attach(Mount(path, origin.url, origin, interval_s))

    async def names(self, path: str) -> list[str]:
        directory = await self.namespace.resolver.resolve(os.fsencode(path))
        await self.namespace.listings.list(directory.id)
        return [os.fsdecode(entry.name) for entry in self.index.children(directory.id)]


def origin_with(*keys: str) -> MemoryOrigin:
    origin = MemoryOrigin()
    for key in keys:
        origin.hold(key, key.encode())
    return origin
