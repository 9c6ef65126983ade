"""Answer the kernel's requests: one method for each opcode.

A method gets (unique, node id, whole request) and returns an answer: the bytes of a reply; an errno; None for no
reply, or for one that was sent; or a callable that may block. The session runs such a callable in its pool with a
Cancel, and it returns one of the others. Methods never block on the node, and never touch a mounted path.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from headrace.base.cancel import Cancel
from headrace.base.errors import HeadraceError
from headrace.base.model import FILE_ID_MAX, ROOT_ID, Entry, FileId, Kind
from headrace.client.node_client import MISS
from headrace.fuse import abi, codec
from headrace.fuse.abi import Opcode
from headrace.fuse.client_protocol import ReadingClient
from headrace.fuse.handles import Directories, Handle, HandleCache
from headrace.fuse.io_modes import InodeIoModes
from headrace.fuse.mountpoints import KEPT_TTL_S, MountpointNames

log = logging.getLogger(__name__)

Answer = bytes | int | None
Deferred = Callable[[Cancel], "Answer | Deferred"]
Method = Callable[[int, int, bytearray], "Answer | Deferred | DiskTask | PendingRead"]


@dataclass(frozen=True, slots=True)
class DiskTask:
    """Holds work that waits at most for the host's disk, never for the node. If it needs the node, it returns a
    callable that waits for that."""

    work: Callable[[], Answer | Deferred]


@dataclass(frozen=True, slots=True)
class PendingRead:
    """Holds a reply whose bytes the disk is reading ahead. The thread that started it finishes it when no other
    request is waiting. `finish` returns an answer, never more work."""

    finish: Callable[[], Answer]


FH_NONE, FH_PASSTHROUGH, FH_CACHED = 0, 1, 2
_PASSTHROUGH_FLAGS = abi.FOPEN_PASSTHROUGH | abi.FOPEN_NOFLUSH
_CACHED_FLAGS = abi.FOPEN_KEEP_CACHE | abi.FOPEN_NOFLUSH
_XATTRS = (b"user.headrace.cached", b"user.headrace.origin", b"user.headrace.version")
_SOCKET_XATTR = b"user.headrace.socket"
"""Attribute with which sdk/mapped_files.py finds the node. It is not listed, so that no program copies it to a file
outside the mount."""
MOUNTPOINTS_XATTR = abi.MOUNTPOINTS_XATTR.encode()
PENDING_READ_BYTES_MAX = 256 << 10
"""Largest READ that the hot thread answers. The copy of a larger one costs more than a change of threads, so the pool
does it."""
_WRITES = (
    *(Opcode.SETATTR, Opcode.SYMLINK, Opcode.MKNOD, Opcode.MKDIR, Opcode.UNLINK, Opcode.RMDIR, Opcode.RENAME),
    *(Opcode.LINK, Opcode.WRITE, Opcode.SETXATTR, Opcode.REMOVEXATTR, Opcode.CREATE, Opcode.FALLOCATE),
    *(Opcode.RENAME2, Opcode.COPY_FILE_RANGE, Opcode.TMPFILE),
)


class Mode(StrEnum):
    """Names how the kernel reads files: by itself, through the session, or through the session without OPEN."""

    PASSTHROUGH = "passthrough"
    SPLICE = "splice"
    NOOPEN = "noopen"


class Operations:
    """Answers the requests of a read-only mount. `register` registers the path of a cache file and returns a backing
    id; it raises OSError if the kernel refuses. `send` replies to a READ with bytes of a file (FileReplies.send)."""

    def __init__(
        self,
        client: ReadingClient,
        inodes: InodeIoModes,
        files: HandleCache,
        *,
        mode: Mode,
        register: Callable[[str], int],
        send: Callable[[int, int, int, int], int | None],
        mountpoints: MountpointNames,
    ) -> None:
        self._client = client
        self._mountpoints = mountpoints
        self._inodes = inodes
        self._files = files
        self.mode = mode
        self._register = register
        self._send = send
        self._directories = Directories()
        self._generation = inodes.generations.begin_at(client.generation)
        self._encode = codec.AttributeEncoder(uid=os.getuid(), gid=os.getgid(), generation=self._generation)

    def start_handles_at(self, first: int) -> None:
        self._directories.start_at(first)

    def table(self) -> dict[int, Method]:
        methods: dict[int, Method] = dict.fromkeys(_WRITES, self.read_only)
        for op in Opcode:
            method = getattr(self, op.name.lower(), None)
            if method is not None:
                methods[op] = method
        return methods

    def read_only(self, unique: int, node: int, request: bytearray) -> Answer:
        return errno.EROFS

    # ------------------------------------------------------------ names

    def lookup(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        name = codec.decode_name(request)
        if len(name) > abi.NAME_BYTES_MAX:
            return errno.ENAMETOOLONG
        parent = FileId(node)
        lower = self._mountpoints.lower(parent)
        entry = self._client.lookup_fast(lower, name)
        if entry is MISS:
            return lambda cancel: self._lookup_waiting(unique, (parent, name), cancel)
        assert entry is None or isinstance(entry, Entry)
        return self._entry_reply(unique, lower, self._mountpoints.answer(parent, name, entry))

    def _lookup_waiting(self, unique: int, place: tuple[FileId, bytes], cancel: Cancel) -> bytes:
        lower = self._mountpoints.lower(place[0])
        return self._entry_reply(
            unique, lower, self._mountpoints.answer(*place, self._lookup_lower(place, lower, cancel))
        )

    def _lookup_lower(self, place: tuple[int, bytes], lower: FileId, cancel: Cancel) -> Entry | None:
        """Look a name up at the node. A mountpoint is found while the node or the origin fails, too."""
        try:
            return self._client.lookup(lower, place[1], cancel)
        except HeadraceError:
            if place not in self._mountpoints:
                raise
            return self._client.lookup_stale(lower, place[1])

    def _entry_reply(self, unique: int, parent: FileId, entry: Entry | None) -> bytes:
        ttl_s = self._client.name_ttl_s(parent)
        if entry is None:
            return self._encode.negative_reply(unique, ttl_s)
        if self._mountpoints.is_lost(entry.id):
            ttl_s = KEPT_TTL_S
        return self._encode.entry_reply(unique, self._inodes.node_of(entry.id, entry.kind), entry, ttl_s)

    def forget(self, unique: int, node: int, request: bytearray) -> Answer:
        return None

    batch_forget = forget

    def getattr(self, unique: int, node: int, request: bytearray) -> Answer:
        id = FileId(node & FILE_ID_MAX)
        entry = self._client.entry(id) or self._mountpoints.entry(id)
        if entry is None:
            return errno.ESTALE
        return self._encode.attr_reply(unique, entry)

    # ------------------------------------------------------------ files

    def open(self, unique: int, node: int, request: bytearray) -> Answer | Deferred | DiskTask:
        backing_id = self._inodes.open_hit(node)
        if backing_id:
            self._client.touch(FileId(node & FILE_ID_MAX), *abi.CALLER_PID.unpack_from(request))
            return abi.OPEN_REPLY.pack(32, 0, unique, FH_PASSTHROUGH, _PASSTHROUGH_FLAGS, backing_id)
        if self.mode is Mode.NOOPEN:
            return errno.ENOSYS
        id = FileId(node & FILE_ID_MAX)
        self._client.touch(id, *abi.CALLER_PID.unpack_from(request))
        path = self._client.complete_path(id)
        if path is None:
            return lambda cancel: self._open_blocking(unique, node, cancel)
        return self._open_complete(unique, node, path)

    def _open_complete(self, unique: int, node: int, path: str) -> Answer:
        if self.mode is Mode.PASSTHROUGH:
            if self._inodes.may_pass(node):
                backing_id = self._open_passthrough(node, path)
                if backing_id:
                    return abi.OPEN_REPLY.pack(32, 0, unique, FH_PASSTHROUGH, _PASSTHROUGH_FLAGS, backing_id)
            elif self._inodes.refuse(node):
                return errno.ESTALE
        return self._open_cached(unique, node)

    def _open_passthrough(self, node: int, path: str) -> int:
        try:
            return self._inodes.open_passthrough(node, lambda: self._register(path))
        except FileNotFoundError:
            return 0  # evicted just now
        except OSError as error:
            log.warning("passthrough refused, the session serves the file instead reason=%s", error)
            return 0

    def _open_cached(self, unique: int, node: int) -> Answer:
        if self._inodes.is_damaged(node) and self._inodes.refuse(node):
            return errno.ESTALE
        backing_id = self._inodes.open_cached(node)
        if backing_id:
            return abi.OPEN_REPLY.pack(32, 0, unique, FH_PASSTHROUGH, _PASSTHROUGH_FLAGS, backing_id)
        return abi.OPEN_REPLY.pack(32, 0, unique, FH_CACHED, _CACHED_FLAGS, 0)

    def _open_blocking(self, unique: int, node: int, cancel: Cancel) -> Answer:
        id, drops = FileId(node & FILE_ID_MAX), self._files.drops
        file = self._client.open(id, cancel)
        path = self._client.complete_path(id) if file.complete else None
        if path is not None:
            file.close()
            return self._open_complete(unique, node, path)
        self._files.release(self._files.put(id, self._files.wrap(id, file), drops=drops))
        return self._open_cached(unique, node)

    def release(self, unique: int, node: int, request: bytearray) -> Answer | DiskTask:
        (fh,) = abi.RELEASE_IN.unpack_from(request, 40)
        if fh == FH_PASSTHROUGH:
            self._inodes.release_passthrough(node, unique)
        else:
            self._inodes.release_cached(node)
        return 0

    def read(self, unique: int, node: int, request: bytearray) -> DiskTask | PendingRead:
        """Read in the disk pool, where a slow disk delays nothing else. Without OPEN, small reads are most of the
        requests, and a change of threads costs more than the rest of one (docs/decisions/0003): the hot thread serves
        them."""
        _, offset, size, _ = abi.READ_IN.unpack_from(request, 40)
        extent = (offset, size)
        (pid,) = abi.CALLER_PID.unpack_from(request)
        if self.mode is Mode.NOOPEN and size <= PENDING_READ_BYTES_MAX:
            pending = self._begin_read(unique, node, extent, pid)
            if pending is not None:
                return pending
        return DiskTask(lambda: self._read_present(unique, node, extent, pid))

    def _begin_read(self, unique: int, node: int, extent: tuple[int, int], pid: int) -> PendingRead | None:
        """Start the read of a complete file, or return None. A read that must wait may be cancelled, so the pool
        acquires its own handle for it."""
        handle = self._files.acquire(FileId(node & FILE_ID_MAX), pid)
        if handle is None:
            return None
        if handle.file is not None:
            self._files.release(handle)
            return None
        os.posix_fadvise(handle.fd, *extent, os.POSIX_FADV_WILLNEED)
        return PendingRead(lambda: self._answer_read(unique, handle, extent))

    def _read_present(self, unique: int, node: int, extent: tuple[int, int], pid: int) -> Answer | Deferred:
        """Reply with bytes that are present; defer the others, so that an origin that hangs delays no cached file."""
        handle = self._files.acquire(FileId(node & FILE_ID_MAX), pid)
        if handle is not None and self._files.check_present(handle, *extent):
            return self._answer_read(unique, handle, extent)
        return lambda cancel: self._read_blocking(unique, node, extent, pid, cancel)

    def _read_blocking(
        self, unique: int, node: int, extent: tuple[int, int], pid: int, cancel: Cancel
    ) -> Answer:
        handle = self._files.acquire_blocking(FileId(node & FILE_ID_MAX), cancel, pid)
        return self._answer_read(unique, handle, extent, cancel)

    def _answer_read(
        self, unique: int, handle: Handle, extent: tuple[int, int], cancel: Cancel | None = None
    ) -> Answer:
        """Wait for bytes that are not present yet, reply, and release the handle."""
        offset, _ = extent
        try:
            count = handle.within(*extent)
            return self._send(unique, handle.fd_with(offset, count, cancel), offset, count)
        finally:
            self._files.release(handle)

    # ------------------------------------------------------------ directories

    def opendir(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        id = FileId(node)
        if self._client.listing_fresh(self._mountpoints.lower(id)):
            return self._opened(unique, id, abi.FOPEN_CACHE_DIR | abi.FOPEN_KEEP_CACHE)
        return lambda cancel: self._opendir_blocking(unique, id, cancel)

    def _opendir_blocking(self, unique: int, id: FileId, cancel: Cancel) -> bytes:
        lower = self._mountpoints.lower(id)
        if not self._mountpoints.is_lost(lower):
            self._client.ensure_listed(lower, cancel)
        return self._opened(unique, id, abi.FOPEN_CACHE_DIR)

    def _opened(self, unique: int, id: FileId, flags: int) -> bytes:
        if self._mountpoints.is_above_or_at(id):
            flags = 0  # the kernel learns of no change of these names
        return abi.OPEN_REPLY.pack(32, 0, unique, self._directories.open(), flags, 0)

    def releasedir(self, unique: int, node: int, request: bytearray) -> Answer:
        self._directories.close(abi.RELEASE_IN.unpack_from(request, 40)[0])
        return 0

    def readdir(self, unique: int, node: int, request: bytearray) -> Answer:
        return self._page(unique, FileId(node), request, plus=False)

    def readdirplus(self, unique: int, node: int, request: bytearray) -> Answer:
        return self._page(unique, FileId(node), request, plus=True)

    def _page(self, unique: int, id: FileId, request: bytearray, *, plus: bool) -> Answer:
        fh, offset, size, _ = abi.READ_IN.unpack_from(request, 40)
        directory = self._directories.get(fh)
        dots = codec.direntplus_bare if plus else codec.dirent
        parts: list[bytes] = []
        if offset == 0:
            directory.rewind()
            parts.append(dots(id, b".", Kind.DIRECTORY, 1))
        if offset <= 1:
            parts.append(dots(self._parent_of(id), b"..", Kind.DIRECTORY, 2))
        after, skip = directory.seek(max(2, offset))
        ttl_s = self._client.name_ttl_s(id)
        remaining, position = size - sum(map(len, parts)), max(2, offset)
        names: list[bytes] = []
        children = self._mountpoints.merged(id, self._children(id, after), after)
        for entry in _skipped(children, skip):
            part = self._direntplus(entry, position + 1, ttl_s) if plus else _dirent(entry, position + 1)
            if len(part) > remaining:
                break
            parts.append(part)
            names.append(entry.name)
            remaining -= len(part)
            position += 1
        _close(children)
        directory.record_page(max(2, offset), names)
        return codec.data_reply(unique, b"".join(parts))

    def _children(self, id: FileId, after: bytes) -> Iterator[Entry]:
        return self._client.children(self._mountpoints.lower(id), after)

    def _direntplus(self, entry: Entry, offset: int, ttl_s: float) -> bytes:
        return self._encode.direntplus(entry, self._inodes.node_of(entry.id, entry.kind), offset, ttl_s)

    def _parent_of(self, id: FileId) -> int:
        entry = self._client.entry(id) if id != ROOT_ID else None
        return ROOT_ID if entry is None else entry.parent

    # ------------------------------------------------------------ the rest

    def statfs(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        return lambda cancel: self._statfs(unique)

    def _statfs(self, unique: int) -> bytes:
        capacity, free, entries = self._client.statistics()
        block = abi.PAGE_BYTES
        counts = (capacity // block, free // block, free // block, entries, 0)
        sizes = (block, abi.NAME_BYTES_MAX, block, 0)
        return abi.STATFS_REPLY.pack(abi.STATFS_REPLY.size, 0, unique, *counts, *sizes)

    def getxattr(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        size, _ = abi.XATTR_IN.unpack_from(request, 40)
        name = bytes(request[48 : request.index(b"\0", 48)])
        if name == MOUNTPOINTS_XATTR and abi.IN_HEADER.unpack_from(request)[4] == 0:
            return lambda cancel: self._keep_mountpoints(unique, size, cancel)
        if name not in (*_XATTRS, _SOCKET_XATTR):
            return errno.ENODATA
        state = self._client.file_state(FileId(node & FILE_ID_MAX))
        value = state.get(name.rpartition(b".")[2].decode())
        return errno.ENODATA if value is None else xattr_reply(unique, os.fsencode(value), size)

    def _keep_mountpoints(self, unique: int, size: int, cancel: Cancel) -> Answer:
        count = self._mountpoints.refresh(lambda parent, path: self._resolved(parent, path, cancel))
        return xattr_reply(unique, b"%d" % count, size)

    def _resolved(self, parent: FileId, path: bytes, cancel: Cancel) -> Entry | None:
        """Return the entry of a path; None if it is missing, or if the node can't say."""
        name = path.rpartition(b"/")[2]
        try:
            return self._client.lookup(parent, name, cancel)
        except HeadraceError:
            return self._client.lookup_stale(parent, name)

    def listxattr(self, unique: int, node: int, request: bytearray) -> Answer:
        size, _ = abi.XATTR_IN.unpack_from(request, 40)
        if not node >> 48:
            return xattr_reply(unique, b"", size)
        return xattr_reply(unique, b"\0".join(_XATTRS) + b"\0", size)


def with_errno(method: Method) -> Method:
    """Return the method with OSErrors of the upper layer as its answer, as a local file system would give it."""

    def run(unique: int, node: int, request: bytearray) -> Answer | Deferred | DiskTask | PendingRead:
        try:
            answer = method(unique, node, request)
        except HeadraceError:
            raise  # some are OSErrors without a number
        except OSError as error:
            return error.errno or errno.EIO
        if callable(answer):
            deferred = answer
            return lambda cancel: _answer_or_errno(lambda: deferred(cancel))
        if isinstance(answer, DiskTask):
            work = answer.work
            return DiskTask(lambda: _answer_or_errno(work))
        return answer

    return run


def _answer_or_errno(work: Callable[[], Answer | Deferred]) -> Answer | Deferred:
    try:
        answer = work()
    except HeadraceError:
        raise
    except OSError as error:
        return error.errno or errno.EIO
    if callable(answer):
        return lambda cancel: _answer_or_errno(lambda: answer(cancel))
    return answer


def xattr_reply(unique: int, value: bytes, size: int) -> Answer:
    if size == 0:
        return abi.XATTR_SIZE_REPLY.pack(abi.XATTR_SIZE_REPLY.size, 0, unique, len(value), 0)
    return errno.ERANGE if len(value) > size else codec.data_reply(unique, value)


def _dirent(entry: Entry, offset: int) -> bytes:
    return codec.dirent(entry.id, entry.name, entry.kind, offset)


def _skipped(children: Iterator[Entry], count: int) -> Iterator[Entry]:
    for _ in range(count):
        if next(children, None) is None:
            return
    yield from children


def _close(children: Iterator[Entry]) -> None:
    """Close a generator of the index, which holds a read transaction, no later than the end of the page."""
    close = getattr(children, "close", None)
    if close is not None:
        close()
