"""Run several nodes without sockets: each calls the others' services directly."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, OriginUnavailableError, PeerError
from headrace.base.model import Arrived, Entry, FileId
from headrace.base.promotion import Promotion
from headrace.dataplane.cluster_source import ClusterSourceFactory
from headrace.dataplane.concurrency import Gate, Window
from headrace.dataplane.fresh_copies import FreshCopies
from headrace.dataplane.intent import FOREGROUND
from headrace.dataplane.peer_reader import PeerReader
from headrace.dataplane.peer_service import NodePeerService
from headrace.dataplane.read import ReadPath
from headrace.dataplane.rebalance import Rebalance
from headrace.dataplane.settings import ReadSettings
from headrace.namespace.mounts import Mount, MountTable
from headrace.namespace.namespace import Namespace
from headrace.namespace.owner_listing import OwnerListingClient
from headrace.origin.circuit import Circuit
from headrace.origin.memory import MemoryOrigin
from headrace.origin.retry import RetryOrigin
from headrace.peer.promoted import request_by_urgency
from headrace.plan.planned_files import PlannedFiles
from headrace.ring.ownership import Ownership
from headrace.ring.view import SEGMENT_BYTES, ClusterView, NodeInfo, next_view
from headrace.store.space import SpaceRules
from headrace.store.store import Store
from headrace.store.volume import Volume
from headrace.testing.virtual_loop import pass_time
from headrace.wire.peer_messages import Fetch, FileRange, ListShared, LookupShared, Names, OfferHandover

MIB = 1 << 20


class CountingOrigin(MemoryOrigin):
    """Counts what it is asked, by key. away: answers nothing, and counts in refused."""

    def __init__(self) -> None:
        super().__init__("many")
        self.reads: dict[str, int] = {}
        self.held: asyncio.Event | None = None
        self.bytes_read = self.listings = self.heads = self.refused = 0
        self.away = False

    def _check(self, key: str) -> None:
        if self.away:
            self.refused += 1
            raise OriginUnavailableError(key, why="away by plan")

    async def read_range(self, key: str, start: int, end: int, **rest: Any) -> Arrived:
        self._check(key)
        self.reads[key] = self.reads.get(key, 0) + 1
        self.bytes_read += end - start
        if self.held is not None:
            await self.held.wait()
        return await super().read_range(key, start, end, **rest)

    async def head(self, key: str, *, deadline: Deadline) -> Any:
        self._check(key)
        self.heads += 1
        return await super().head(key, deadline=deadline)

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[Any]:
        self._check(key)
        self.listings += 1
        async for page in super().list_directory(key, deadline=deadline):
            yield page


class DirectPeers:
    """Does what `PeerClient` does, by calling the other node's desk. down: nodes that don't answer. refusing: nodes
    that take no file over."""

    def __init__(self, world: NodesFixture, me: str) -> None:
        self.world = world
        self.me = me
        self.asked = self.waiting = self.bytes_read = 0

    def usable(self, node: NodeInfo) -> bool:
        return True

    def is_slow(self, node: NodeInfo) -> bool:
        return node.id in self.world.slow

    def usual_s(self, size_bytes: int) -> float | None:
        return 0.01

    def _desk(self, node: NodeInfo) -> NodePeerService:
        if node.id in self.world.down:
            raise PeerError(f"node {node.id}", why="down")
        return self.world.nodes[node.id].desk

    async def fetch(
        self,
        node: NodeInfo,
        wanted: FileRange,
        *,
        cached_only: bool,
        epoch: int,
        deadline: Deadline,
        promotion: Promotion | None = None,
    ) -> Arrived:
        return await request_by_urgency(
            lambda background: self._fetch(
                node, Fetch([wanted], cached_only=cached_only, epoch=epoch, background=background)
            ),
            promotion,
            deadline,
        )

    async def _fetch(self, node: NodeInfo, request: Fetch) -> Arrived:
        (wanted,) = request.files
        self.asked += 1
        if node.id in self.world.slow:
            await pass_time(self.world.slow_s)
        (file,) = await self._desk(node).open_many(request, peer=self.me)
        if isinstance(file, HeadraceError):
            raise file
        try:
            if not file.ready(wanted.start, wanted.end):
                self.waiting += 1
                await file.wait(wanted.start, wanted.end)
            body = os.pread(file.fileno(), wanted.end - wanted.start, wanted.start)
            self.bytes_read += len(body)
            return Arrived(body, file.extras())
        finally:
            file.close()

    async def fetch_small(self, node: NodeInfo, wanted: FileRange, **options: Any) -> Arrived:
        return await self.fetch(node, wanted, **options)

    async def list(
        self, node: NodeInfo, path: bytes, *, anew: bool, epoch: int, deadline: Deadline
    ) -> AsyncIterator[Names]:
        for page in await self._desk(node).names(ListShared(path, epoch, anew)):
            yield page

    async def lookup(
        self, node: NodeInfo, path: bytes, name: bytes, *, epoch: int, deadline: Deadline, anew: bool = False
    ) -> Names:
        return next(await self._desk(node).names(LookupShared(path, name, epoch, anew)))

    async def offer_handover(self, node: NodeInfo, files: Any, *, epoch: int, deadline: Deadline) -> Any:
        if node.id in self.world.refusing:
            return list(range(len(files)))
        return (await self._desk(node).take_over(OfferHandover(files, epoch), peer=self.me)).refused


@dataclass(frozen=True)
class Known:
    """Holds what a node knows of the members and of the policy. copies: of paths that have another number of them."""

    view: ClusterView
    copies: dict[bytes, int]


class OneNode:
    def __init__(self, world: NodesFixture, id: str, *, replicas: int) -> None:
        self.id = id
        self.planned = PlannedFiles()
        self._world = world
        self.known: Known | None = None
        """Set where the node does not know everything yet."""
        ownership = Ownership(
            lambda path: self.copies.get(path, replicas), lambda key: world.holders.get(key, ())
        )
        self.store = self._open_store(world.folder / id)
        self.disk = ThreadPoolExecutor(2)
        self.peers = DirectPeers(world, id)
        gate = Gate(Window(maximum=16), bytes_max=64 * MIB)
        self.sources = ClusterSourceFactory(
            gate,
            timeout_s=5,
            reader=PeerReader(
                id,
                self.peers,  # type: ignore[arg-type]
                Gate(Window(maximum=16), bytes_max=64 * MIB),
                view=lambda: self.view,
                ownership=ownership,
                timeout_s=5,
                small_bytes_max=MIB,
            ),
        )
        self.namespace = self._build_namespace(replicas)
        self.reads = ReadPath(
            self.namespace,
            self.store,
            self.sources,
            self.disk,
            ReadSettings(
                range_bytes=2 * MIB,
                small_file_bytes_max=MIB,
                readahead_bytes=2 * MIB,
                whole_file_after_bytes=64 * MIB,
            ),
            on_complete=lambda _: None,
            on_damaged=lambda _: asyncio.sleep(0),
        )
        self.desk = NodePeerService(
            self.namespace,
            self.store,
            self.reads,
            owns=lambda path, start: any(
                owner.id == id for owner in ownership.owners(self.view, path, start // SEGMENT_BYTES)
            ),
            on_invalidate=lambda *_: None,
        )
        self.rebalance = Rebalance(
            id,
            self.store,
            self.peers,  # type: ignore[arg-type]
            view=lambda: self.view,
            ownership=ownership,
            bytes_s=1 << 40,
            is_wanted=lambda: True,
        )
        self.fresh = FreshCopies(
            id,
            self.store,
            self.peers,  # type: ignore[arg-type]
            view=lambda: self.view,
            ownership=ownership,
            bytes_s=1 << 40,
            is_wanted=lambda: world.makes_copies,
            on_lost=self.rebalance.check_all,
        )
        self.reads.fetched.add(self.fresh.note)

    def _open_store(self, folder: Path) -> Store:
        rules = SpaceRules(planned=self.planned, borrowed_share=self._world.borrowed_share)
        volume = Volume(0, str(folder), self._world.capacity_bytes)
        return Store.open(str(folder / "index"), [volume], rules=rules)

    def _build_namespace(self, replicas: int) -> Namespace:
        self.names = OwnerListingClient(
            *(self.id, self.peers),  # type: ignore[arg-type]
            view=lambda: self.view,
            replicas=replicas,
            timeout_s=5,
        )
        namespace = Namespace.build(
            self.store.index, MountTable(), timeout_s=5, on_changed=lambda _: None, shared=self.names
        )
        circuit = Circuit()
        origin = RetryOrigin(self._world.origin, circuit)
        namespace.mount_points.attach(Mount("/", "memory://", origin, 3600.0, circuit))
        return namespace

    @property
    def view(self) -> ClusterView:
        return self._world.view if self.known is None else self.known.view

    @property
    def copies(self) -> dict[bytes, int]:
        return self._world.copies if self.known is None else self.known.copies

    async def read(self, name: str) -> bytes:
        entry = await self.entry(name)
        await self.reads.fill(entry.id, 0, max(1, entry.version.size_bytes), FOREGROUND)
        return self.content(entry.id)

    async def entry(self, name: str) -> Entry:
        return await self.namespace.resolver.resolve(b"/" + name.encode())

    def content(self, id: FileId) -> bytes:
        return Path(self.store.volumes[0].data_path(id)).read_bytes()

    async def close(self) -> None:
        await self.namespace.refresh_ahead.stop()
        await self.fresh.stop()
        await self.rebalance.stop()
        await self.reads.close()
        self.disk.shutdown()
        self.store.close()


class NodesFixture:
    def __init__(
        self,
        folder: Path,
        *,
        nodes: str = "abcd",
        replicas: int = 1,
        capacity_bytes: int = 256 * MIB,
        borrowed_share: float = 1.0,
    ) -> None:
        self.folder = folder
        self.capacity_bytes, self.borrowed_share = capacity_bytes, borrowed_share
        self.origin = CountingOrigin()
        self.bodies: dict[str, bytes] = {}
        self.down: set[str] = set()
        self.refusing: set[str] = set()
        self.slow: set[str] = set()
        self.slow_s = 3600.0
        self.replicas = replicas
        self.copies: dict[bytes, int] = {}
        """Copies of paths that have another number of them."""
        self.holders: dict[int, tuple[str, ...]] = {}
        self.makes_copies = False
        self.ownership = Ownership(
            lambda path: self.copies.get(path, replicas), lambda key: self.holders.get(key, ())
        )
        self.view = self._view_of(nodes, None)
        self.nodes = {id: OneNode(self, id, replicas=replicas) for id in nodes}

    def _view_of(self, ids: str, before: ClusterView | None) -> ClusterView:
        infos = {id: NodeInfo(id, id, f"{id}:1", "", 256 * MIB, "0", 1) for id in ids}
        return next_view(before, infos, epoch=before.epoch + 1 if before else 1)

    def change(self, ids: str) -> None:
        """Other members; those that are new start empty."""
        for id in ids:
            if id not in self.nodes:
                self.nodes[id] = OneNode(self, id, replicas=self.replicas)
        self.view = self._view_of(ids, self.view)

    def drain(self, leaving: str) -> None:
        """It owns nothing any more, and is still there."""
        infos = {
            id: msgspec.structs.replace(info, draining=id == leaving) for id, info in self.view.nodes.items()
        }
        self.view = next_view(self.view, infos, epoch=self.view.epoch + 1)

    def view_with(self, ids: str) -> ClusterView:
        """Return the view that `change` would make."""
        return self._view_of(ids, self.view)

    def put(self, name: str, body: bytes) -> None:
        self.bodies[name] = body
        self.origin.hold(name, body)

    def owner(self, name: str) -> OneNode:
        return self.nodes[self.view.owners(b"/" + name.encode())[0].id]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        try:
            yield self
        finally:
            for node in self.nodes.values():
                await node.close()


def body_of(size: int, salt: int) -> bytes:
    return bytes((salt * 7 + position * position) % 251 for position in range(997)) * (size // 997 + 1)
