"""Several nodes' runners in one process: one store each, one origin, records that they share."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from headrace.base.errors import ClusterUnavailableError
from headrace.base.model import BLOCK_SIZE_BYTES, Arrived, Entry
from headrace.base.write_modes import WriteModes
from headrace.cluster.records import Records
from headrace.dataplane.concurrency import Gate, Window
from headrace.dataplane.read import ReadPath
from headrace.dataplane.settings import ReadSettings
from headrace.dataplane.source import SourceFactory
from headrace.jobs.cluster_jobs import ClusterJobs
from headrace.jobs.jobs import Jobs
from headrace.namespace.mounts import Mount, MountTable
from headrace.namespace.namespace import Namespace
from headrace.origin.memory import MemoryOrigin
from headrace.origin.origin import Origin
from headrace.ring.view import SEGMENT_BYTES, ClusterView, NodeInfo, next_view
from headrace.seal.catalogue import Catalogue
from headrace.store.store import Store
from headrace.store.volume import Volume
from headrace.testing.waiting import until
from headrace.wire.messages import JobRow, JobState

MIB = BLOCK_SIZE_BYTES


class CountingOrigin(MemoryOrigin):
    """reads: by key, in the order of `order`. hold_after: so many reads are answered, the others wait for `release`."""

    def __init__(self) -> None:
        super().__init__("jobs")
        self.reads: Counter[str] = Counter()
        self.order: list[str] = []
        self.hold_after: int | None = None
        self.released = asyncio.Event()
        self.held = asyncio.Event()

    async def read_range(self, key: str, start: int, end: int, **rest: Any) -> Arrived:
        if self.hold_after is not None and len(self.order) >= self.hold_after:
            self.held.set()
            await self.released.wait()
        self.reads[key] += 1
        self.order.append(key)
        return await super().read_range(key, start, end, **rest)

    def release(self) -> None:
        self.hold_after = None
        self.released.set()


class SharedRecords:
    """Holds in memory what etcd has: changes are reported later, in order, to each that follows."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.leases: dict[str, str] = {}
        self.followers: list[tuple[str, Callable[[str, bytes | None], None]]] = []
        self.puts: Counter[str] = Counter()
        self.away = False

    def of(self, node: str) -> RecordsOfNode:
        return RecordsOfNode(self, node)

    def expire(self, node: str) -> None:
        """The node's lease is over."""
        for key in [key for key, owner in self.leases.items() if owner == node]:
            self.change(key, None)

    def lose(self) -> None:
        for key in list(self.values):
            self.change(key, None)

    def change(self, key: str, value: bytes | None, *, lease: str = "") -> None:
        self.leases.pop(key, None)
        if value is None:
            if self.values.pop(key, None) is None:
                return
        else:
            self.values[key] = value
            self.puts[key] += 1
            if lease:
                self.leases[key] = lease
        for prefix, callback in self.followers:
            if key.startswith(prefix):
                asyncio.get_running_loop().call_soon(callback, key, value)


class RecordsOfNode:
    def __init__(self, shared: SharedRecords, node: str) -> None:
        self._shared = shared
        self._node = node

    def _check(self) -> None:
        if self._shared.away:
            raise ClusterUnavailableError("etcd", why="away by plan")

    async def get(self, key: str) -> bytes | None:
        self._check()
        return self._shared.values.get(key)

    async def list(self, prefix: str) -> dict[str, bytes]:
        self._check()
        return {key: value for key, value in self._shared.values.items() if key.startswith(prefix)}

    async def put(self, key: str, value: bytes, leased: bool = False) -> None:
        await asyncio.sleep(0)
        self._check()
        self._shared.change(key, value, lease=self._node if leased else "")

    async def create(self, key: str, value: bytes, leased: bool = False) -> bool:
        await asyncio.sleep(0)
        self._check()
        if key in self._shared.values:
            return False
        self._shared.change(key, value, lease=self._node if leased else "")
        return True

    async def replace(self, key: str, old: bytes, new: bytes, *, leased: bool = False) -> bool:
        await asyncio.sleep(0)
        self._check()
        if self._shared.values.get(key) != old:
            return False
        self._shared.change(key, new)
        return True

    async def delete(self, key: str, *, unless: str = "", only: bytes | None = None) -> None:
        self._check()
        if unless not in self._shared.values and only in (None, self._shared.values.get(key)):
            self._shared.change(key, None)

    async def follow(self, prefix: str, callback: Callable[[str, bytes | None], None]) -> None:
        self._check()
        for key, value in self._shared.values.items():
            if key.startswith(prefix):
                callback(key, value)
        self._shared.followers.append((prefix, callback))


class Runner:
    """One node."""

    def __init__(self, world: JobClusterFixture, id: str, records: Records) -> None:
        self.world = world
        self.id = id
        folder = world.folder / id
        self.store = Store.open(str(folder / "index"), [Volume(0, str(folder), 256 * MIB)])
        self.disk = ThreadPoolExecutor(2)
        self.namespace = Namespace.build(
            self.store.index,
            MountTable(),
            timeout_s=5,
            on_changed=lambda names: self.jobs.pins.names_changed(names),
        )
        self.namespace.mount_points.attach(Mount("/", "memory://", world.outer, 3600.0))
        settings = ReadSettings(
            range_bytes=2 * MIB,
            small_file_bytes_max=MIB,
            readahead_bytes=MIB,
            whole_file_after_bytes=64 * MIB,
        )
        gate = Gate(Window(maximum=8), bytes_max=64 * MIB)
        self.reads = ReadPath(
            self.namespace,
            self.store,
            SourceFactory(gate, timeout_s=5),
            self.disk,
            settings,
            on_complete=lambda _: None,
            on_damaged=lambda _: asyncio.sleep(0),
        )
        self.store.space.evicted.add(self.reads.forget)
        self.jobs = ClusterJobs(
            id,
            records,
            Jobs(
                self.namespace,
                self.store,
                self.reads,
                self.disk,
                catalogue=Catalogue.of_cache(str(folder)),
                modes=WriteModes.parse(""),
                on_damaged=lambda _: asyncio.sleep(0),
            ),
            view=lambda: world.view,
            replicas=lambda path: world.replicas,
            segment_bytes=world.segment_bytes,
        )

    async def has(self, name: str) -> bool:
        """The whole file is cached, as the origin has it."""
        entry = await self.entry(name)
        cached = self.store.index.cached(entry.id)
        if cached is None or not cached.complete:
            return False
        assert self.path_of(entry).read_bytes() == self.world.bodies[name]
        return True

    def path_of(self, entry: Entry) -> Path:
        return Path(self.store.volumes[0].data_path(entry.id))

    async def entry(self, name: str) -> Entry:
        return await self.namespace.resolver.resolve(b"/" + name.encode())

    async def is_pinned(self, name: str) -> bool:
        cached = self.store.index.cached((await self.entry(name)).id)
        return cached is not None and cached.pinned

    async def close(self) -> None:
        await self.jobs.stop()
        await self.reads.close()
        self.disk.shutdown()
        self.store.close()


class JobClusterFixture:
    """Several nodes that run jobs. `wrap` wraps the origin, for faults."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: str = "abc",
        replicas: int = 1,
        segment_bytes: int = SEGMENT_BYTES,
        records: Callable[[str], Records] | None = None,
    ) -> None:
        self.folder = folder
        self.replicas = replicas
        self.segment_bytes = segment_bytes
        self.origin = CountingOrigin()
        self.outer: Origin = self.origin
        self.records = SharedRecords()
        self.records_of: Callable[[str], Records] = records or self.records.of
        self.bodies: dict[str, bytes] = {}
        self.view = self._view_of(nodes, None)
        self.runners: dict[str, Runner] = {}
        self.heard: list[object] = []

    def _view_of(self, ids: str, before: ClusterView | None) -> ClusterView:
        infos = {id: NodeInfo(id, id, f"{id}:1", "", 256 * MIB, "0", 1) for id in ids}
        return next_view(before, infos, epoch=before.epoch + 1 if before else 1)

    async def start(self, ids: str) -> None:
        for id in ids:
            self.runners[id] = Runner(self, id, self.records_of(id))
            await self.runners[id].jobs.start()

    async def join(self, ids: str) -> None:
        await self.start(ids)
        self.see("".join(self.view.nodes) + ids)

    async def kill(self, id: str) -> None:
        """It stops without a word; then its lease is over."""
        await self.runners.pop(id).close()
        self.records.expire(id)
        self.see("".join(node for node in self.view.nodes if node != id))

    def see(self, ids: str) -> None:
        self.view = self._view_of(ids, self.view)
        for runner in self.runners.values():
            runner.jobs.on_view()

    def put(self, name: str, body: bytes) -> None:
        self.bodies[name] = body
        self.origin.hold(name, body)

    def put_many(self, count: int, *, folder: str = "d") -> list[str]:
        names = [f"{folder}/{number:03}" for number in range(count)]
        for number, name in enumerate(names):
            self.put(name, os.urandom(1000 + number))
        return names

    def owners(self, name: str, copies: int = 1, segment: int = 0) -> list[str]:
        return [owner.id for owner in self.view.owners(b"/" + name.encode(), segment, replicas=copies)]

    async def end_of(self, node: str, id: str) -> JobState:
        """Return how it ended, as a node reports it, which hears of the job within a second."""
        await until(lambda: id in {row.id for row in self.runners[node].jobs.rows()})
        async for state in self.runners[node].jobs.states(id):
            assert state.files_done <= state.files_total or state.listing
            last = state
        assert last.done
        return last

    async def until(self, node: str, id: str, wanted: Callable[[JobRow], bool]) -> JobRow:
        await until(lambda: id in {row.id for row in self.runners[node].jobs.rows()})
        async for _ in self.runners[node].jobs.states(id):
            (row,) = self.runners[node].jobs.rows(id)
            if wanted(row):
                return row
        raise AssertionError(f"job {id} is over, and was never so: {row}")

    async def agree(self, id: str) -> JobRow:
        """All nodes tell the same of a job that is over."""
        for node in self.runners:
            await self.end_of(node, id)
        rows = [runner.jobs.rows(id)[0] for runner in self.runners.values()]
        outcomes = {(row.state, row.files_done, row.bytes_done, row.failed_files) for row in rows}
        assert len(outcomes) == 1, outcomes
        return rows[0]

    async def check_loaded(self, names: list[str], copies: int = 1) -> None:
        """Each is with its owners, and with nobody else."""
        for name in names:
            having = {id for id, runner in self.runners.items() if await runner.has(name)}
            assert having == set(self.owners(name, copies)), name

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.heard.append(context))
        try:
            await self.start("".join(self.view.nodes))
            yield self
        finally:
            self.origin.release()
            for runner in self.runners.values():
                await runner.close()
        assert not self.heard, self.heard
