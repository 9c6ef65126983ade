"""A desk over real files, a node that serves it, and the asking side: for tests of the transfer between nodes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
import xxhash

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, NotOwnerError
from headrace.base.model import BLOCK_SIZE_BYTES, ObjectMetadata, block_range
from headrace.entry.peer.server import PeerServer
from headrace.identity.mutual import MutualTls
from headrace.peer.client import PeerClient
from headrace.ring.view import NodeInfo
from headrace.wire.messages import Done
from headrace.wire.peer_frame import SPOKEN
from headrace.wire.peer_messages import (
    DirtyNamesChanged,
    FailoverReport,
    Fetch,
    FileRange,
    HandoverAnswer,
    InvalidateListing,
    ListPending,
    ListShared,
    LookupShared,
    NameRow,
    Names,
    OfferHandover,
    OriginChanged,
    PeerWelcome,
    PendingNamesPage,
    QueryFailover,
    RecallLease,
    Replicate,
    ReplicateAhead,
    ReportCorruption,
    ResolveVersion,
    TrialAnswer,
    TryPolicy,
    VersionResolved,
)

MIB = 1 << 20
CLUSTER = "lab"

LEFT_WITHIN_S = 5.0


def soon() -> Deadline:
    return Deadline.after(60)


@dataclass
class DeskFile:
    """One file: its bytes, which blocks have landed, and what goes wrong."""

    body: bytes
    fd: int
    landed: set[int] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    failure: HeadraceError | None = None
    failure_of_open: HeadraceError | None = None
    waits: int = 0
    cancelled: int = 0
    extras: ObjectMetadata | None = None

    def blocks(self) -> range:
        return block_range(0, len(self.body))

    def land(self, *blocks: int) -> None:
        for block in blocks:
            start = block * BLOCK_SIZE_BYTES
            os.pwrite(self.fd, self.body[start : start + BLOCK_SIZE_BYTES], start)
            self.landed.add(block)
        self.changed.set()
        self.changed = asyncio.Event()

    def fail(self, error: HeadraceError) -> None:
        self.failure = error
        self.changed.set()
        self.changed = asyncio.Event()


class DeskPiece:
    def __init__(self, file: DeskFile) -> None:
        self.file = file
        self.fd = os.dup(file.fd)
        self.steady = True

    async def wait(self, start: int, end: int) -> None:
        self.file.waits += 1
        try:
            while not self.ready(start, end):
                if self.file.failure is not None:
                    raise self.file.failure
                await self.file.changed.wait()
        except asyncio.CancelledError:
            self.file.cancelled += 1
            raise

    def ready(self, start: int, end: int) -> bool:
        return all(block in self.file.landed for block in block_range(start, end))

    def fileno(self) -> int:
        assert self.fd >= 0
        return self.fd

    def extras(self) -> ObjectMetadata | None:
        return self.file.extras

    def checksum(self, block: int) -> int:
        start = block * BLOCK_SIZE_BYTES
        return xxhash.xxh3_64_intdigest(self.file.body[start : start + BLOCK_SIZE_BYTES])

    def close(self) -> None:
        assert self.fd >= 0, "closed twice"
        os.close(self.fd)
        self.fd = -1


class FileDesk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[bytes, DeskFile] = {}
        self.requests: list[int] = []
        self.are_background: list[bool] = []
        """Says of each request if reads of readers precede it."""
        self.forgotten: list[InvalidateListing | OriginChanged] = []
        self.taken: list[OfferHandover] = []
        self.doubted: list[FileRange] = []
        self.pages: list[Names] = []
        self.threads: set[str] = set()

    def add(self, name: str, size_bytes: int, *, landed: bool = True) -> FileRange:
        """Random bytes; the whole of it, as it is wanted."""
        chance = random.Random(name)
        body = b"".join(
            chance.randbytes(min(MIB, size_bytes - offset)) for offset in range(0, size_bytes, MIB)
        )
        fd = os.open(self.folder / name.replace("/", "_"), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(fd, size_bytes)
        file = DeskFile(body, fd)
        path = f"/data/{name}".encode()
        self.files[path] = file
        if landed:
            file.land(*file.blocks())
        return FileRange(path, size_bytes, 1, '"etag"', 0, size_bytes)

    def body(self, wanted: FileRange) -> bytes:
        return self.files[wanted.path].body[wanted.start : wanted.end]

    def close(self) -> None:
        for file in self.files.values():
            os.close(file.fd)

    async def open_many(self, request: Fetch, *, peer: str) -> Sequence[DeskPiece | HeadraceError]:
        self.requests.append(len(request.files))
        self.are_background.append(request.background)
        self.threads.add(threading.current_thread().name)
        return [self._open(part, request) for part in request.files]

    def _open(self, part: FileRange, request: Fetch) -> DeskPiece | HeadraceError:
        file = self.files.get(part.path)
        if file is None:
            return NotOwnerError(os.fsdecode(part.path), why="none of it is here")
        if file.failure_of_open is not None:
            return file.failure_of_open
        if request.cached_only and not all(
            block in file.landed for block in block_range(part.start, part.end)
        ):
            return NotOwnerError(os.fsdecode(part.path), why="not here")
        return DeskPiece(file)

    async def names(self, request: ListShared | LookupShared) -> Iterator[Names]:
        if isinstance(request, ListShared):
            return iter(self.pages)
        rows = [row for page in self.pages for row in page.rows if row.name == request.name]
        return iter([Names(rows, 5.0, last=True)])

    async def invalidate_listing(self, request: InvalidateListing | OriginChanged) -> None:
        self.forgotten.append(request)

    async def check_corruption(self, request: ReportCorruption) -> None:
        self.doubted.append(request.file)

    async def replicate(self, request: Replicate | ReplicateAhead) -> None:
        raise NotImplementedError

    async def report_failover(self, request: QueryFailover) -> FailoverReport:
        raise NotImplementedError

    async def pending_names(
        self, request: ListPending | DirtyNamesChanged | ResolveVersion | RecallLease
    ) -> PendingNamesPage | VersionResolved | Done:
        raise NotImplementedError

    async def try_policy(self, request: TryPolicy) -> TrialAnswer:
        raise NotImplementedError

    async def take_over(self, request: OfferHandover, *, peer: str) -> HandoverAnswer:
        self.taken.append(request)
        return HandoverAnswer(
            [index for index, file in enumerate(request.files) if file.path not in self.files]
        )


def page_of(count: int, first: int, *, last: bool) -> Names:
    rows = [NameRow(b"name\xff%07d" % n, 1, n, n, f'"{n}"') for n in range(first, first + count)]
    return Names(rows, 5.0, last=last)


class Serving:
    """A desk behind a door. peers: the asking side."""

    def __init__(self, desk: FileDesk, server: PeerServer, node: NodeInfo, peers: PeerClient) -> None:
        self.desk = desk
        self.server = server
        self.node = node
        self.peers = peers

    async def fetch(self, wanted: FileRange, *, cached_only: bool = False) -> bytes:
        return await self.fetch_at(self.node, wanted, cached_only=cached_only)

    async def fetch_at(self, node: NodeInfo, wanted: FileRange, *, cached_only: bool = False) -> bytes:
        arrived = await self.peers.fetch(node, wanted, cached_only=cached_only, epoch=1, deadline=soon())
        return bytes(arrived.body)

    async def fetch_small(self, wanted: FileRange) -> bytes:
        return bytes((await self.peers.fetch_small(self.node, wanted, epoch=1, deadline=soon())).body)


def node_info(address: str, *, id: str = "b", instance: str = "run1") -> NodeInfo:
    return NodeInfo(id, instance, address, "", 1 << 30, "0", 1)


@contextlib.asynccontextmanager
async def serving(
    folder: Path,
    *,
    server_tls: MutualTls | None = None,
    client_tls: MutualTls | None = None,
    server_protocols: tuple[int, int] = SPOKEN,
    client_protocols: tuple[int, int] = SPOKEN,
    stall_s: float = 30.0,
) -> AsyncIterator[Serving]:
    desk = FileDesk(folder)
    server = PeerServer(
        lambda: PeerWelcome(0, "b", "run1", 7),
        CLUSTER,
        desk,
        loop=asyncio.get_running_loop(),
        tls=server_tls,
        protocols=server_protocols,
        stall_s=stall_s,
    )
    address = server.start("127.0.0.1", 0)
    peers = PeerClient("a", CLUSTER, tls=client_tls, protocols=client_protocols)
    try:
        yield Serving(desk, server, node_info(address), peers)
    finally:
        peers.close()
        await asyncio.to_thread(server.stop)
        desk.close()


def descriptors() -> set[tuple[str, str]]:
    """Return the descriptors of this process, with what each leads to."""
    descriptors = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            descriptors.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return descriptors


def peer_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("peer")]


@contextlib.contextmanager
def nothing_leaks() -> Iterator[None]:
    """Around a whole event loop: its end joins the threads that end by themselves."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.sleep(0))  # the first loop of a process opens what is never closed
    gc.collect()  # what earlier tests left
    gc.freeze()  # or each later collection would look at what all tests imported
    before = descriptors()
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("peer"):
            thread.join(30)
    assert peer_threads() == []
    # other threads of this process, of fixtures that outlive a test, open and close descriptors at any time
    limit_s = time.monotonic() + LEFT_WITHIN_S
    while (left := _left_since(before)) and time.monotonic() < limit_s:
        time.sleep(0.02)
    assert not left, f"descriptors stay open: {sorted(left)}"


def _left_since(before: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return new descriptors if there are more than before: a fixture's client may have connected again meanwhile."""
    gc.collect()
    now = descriptors()
    return now - before if len(now) > len(before) else set()
