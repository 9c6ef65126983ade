"""Run the read path of one node over an origin in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from headrace.base.model import BLOCK_SIZE_BYTES, Entry, FileId
from headrace.base.tiers import MEMORY
from headrace.dataplane.concurrency import Gate, Window
from headrace.dataplane.read import ReadPath
from headrace.dataplane.settings import ReadSettings
from headrace.dataplane.source import SourceFactory
from headrace.namespace.mounts import Mount, MountTable
from headrace.namespace.namespace import Namespace
from headrace.origin.memory import MemoryOrigin
from headrace.store.groups import OneGroup, SpaceDivision
from headrace.store.planned_choice import NoPlans, PlannedChoice
from headrace.store.space import SpaceRules
from headrace.store.store import Store
from headrace.store.volume import Volume

MIB = BLOCK_SIZE_BYTES


class ReadPathFixture:
    memory_bytes = 0
    """The size of a tier in memory; 0: there is none."""

    def __init__(
        self,
        folder: Path,
        *,
        capacity_bytes: int = 64 * MIB,
        boot_id: str = "1",
        origin: MemoryOrigin | None = None,
        verify_origin: bool = True,
        planned: PlannedChoice | None = None,
        division: SpaceDivision | None = None,
        spill_folder: str | None = None,
    ) -> None:
        self.origin = origin or MemoryOrigin("reads")
        volumes = [Volume(0, str(folder / "v"), capacity_bytes)]
        if self.memory_bytes:
            volumes.append(Volume(1, str(folder / "memory"), self.memory_bytes, MEMORY))
        self.store = Store.open(
            str(folder / "v/index"),
            volumes,
            rules=SpaceRules(
                planned=planned or NoPlans(),
                divide=lambda _: division or OneGroup(),
                sinks=len(volumes) > 1,
            ),
            boot_id=boot_id,
            spill=(spill_folder, folder.name) if spill_folder else None,
        )
        mounts = MountTable()
        self.namespace = Namespace.build(self.store.index, mounts, timeout_s=5, on_changed=lambda _: None)
        self.namespace.mount_points.attach(Mount("/", "memory://", self.origin, 3600.0))
        self.disk = ThreadPoolExecutor(2)
        self.whole: list[int] = []
        self.damaged: list[int] = []
        settings = ReadSettings(
            range_bytes=2 * MIB,
            small_file_bytes_max=MIB,
            readahead_bytes=MIB,
            whole_file_after_bytes=64 * MIB,
            verify_origin=verify_origin,
        )
        self.gate = Gate(Window(maximum=8), bytes_max=64 * MIB)
        self.sources = SourceFactory(self.gate, timeout_s=5)
        self.reads = ReadPath(
            self.namespace,
            self.store,
            self.sources,
            self.disk,
            settings,
            on_complete=self.whole.extend,
            on_damaged=self._damaged,
        )
        self.store.space.evicted.add(self.reads.forget)
        self.heard: list[object] = []

    async def _damaged(self, ids: list[FileId]) -> None:
        self.damaged += ids

    async def entry(self, name: str) -> Entry:
        return await self.namespace.resolver.resolve(b"/" + name.encode())

    def content(self, id: FileId) -> bytes:
        return Path(self.store.volumes[0].data_path(id)).read_bytes()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.heard.append(context))
        try:
            yield self
        finally:
            await self.reads.close()
            self.disk.shutdown()
            self.store.close()
        assert not self.heard
