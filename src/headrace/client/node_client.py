"""Give the session, the gateways and the library of a host names, metadata and cache files.

A hit is answered from the index and the cache file in this process (`*_fast`, `complete_path`), and never blocks. A
miss sends a request to the node and may block; a Cancel breaks it off. Thread-safe.
"""

from __future__ import annotations

import enum
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator

from headrace.base import boot_clock
from headrace.base.cancel import Cancel
from headrace.base.errors import (
    EvictedError,
    HeadraceError,
)
from headrace.base.key_length import key_room
from headrace.base.model import BLOCK_SIZE_BYTES, ROOT_ID, Entry, FileId, Kind, ObjectMetadata, Version
from headrace.base.namespace_path import is_at_or_below
from headrace.client.access_reporter import AccessReporter
from headrace.client.change_reporter import ChangeReporter
from headrace.client.connection import Connection, Connections
from headrace.client.event_stream import EventsLost, EventStream
from headrace.client.file import OpenFile
from headrace.client.local import LocalCache
from headrace.wire.message import Message
from headrace.wire.messages import (
    AcquireLease,
    Answer,
    Describe,
    Described,
    Forgot,
    JobStart,
    JobState,
    List,
    Lookup,
    Open,
    OpenedMany,
    OpenMany,
    Report,
    Resolve,
    Resolved,
    Secure,
    StatusAsk,
    Welcome,
)

log = logging.getLogger(__name__)

OPEN_ATTEMPTS = 100
OPEN_PAUSE_S_MAX = 0.05
CHANGED_ATTEMPTS = 3
NAME_TTL_S_MAX = 3600.0
PATIENCE_S = 60.0
STATUS_MAX_AGE_S = 5.0


class Miss(enum.Enum):
    """Marks an answer that only the node can give, because the index can't."""

    MISS = 1


MISS = Miss.MISS


def connect(socket_path: str, *, role: str = "sdk", patience_s: float = 0.0) -> NodeClient:
    """Connect to the node at a socket. patience_s: seconds that calls wait while the node is down. Raises
    NodeUnavailableError when it is down now."""
    return NodeClient(socket_path, role=role, patience_s=patience_s)


class NodeClient:
    """Serves one process. The hit path is `local`; each other call is one request, or a report that is sent soon."""

    def __init__(self, socket_path: str, *, role: str, patience_s: float = PATIENCE_S) -> None:
        first = Connection(socket_path, role=role)
        self._renewing = threading.Lock()
        self._connections = Connections(socket_path, role=role, patience_s=patience_s, on_welcome=self._renew)
        self._touches = AccessReporter(self._connections, is_job=role in ("session", "sdk"))
        self.touch: Callable[..., None] = self._touches.touch
        """Records an access for the eviction policy. Records are sent in batches, and may be lost without harm."""
        self.local = LocalCache(first.welcome, self.touch)
        """Replaced as soon as an id, a volume's number or a path's write mode may mean something else."""
        self._connections.release(first)
        self._changes = ChangeReporter(self._connections)
        self._event_streams: list[EventStream] = []
        self._status: tuple[float, dict[str, object]] = (0.0, {})
        self.closed = False
        alive = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _reset_after_fork(alive()))

    @property
    def socket(self) -> str:
        return self._connections.path

    @property
    def generation(self) -> int:
        return self.local.generation

    # ------------------------------------------------------------ names

    def lookup_fast(self, parent: FileId, name: bytes) -> Entry | Miss | None:
        """Return the entry of a name by the index. None means that the name does not exist: the directory's listing
        is fresh."""
        is_fresh, entry = self.local.index.fresh_lookup(parent, name, boot_clock.now_ns())
        return entry if is_fresh else MISS

    def lookup(self, parent: FileId, name: bytes, cancel: Cancel | None = None) -> Entry | None:
        self.ask(Lookup(parent=parent, name=name), cancel)
        return self.local.index.lookup(parent, name)

    def entry(self, id: FileId) -> Entry | None:
        return self.local.index.entry(id)

    def lookup_stale(self, parent: FileId, name: bytes) -> Entry | None:
        """Return the entry that the index has, however old the index is."""
        return self.local.index.lookup(parent, name)

    def path_of(self, id: FileId) -> bytes | None:
        return self.local.index.path_of(id)

    def mount_of(self, path: bytes) -> str:
        """Return the path of the mount that a path belongs to; "" above all mounts."""
        return _mount_of(os.fsdecode(path), self.local.index.mounts.all())

    def key_fits(self, path: bytes) -> bool:
        """Return whether the key of a path is short enough for the object store of its mount."""
        mounts = self.local.index.mounts.all()
        mount = _mount_of(os.fsdecode(path), mounts)
        room = key_room(mounts[mount]["url"]) if mount else None
        return room is None or len(path) - len(os.fsencode(mount.rstrip("/"))) - 1 <= room

    def mounts(self) -> dict[str, str]:
        """Return the URL of the origin of each mount, by the path of the mount."""
        return {path: record["url"] for path, record in self.local.index.mounts.all().items()}

    def describe(self, id: FileId) -> ObjectMetadata | None:
        """Return the metadata, headers and tags of an object, which the node requests from the origin. None: the
        object has another version by now."""
        answer = self.ask(Describe(id=id))
        assert isinstance(answer, Described)
        return ObjectMetadata(answer.metadata, answer.headers, answer.tags) if answer.known else None

    def name_ttl_s(self, parent: FileId) -> float:
        """Return the seconds for which the kernel may keep the names of a directory. It is at least 1 s, so that one
        path walk sees one state. It is at most an hour: names above all mounts stay fresh for ever, but a restarted
        node may have other mounts."""
        return max(1.0, min(NAME_TTL_S_MAX, self.local.fresh_for_s(parent)))

    def listing_fresh(self, directory: FileId) -> bool:
        return self.local.fresh_for_s(directory) > 0

    def ensure_listed(self, directory: FileId, cancel: Cancel | None = None) -> None:
        self.ask(List(directory=directory), cancel)

    def children(self, directory: FileId, after: bytes = b"") -> Iterator[Entry]:
        return self.local.index.children(directory, after=after)

    def resolve(self, path: bytes) -> Entry:
        """Return the entry at a path. Raises PathNotFoundError where there is none."""
        answer = self.ask(Resolve(path=path))
        assert isinstance(answer, Resolved)
        version = Version(answer.size_bytes, answer.mtime_ns, answer.token)
        return Entry(FileId(answer.id), ROOT_ID, path.rsplit(b"/", 1)[-1], Kind(answer.kind), version)

    # ------------------------------------------------------------ contents

    def cached_version(self, id: FileId) -> Version | None:
        """Return the version of a cache file, complete or not; None if there is none."""
        cached = self.local.index.cached(id)
        return None if cached is None else Version(cached.size_bytes, cached.mtime_ns, cached.token)

    def complete_path(self, id: FileId) -> str | None:
        return self.local.complete_path(id)

    def open(self, id: FileId, cancel: Cancel | None = None) -> OpenFile:
        """Open a cache file, which the caller closes. A small file is complete when this returns."""
        for attempt in range(OPEN_ATTEMPTS):
            self.ask(Open(id=id), cancel)
            reader = self.local.reader(id)
            if reader is not None:  # else it was evicted after the node's answer: request it again
                return OpenFile(id, reader, self.ask, lambda id: self.local.reader(id))
            time.sleep(min(OPEN_PAUSE_S_MAX, attempt / 1000))
        raise EvictedError(
            f"cache file of {id:x}",
            why="the cache evicts it as soon as it is fetched",
            hint="increase the capacity of the cache",
        )

    def checksums(self, id: FileId, blocks: range) -> list[int] | None:
        """Return the xxh3 of blocks in the cache, as they were when they were fetched. None where the blocks are not
        in the cache."""
        reader = self.local.reader(id, sums=True)
        if reader is None:
            return None
        try:
            sound = reader.present(blocks.start * BLOCK_SIZE_BYTES, blocks.stop * BLOCK_SIZE_BYTES)
            return [reader.checksum(block) for block in blocks] if sound else None
        finally:
            reader.close()

    def open_many(self, ids: list[FileId], cancel: Cancel | None = None) -> Iterator[list[FileId]]:
        """Fetch small files, and yield the ids of those that are complete, as they become so. `open` reports why an
        id is missing at the end. This holds after an error too, NodeUnavailableError included: this call does not
        wait while the node is down."""
        connection = self._connections.acquire(cancel)
        try:
            answers = connection.stream(
                OpenMany(ids=[*ids]), cancel=cancel, is_alive=lambda: self._connections.is_alive(cancel)
            )
            for answer in answers:
                assert isinstance(answer, OpenedMany)
                yield [FileId(id) for id in answer.ids]
        finally:
            if connection.usable:
                self._connections.release(connection)
            else:
                connection.close()

    def run_job(self, start: JobStart) -> Generator[JobState, None, None]:
        """Run a job on the node, and yield its states; a caller that stops iterating cancels the job. Wait for a node
        that is down, but only before the job is sent. Raise NodeUnavailableError for a node that ends after that,
        because it may have begun the job."""
        connection = self._connections.connect_patiently()
        try:
            for state in connection.stream(start):
                assert isinstance(state, JobState)
                yield state
        finally:
            connection.close()

    # ------------------------------------------------------------ writing

    @property
    def upper(self) -> str:
        """Return the directory of the upper layer."""
        return self.local.upper

    @property
    def write(self) -> str:
        """Return the write modes, as base/write_modes.py parses them."""
        return self.local.write

    @property
    def source(self) -> int:
        """Return the number that marks this client's own changes among the node's events."""
        return self._changes.source

    def changed(self, paths: list[bytes]) -> None:
        """Report written paths to the node, soon; never blocks. The client repeats a report until the node
        acknowledges it."""
        self._changes.add(paths)

    def writing(self, path: bytes) -> None:
        """Report to the node, soon, that a file with replicas is open for writing. Never blocks."""
        self._changes.add([path], begun=True)

    def secure(self, path: bytes, cancel: Cancel | None = None) -> None:
        """Block until the path is as durable as its write mode promises: at the origin in mode through, on other nodes
        in mode back:2 and more. Raises ConflictError, or OriginError and its subclasses."""
        self.ask(Secure(path=path), cancel)

    def acquire_lease(self, directory: bytes, cancel: Cancel | None = None) -> None:
        """Acquire the lease of a directory, without which no node of the cluster makes new names in it.
        Raises HeadraceError where it can't be acquired."""
        self.ask(AcquireLease(path=directory), cancel)

    # ------------------------------------------------------------ events and state

    def acknowledge(self, receipt: int) -> None:
        """Acknowledge an event by its receipt: what it requested is done."""
        self.ask(Forgot(receipt=receipt))

    def subscribe(
        self,
        on_event: Callable[[Answer | EventsLost], None],
        *,
        on_subscribed: Callable[[], None] = lambda: None,
    ) -> None:
        """Call on_event from a thread of its own, until `close`. After the node was down, the thread first passes
        EventsLost, and then the events of the new node. on_subscribed: called when a subscription was sent."""
        stream = EventStream(self._connections, on_event, on_subscribed)
        self._event_streams.append(stream)
        stream.start()

    def file_state(self, id: FileId) -> dict[str, str]:
        """Return the `user.headrace.*` attributes of a file, by the last part of their names."""
        entry, cached = self.local.index.entry(id), self.local.index.cached(id)
        state = {"cached": "no", "socket": self._connections.path}
        if cached is not None:
            share = 1.0 if cached.trusted else self.local.present_share(id)
            state["cached"] = "yes" if cached.trusted else f"{int(share * 100)}%"
            if cached.volume < len(self.local.tiers):
                state["tier"] = self.local.tiers[cached.volume]
                state["volume"] = self.local.volumes[cached.volume]
                state["moved"] = "down" if cached.sunk else ""
        if entry is not None:
            state["version"] = entry.version.text
            path = self.local.index.path_of(id)
            state["origin"] = _origin_of(path, self.local.index.mounts.all()) if path is not None else ""
        return state

    def ask(self, request: Message, cancel: Cancel | None = None) -> Answer:
        """Send a request, and return its answer as `Connections.ask` does."""
        return self._connections.ask(request, cancel=cancel)

    def status(self) -> dict[str, object]:
        answer = self.ask(StatusAsk())
        assert isinstance(answer, Report)
        return answer.status

    def statistics(self) -> tuple[int, int, int]:
        """Return the capacity and the free bytes of the cache, and the entries of the index. They are at most some
        seconds old."""
        time_s, status = self._status
        if time.monotonic() - time_s > STATUS_MAX_AGE_S:
            status = self.status()
            self._status = (time.monotonic(), status)
        cache, index = status["cache"], status["index"]
        assert isinstance(cache, dict)
        assert isinstance(index, dict)
        capacity = int(cache["capacity_bytes"])
        return capacity, capacity - int(cache["used_bytes"]), int(index["entries"])

    def stop_reporting(self, wait_s: float) -> None:
        """Wait until the node has acknowledged all written paths, at most wait_s. Later ones are not reported."""
        self._changes.close(wait_s=wait_s)

    def close(self) -> None:
        self.closed = True
        for stream in self._event_streams:
            stream.close()
        self._touches.close()
        self._changes.close()
        self._connections.close()
        self.local.close()

    def _renew(self, welcome: Welcome) -> None:
        """Follow a node that rebuilt or compacted its index, or has other settings. A rebuilt index has other ids.
        The old one stays open, because other threads may be reading it. Other settings mean other write modes, or
        one more disk."""
        with self._renewing:
            before = self.local
            if welcome.generation != before.generation:
                log.warning("the node rebuilt its index generation=%d", welcome.generation)
                self.local = LocalCache(welcome, self.touch)
            elif before.index.is_replaced:  # by a compacted copy with the same ids
                self.local = LocalCache(welcome, self.touch)
            elif (welcome.write, welcome.volumes) != (before.write, before.volumes):
                self.local = LocalCache(welcome, self.touch, before.index)

    def reset_after_fork(self) -> None:
        """Reset a child after a fork. Threads that the child does not have may hold locks, and LMDB must be opened
        again."""
        self._renewing = threading.Lock()
        self._connections.reset_after_fork()
        self._touches.reset_after_fork()
        self._event_streams = []
        self._changes = ChangeReporter(self._connections)
        self.local.index.reopen_after_fork()


def _reset_after_fork(client: NodeClient | None) -> None:
    if client is None or client.closed:
        return
    try:
        client.reset_after_fork()
    except HeadraceError as error:
        log.warning("a forked child can't read the index error=%s", error)


def _mount_of(path: str, mounts: dict[str, dict[str, str]]) -> str:
    return max(
        (mount for mount in mounts if is_at_or_below(path, mount)),
        key=len,
        default="",
    )


def _origin_of(path: bytes, mounts: dict[str, dict[str, str]]) -> str:
    text = path.decode(errors="surrogateescape")
    mount = _mount_of(text, mounts)
    if not mount:
        return ""
    return mounts[mount]["url"].rstrip("/") + "/" + text[len(mount.rstrip("/")) :].lstrip("/")
