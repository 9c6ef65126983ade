"""What every door of the client tower calls: names, cache files and what they cost.

A hit is answered from index and cache file in this process (`*_fast`, `complete_path`: never block). A miss asks
the node and may block; then it can be broken off with a Cancel. Thread-safe.
"""

from __future__ import annotations

import enum
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator

from headrace.base import boot_clock
from headrace.base.errors import (
    CancelledByUserError,
    EvictedError,
    HeadraceError,
    IsADirectoryPathError,
    NodeUnavailableError,
    PathNotFoundError,
    StaleIdError,
    VersionChangedError,
)
from headrace.base.key_length import key_room
from headrace.base.model import BLOCK_SIZE_BYTES, ROOT_ID, Entry, FileId, Kind, ObjectMetadata, Version
from headrace.sdk.access_reporter import AccessReporter
from headrace.sdk.cancel import Cancel
from headrace.sdk.change_reporter import ChangeReporter
from headrace.sdk.connection import RECONNECT_PAUSE_S, Connections
from headrace.sdk.file import OpenFile
from headrace.sdk.local import LocalCache
from headrace.store.reader import CacheReader
from headrace.wire.messages import (
    AcquireLease,
    Answer,
    Describe,
    Described,
    Forgot,
    List,
    Lookup,
    Message,
    Open,
    OpenedMany,
    OpenMany,
    Report,
    Resolve,
    Resolved,
    Secure,
    StatusAsk,
    Subscribe,
    Welcome,
)

log = logging.getLogger(__name__)

OPEN_ATTEMPTS = 100
OPEN_PAUSE_S_MAX = 0.05
CHANGED_ATTEMPTS = 3
TROUBLE_PAUSE_S = 1.0
NAME_TTL_S_MAX = 3600.0
READ_STEP_BYTES = 8 * BLOCK_SIZE_BYTES
PATIENCE_S = 60.0
STATUS_MAX_AGE_S = 5.0


class Miss(enum.Enum):
    """The index can't tell; the node must be asked."""

    MISS = 1


MISS = Miss.MISS


class EventsLost:
    """Events before this one may have been missed: what they would have said must be found out."""


def connect(socket_path: str, *, role: str = "sdk", patience_s: float = 0.0) -> NodeClient:
    """A client of the node at that socket. patience_s: how long calls wait for a node that is away.
    NodeUnavailableError when there is none now."""
    return NodeClient(socket_path, role=role, patience_s=patience_s)


class NodeClient:
    def __init__(self, socket_path: str, *, role: str, patience_s: float = PATIENCE_S) -> None:
        self._connections = Connections(socket_path, role=role, patience_s=patience_s)
        self._touches = AccessReporter(self._connections)
        self.touch: Callable[[FileId], None] = self._touches.touch
        """Notes a use for the eviction policy; sent in batches, lost without harm."""
        first = self._connections.take()
        self.local = LocalCache(first.welcome, self.touch)
        """Another one as soon as an id, a volume's number or a path's mode of writing may mean something else."""
        self._renewing = threading.Lock()
        self._connections.on_welcome = self._renew
        self._connections.give(first)
        self._changes = ChangeReporter(self._connections)
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
        """None is a sure no: the directory's listing is fresh and has no such name."""
        if self.local.index.fresh_until_ns(parent) <= boot_clock.now_ns():
            return MISS
        return self.local.index.lookup(parent, name)

    def lookup(self, parent: FileId, name: bytes, cancel: Cancel | None = None) -> Entry | None:
        self._ask(Lookup(parent=parent, name=name), cancel)
        return self.local.index.lookup(parent, name)

    def entry(self, id: FileId) -> Entry | None:
        return self.local.index.entry(id)

    def known(self, parent: FileId, name: bytes) -> Entry | None:
        """By the index, however old it is."""
        return self.local.index.lookup(parent, name)

    def path_of(self, id: FileId) -> bytes | None:
        return self.local.index.path_of(id)

    def mount_of(self, path: bytes) -> str:
        """The path of the mount that answers for a path; "" above all mounts."""
        return _mount_of(os.fsdecode(path), self.local.index.mounts())

    def takes_name(self, path: bytes) -> bool:
        """Whether the store that answers for a path can have an object of that name."""
        mounts = self.local.index.mounts()
        mount = _mount_of(os.fsdecode(path), mounts)
        room = key_room(mounts[mount]["url"]) if mount else None
        return room is None or len(path) - len(os.fsencode(mount.rstrip("/"))) - 1 <= room

    def mounts(self) -> dict[str, str]:
        """Path: URL of the origin."""
        return {path: record["url"] for path, record in self.local.index.mounts().items()}

    def describe(self, id: FileId) -> ObjectMetadata | None:
        """What the origin tells of the object beside its bytes: it is asked. None: it has another version by now."""
        answer = self._ask(Describe(id=id))
        assert isinstance(answer, Described)
        return ObjectMetadata(answer.metadata, answer.headers, answer.tags) if answer.known else None

    def name_ttl_s(self, parent: FileId) -> float:
        """How long the kernel may keep the names of that directory; at least 1 s, so that one path walk is one, and
        at most an hour: those above all mounts are fresh for ever, but a restarted node may have other mounts."""
        return max(1.0, min(NAME_TTL_S_MAX, self.local.fresh_for_s(parent)))

    def listing_fresh(self, directory: FileId) -> bool:
        return self.local.fresh_for_s(directory) > 0

    def ensure_listed(self, directory: FileId, cancel: Cancel | None = None) -> None:
        self._ask(List(directory=directory), cancel)

    def children(self, directory: FileId, after: bytes = b"") -> Iterator[Entry]:
        return self.local.index.children(directory, after=after)

    def resolve(self, path: bytes) -> Entry:
        """PathNotFoundError where there is none."""
        answer = self._ask(Resolve(path=path))
        assert isinstance(answer, Resolved)
        version = Version(answer.size_bytes, answer.mtime_ns, answer.token)
        return Entry(FileId(answer.id), ROOT_ID, path.rsplit(b"/", 1)[-1], Kind(answer.kind), version)

    def list_path(self, path: bytes) -> Iterator[Entry]:
        """The children of a directory, or the file itself."""
        found = self.resolve(path)
        if found.kind is Kind.FILE:
            yield found
            return
        self.ensure_listed(found.id)
        yield from self.children(found.id)

    # ------------------------------------------------------------ contents

    def complete_path(self, id: FileId) -> str | None:
        return self.local.complete_path(id)

    def open(self, id: FileId, cancel: Cancel | None = None) -> OpenFile:
        """A small file is complete when this returns. The caller closes it."""
        for attempt in range(OPEN_ATTEMPTS):
            self._ask(Open(id=id), cancel)
            try:
                reader = self.local.reader(id)
            except PathNotFoundError:
                reader = None  # evicted between the answer and our open: ask again
            if reader is not None:
                return OpenFile(id, reader, self._ask, self._reopen)
            time.sleep(min(OPEN_PAUSE_S_MAX, attempt / 1000))
        raise EvictedError(
            f"cache file of {id:x}",
            why="it is evicted as soon as it is made",
            hint="give the cache more capacity",
        )

    def checksums(self, id: FileId, blocks: range) -> list[int] | None:
        """xxh3 of blocks that are in the cache, as they were when they were fetched; None where they are not."""
        try:
            reader = self.local.reader(id, sums=True)
        except PathNotFoundError:
            return None  # evicted, or whole by now
        if reader is None:
            return None
        try:
            sound = reader.present(blocks.start * BLOCK_SIZE_BYTES, blocks.stop * BLOCK_SIZE_BYTES)
            return [reader.checksum(block) for block in blocks] if sound else None
        finally:
            reader.close()

    def open_many(self, ids: list[FileId]) -> Iterator[list[FileId]]:
        """Small files: those that are whole, as they become so. What is left out at the end, `open` says why; likewise
        after an error, NodeUnavailableError among them: this does not wait for a node that is away."""
        connection = self._connections.take()
        try:
            for answer in connection.stream(OpenMany(ids=[*ids])):
                assert isinstance(answer, OpenedMany)
                yield [FileId(id) for id in answer.ids]
        finally:
            if connection.usable:
                self._connections.give(connection)
            else:
                connection.close()

    def read(self, path: bytes, start: int = 0, end: int | None = None) -> Iterator[memoryview]:
        """Pieces of the file in order."""
        found, file = self._open_path(path)
        stop = found.version.size_bytes if end is None else min(end, found.version.size_bytes)
        try:
            while start < stop:
                step = min(READ_STEP_BYTES, stop - start)
                yield memoryview(file.pread(step, start))
                start += step
        finally:
            file.close()

    def _open_path(self, path: bytes) -> tuple[Entry, OpenFile]:
        """What the path means now: a file that changed between the two questions is asked for again."""
        for attempt in range(CHANGED_ATTEMPTS):
            found = self.resolve(path)
            if found.kind is Kind.DIRECTORY:
                raise IsADirectoryPathError(path.decode(errors="replace"), why="it is a directory")
            try:
                return found, self.open(found.id)
            except (VersionChangedError, StaleIdError):
                if attempt + 1 == CHANGED_ATTEMPTS:
                    raise
        raise AssertionError

    # ------------------------------------------------------------ writing

    @property
    def upper(self) -> str:
        """Folder of the upper layer."""
        return self.local.upper

    @property
    def write(self) -> str:
        """The modes of writing, as base/write_modes.py reads them."""
        return self.local.write

    @property
    def source(self) -> int:
        """By which this client knows its own changes among those that the node tells of."""
        return self._changes.source

    def changed(self, paths: list[bytes]) -> None:
        """Tells the node what was written, soon; never blocks. Told again until the node has heard it."""
        self._changes.add(paths)

    def writing(self, path: bytes) -> None:
        """Tells the node, soon, that a file is open for writing of which copies are promised."""
        self._changes.add([path], begun=True)

    def secure(self, path: bytes, cancel: Cancel | None = None) -> None:
        """What is at the path has what its mode promises on return: the origin in mode through, copies on other nodes
        in mode back:2 and more. ConflictError, OriginError and its
        kinds."""
        self._ask(Secure(path=path), cancel)

    def claim(self, folder: bytes, cancel: Cancel | None = None) -> None:
        """New names may be made in the folder, exclusively in the cluster, on return: for a moment at least.
        HeadraceError where that can't be had."""
        self._ask(AcquireLease(path=folder), cancel)

    # ------------------------------------------------------------ the rest

    def forgot(self, receipt: int) -> None:
        """Tells the node that what an event with that receipt asked for is done."""
        self._ask(Forgot(receipt=receipt))

    def subscribe(self, on_event: Callable[[Answer | EventsLost], None]) -> None:
        """Calls on_event from a thread of its own, for ever; after the node was away, goes on with the new one, and
        first says EventsLost."""
        threading.Thread(target=self._follow, args=(on_event,), daemon=True, name="events").start()

    def file_state(self, id: FileId) -> dict[str, str]:
        """The `user.headrace.*` attributes of a file, by their last word."""
        found, cached = self.local.entry(id), self.local.cached(id)
        state = {"cached": "no", "socket": self._connections.path}
        if cached is not None:
            share = 1.0 if cached.trusted else self.local.present_share(id)
            state["cached"] = "yes" if cached.trusted else f"{int(share * 100)}%"
        if found is not None:
            state["version"] = found.version.text
            path = self.local.index.path_of(id)
            state["origin"] = _origin_of(path, self.local.index.mounts()) if path is not None else ""
        return state

    def ask(self, request: Message) -> Answer:
        """One that has no call of its own here."""
        return self._ask(request)

    def status(self) -> dict[str, object]:
        answer = self._ask(StatusAsk())
        assert isinstance(answer, Report)
        return answer.status

    def statistics(self) -> tuple[int, int, int]:
        """Capacity and free bytes of the cache, entries; at most some seconds old."""
        at_s, status = self._status
        if time.monotonic() - at_s > STATUS_MAX_AGE_S:
            status = self.status()
            self._status = (time.monotonic(), status)
        cache, index = status["cache"], status["index"]
        assert isinstance(cache, dict)
        assert isinstance(index, dict)
        capacity = int(cache["capacity_bytes"])
        return capacity, capacity - int(cache["used_bytes"]), int(index["entries"])

    def end_telling(self, wait_s: float) -> None:
        """Waits, so long at most, until the node has heard what was written. It hears nothing afterwards."""
        self._changes.close(wait_s=wait_s)

    def close(self) -> None:
        self.closed = True
        self._touches.close()
        self._changes.close()
        self._connections.close()
        self.local.close()

    def _ask(self, request: Message, cancel: Cancel | None = None) -> Answer:
        return self._connections.ask(request, cancel=cancel)

    def _reopen(self, id: FileId) -> CacheReader | None:
        try:
            return self.local.reader(id)
        except PathNotFoundError:
            return None

    def _follow(self, on_event: Callable[[Answer | EventsLost], None]) -> None:
        first = True
        while not self.closed:
            try:
                connection = self._connections.take()
                connection.send(Subscribe())
                if not first:
                    on_event(EventsLost())
                first = False
                while True:
                    on_event(connection.receive())
            except (NodeUnavailableError, CancelledByUserError):
                time.sleep(RECONNECT_PAUSE_S)
            except HeadraceError as error:  # whatever it is: without events a session would go wrong silently
                log.warning("events broken off, taken up again error=%s", error)
                time.sleep(TROUBLE_PAUSE_S)

    def _renew(self, welcome: Welcome) -> None:
        """A node that made its index anew has other ids: read that one from now on, as one that compacted it. The old
        one is left open while other threads may be reading it. One with other settings has other modes of writing, or
        one more disk."""
        with self._renewing:
            before = self.local
            if welcome.generation != before.generation:
                log.warning("index was made anew generation=%d", welcome.generation)
                self.local = LocalCache(welcome, self.touch)
            elif before.index.is_replaced:  # by a smaller copy, with the same ids
                self.local = LocalCache(welcome, self.touch)
            elif (welcome.write, welcome.volumes) != (before.write, before.volumes):
                self.local = LocalCache(welcome, self.touch, before.index)

    def reset_after_fork(self) -> None:
        """In a child: locks may be held by threads that are not there, and LMDB must be opened again."""
        self._renewing = threading.Lock()
        self._connections.reset_after_fork()
        self._touches.reset_after_fork()
        self._changes = ChangeReporter(self._connections)
        self.local.reopen_after_fork()


def _reset_after_fork(client: NodeClient | None) -> None:
    if client is None or client.closed:
        return
    try:
        client.reset_after_fork()
    except HeadraceError as error:
        log.warning("a forked child can't read the index error=%s", error)


def _mount_of(path: str, mounts: dict[str, dict[str, str]]) -> str:
    return max(
        (at for at in mounts if path == at or path.startswith(at.rstrip("/") + "/")), key=len, default=""
    )


def _origin_of(path: bytes, mounts: dict[str, dict[str, str]]) -> str:
    text = path.decode(errors="surrogateescape")
    best = _mount_of(text, mounts)
    if not best:
        return ""
    return mounts[best]["url"].rstrip("/") + "/" + text[len(best.rstrip("/")) :].lstrip("/")
