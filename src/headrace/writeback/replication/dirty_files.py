"""Open dirty files for other nodes: this node's own, and replicas of other writers' files.

A read returns bytes of the requested version, or fails: a later write makes another version of the file.
"""

from __future__ import annotations

import asyncio
import errno
import io
import logging
import os
import stat
from collections.abc import Callable
from concurrent.futures import Executor

from headrace.base.beneath import Root, SafePath
from headrace.base.errors import HeadraceError, VersionChangedError
from headrace.base.model import Arrived, ObjectMetadata
from headrace.overlay.mark_names import MARKS
from headrace.overlay.marks import is_removed, is_whiteout
from headrace.overlay.object_metadata import extras_of
from headrace.overlay.pending_version import EntryState, PendingEntry, PendingVersion
from headrace.overlay.syscalls import seen_at_rest, tick_left_s
from headrace.wire.peer_messages import FileRange
from headrace.writeback.replication.replica_layer import copy_of

log = logging.getLogger(__name__)


class DirtyFileReader:
    """Read a file of a layer for a peer. The file may change meanwhile, so checksums are those of the bytes that were
    sent. fd: closed by this object."""

    steady = False

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self._name = name

    def fileno(self) -> int:
        return self._fd

    def checksum(self, block: int) -> int:
        raise NotImplementedError

    def extras(self) -> ObjectMetadata | None:
        return extras_of(self._fd, os.fstat(self._fd))

    def close(self) -> None:
        os.close(self._fd)


class OwnDirtyFileReader(DirtyFileReader):
    """Read one version of a file. `ready` checks the version after each read, too."""

    def __init__(self, fd: int, state: tuple[int, int], name: str) -> None:
        super().__init__(fd, name)
        self._state = state

    def ready(self, start: int, end: int) -> bool:
        status = os.fstat(self._fd)
        return (status.st_ctime_ns, status.st_size) == self._state

    async def wait(self, start: int, end: int) -> None:
        raise VersionChangedError(self._name, why="it was written again")


class DirtyFiles:
    """Open dirty files for peers. locate: returns where a file of this node lies. folder_of: returns the directory of a
    writer's replicas."""

    def __init__(
        self,
        me: str,
        threads: Executor,
        *,
        locate: Callable[[bytes], SafePath],
        folder_of: Callable[[str], str],
    ) -> None:
        self._me = me
        self._threads = threads
        self._locate = locate
        self._folder_of = folder_of

    async def open(self, wanted: FileRange) -> OwnDirtyFileReader:
        """Open a file of a pending version. Raises VersionChangedError if this node does not have that version."""
        written = PendingVersion.parse(wanted.token)
        name = os.fsdecode(wanted.path)
        if written is None:
            raise VersionChangedError(name, why="its token is invalid")
        own = written.writer == self._me
        loop = asyncio.get_running_loop()
        try:
            safe_path = self._locate(wanted.path) if own else self._copy_at(written.writer, wanted.path)
            file, status = await loop.run_in_executor(self._threads, _open_at_rest, safe_path)
        except OSError as error:
            raise VersionChangedError(name, why=f"it is not here: {error.strerror}") from None
        with file:
            state = (status.st_ino, status.st_ctime_ns) if own else _copy_state(file.fileno(), name)
            if state != (written.inode, written.ctime_ns) or status.st_size != wanted.size_bytes:
                raise VersionChangedError(name, why="it was written again")
            # a write within the same tick would not change the ctime
            await asyncio.sleep(tick_left_s(status))
            return OwnDirtyFileReader(os.dup(file.fileno()), (status.st_ctime_ns, status.st_size), name)

    async def read(self, wanted: FileRange) -> Arrived | None:
        """Read bytes from a replica on this node; None if it does not have that version."""
        try:
            piece = await self.open(wanted)
        except HeadraceError:
            return None
        try:
            body: bytes = await asyncio.get_running_loop().run_in_executor(
                self._threads, os.pread, piece.fileno(), wanted.end - wanted.start, wanted.start
            )
            extras = piece.extras()
            return Arrived(body, extras) if piece.ready(wanted.start, wanted.end) else None
        finally:
            piece.close()

    async def replica_entries(
        self, writer: str, directory: bytes, *, after: bytes = b"", most: int | None = None
    ) -> list[PendingEntry]:
        """Return the names of a writer's directory as this node's replicas have them, in order. All count as dirty,
        because this node does not know what the writer has persisted since. after, most: return the next ones of a
        large directory."""
        entries: list[PendingEntry] = await asyncio.get_running_loop().run_in_executor(
            self._threads, _replica_entries, self._copy_at(writer, directory), after, most
        )
        return entries

    def _copy_at(self, writer: str, path: bytes) -> SafePath:
        return Root(os.fsencode(self._folder_of(writer)) + b"/tree").at(path)


def _open_at_rest(safe_path: SafePath) -> tuple[io.FileIO, os.stat_result]:
    """Open a file, and wait until all writes that its ctime covers have ended. The file closes itself if its reader is
    cancelled."""
    file = io.FileIO(safe_path.open(os.O_RDONLY | os.O_NONBLOCK))
    status = seen_at_rest(file.fileno())
    if MARKS.single_owner and is_whiteout(status):
        file.close()
        raise FileNotFoundError(errno.ENOENT, "removed just now", repr(safe_path))
    return file, status


def _copy_state(fd: int, name: str) -> tuple[int, ...]:
    """Return inode number and ctime of the writer's file."""
    try:
        return copy_of(fd)[:2]
    except OSError as error:
        raise VersionChangedError(name, why=f"its replica can't be read: {error.strerror}") from None


def own_entry(safe_path: SafePath, name: bytes) -> PendingEntry:
    """Return the entry of a name in a layer. Its state is ORIGIN if the layer has nothing there, or has a link or a
    special file, which other nodes do not see. Raises OSError if it can't be read now."""
    status = safe_path.seen()
    if status is None:
        return PendingEntry(name, EntryState.ORIGIN)
    if is_whiteout(status):
        return PendingEntry(name, EntryState.HIDDEN)
    if stat.S_ISDIR(status.st_mode):
        return PendingEntry(name, EntryState.HIDDEN if is_removed(safe_path) else EntryState.DIRECTORY)
    return (
        PendingEntry.of_file(name, status)
        if stat.S_ISREG(status.st_mode)
        else PendingEntry(name, EntryState.ORIGIN)
    )


def _replica_entries(directory: SafePath, after: bytes, most: int | None) -> list[PendingEntry]:
    """Return the entries of a directory of replicas, in order. Runs in a thread: each name takes some 35 µs."""
    try:
        names = sorted(name for name in directory.names() if name > after)[:most]
        return [_replica_entry_now(directory / name, name) for name in names]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _replica_entry_now(safe_path: SafePath, name: bytes) -> PendingEntry:
    """Return `replica_entry`. A name that can't be read now shows the origin's entry, and keeps no other from being
    shown."""
    try:
        return replica_entry(safe_path, name)
    except OSError as error:
        log.info("a replica can't be read path=%s error=%s", safe_path, error)
        return PendingEntry(name, EntryState.ORIGIN)


def replica_entry(safe_path: SafePath, name: bytes) -> PendingEntry:
    """Return the entry of a name in a replica. A file has the inode number and ctime that it has on its writer. Raises
    OSError if it can't be read now."""
    own = own_entry(safe_path, name)
    if own.means != EntryState.FILE:
        return own
    state = copy_of(safe_path)
    if len(state) != 3:
        return PendingEntry(name, EntryState.ORIGIN)
    return PendingEntry(name, EntryState.FILE, own.size_bytes, own.mtime_ns, state[0], state[1])
