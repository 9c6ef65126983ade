"""Keep a replica of another node's unpersisted files: an upper layer like that node's, built from snapshots.

A process that opens the directory as an `Upper` can persist its files, under the writer's own preconditions. A large
file is assembled in `work` (its staging), and then moves to its place by one rename. Until then the previous state
stays complete. Blocks of the file's earlier state are reused, also under an earlier name. Calls block, and run one at a
time except `write`. Each may raise OSError.

A block without a checksum counts as missing. So a write first forgets the checksums of its blocks: a full disk may
break it off within one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from dataclasses import dataclass, field

import msgspec
import xxhash

from headrace.base.beneath import SafePath
from headrace.base.decoding import decode_msgpack
from headrace.base.model import BLOCK_SIZE_BYTES, block_count
from headrace.overlay.given_mode import give_mode
from headrace.overlay.hiding import hide
from headrace.overlay.mark_names import MARKS
from headrace.overlay.marks import is_removed, mark_value, set_base
from headrace.overlay.snapshot import EntryType, Snapshot
from headrace.overlay.syscalls import write_back
from headrace.overlay.upper import Upper

RANGE_BYTES = 8 << 20
"""Most bytes of one request for missing blocks."""
COPY_BYTES = 64 << 20
"""Most bytes that one system call copies."""

Range = tuple[int, int]
"""Start and end (exclusive) in bytes."""


@dataclass(slots=True)
class Staging:
    """Hold the state of a large file that is being assembled.

    sums: checksums of the blocks that it has, by block number. shared: its path is a second name of an installed file,
    so nothing may write to it. used_s: time of the last write, on the monotonic clock.
    """

    path: SafePath
    sums: dict[int, int] = field(default_factory=dict)
    shared: bool = False
    used_s: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Installed:
    """Describe a large file in its place. copy: the value of `copy_of` while the sums are those of its bytes."""

    path: bytes
    copy: tuple[int, ...]
    sums: list[int]


class ReplicaLayer:
    """Keep the replicas of one writer. folder: created when needed. is_durable: a file's bytes are written back before
    it gets its name; the caller flushes the disk."""

    def __init__(self, directory: str, *, is_durable: bool = False) -> None:
        self._is_durable = is_durable
        self.upper = Upper(directory)
        self._staged: dict[int, Staging] = {}
        self._placed: dict[int, Installed] = {}
        self._kept: set[bytes] | None = None
        self._staging = threading.Lock()
        self._is_closed = False

    def make(self) -> None:
        """Create the directories, and delete incomplete files of an earlier run."""
        self.upper.make()
        for name in self.upper.work.at(b"/").names():
            self.upper.work.at(b"/" + name).remove_tree()

    def close(self) -> None:
        """Close all descriptors, and refuse later writes, before another object uses the directory: it may assemble the
        same files, and deletes the stagings of this one (`make`)."""
        with self._staging:
            self._is_closed = True
            self.upper.close()

    # ------------------------------------------------------------ large files

    def missing(self, snapshot: Snapshot) -> list[Range]:
        """Return the ranges of a large file that must be fetched and written before it can be placed."""
        staged = self._staged.get(snapshot.inode) or self._stage(snapshot)
        absent = [number for number, sum in enumerate(snapshot.sums) if staged.sums.get(number) != sum]
        if absent and staged.shared:
            staged = self._unshare(snapshot.inode, staged)
        ranges: list[Range] = []
        for number in absent:
            start, end = number * BLOCK_SIZE_BYTES, min((number + 1) * BLOCK_SIZE_BYTES, snapshot.size_bytes)
            if ranges and ranges[-1][1] == start and end - ranges[-1][0] <= RANGE_BYTES:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((start, end))
        return ranges

    def write(self, inode: int, start: int, body: bytes | bytearray | memoryview) -> None:
        """Write bytes into the staging of a file. start: first byte of a block. Raises ESTALE after `close`."""
        first, count = start // BLOCK_SIZE_BYTES, block_count(len(body))
        with self._staging:  # several threads write ranges of one file
            if self._is_closed:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            staged = self._staged.get(inode)
            if staged is None:
                staged = self._staged[inode] = self._new_staging(inode)
            elif staged.shared:
                staged = self._unshare(inode, staged)
            staged.used_s = time.monotonic()
            for number in range(first, first + count):
                staged.sums.pop(number, None)
            fd = staged.path.open(os.O_WRONLY)
        try:
            view, position = memoryview(body), start
            while view:
                done = os.pwrite(fd, view, position)
                view, position = view[done:], position + done
        finally:
            os.close(fd)
        for number in range(count):
            part = memoryview(body)[number * BLOCK_SIZE_BYTES : (number + 1) * BLOCK_SIZE_BYTES]
            staged.sums[first + number] = xxhash.xxh3_64_intdigest(part)

    def drop_idle(self, idle_s: float) -> int:
        """Delete stagings without a write for idle_s, and forget the checksums of files that left their place. Return
        the number of stagings. These files were removed before they were
        closed; if one is still being written, its writer sends it again."""
        limit_s = time.monotonic() - idle_s
        with self._staging:
            idle = [inode for inode, staged in self._staged.items() if staged.used_s < limit_s]
            for inode in idle:
                self._staged.pop(inode).path.remove_tree()
        for inode, placed in list(self._placed.items()):
            if not self._is_in_place(placed):  # it was replaced or deleted
                del self._placed[inode]
        return len(idle)

    def _stage(self, snapshot: Snapshot) -> Staging:
        """Create the staging of a file, with the blocks of its earlier state. That state has the same inode number on
        the writer, and may have another name here."""
        placed = self._placed.get(snapshot.inode)
        staging = self._new_staging(snapshot.inode)
        if placed is not None and self._is_in_place(placed):
            staging.path.unlink()
            self.upper.at(placed.path).link(staging.path)
            staging = Staging(staging.path, dict(enumerate(placed.sums)), shared=True)
        self._staged[snapshot.inode] = staging
        return staging

    def _is_in_place(self, placed: Installed) -> bool:
        """Return whether a file can be read and is as it was placed, so that its blocks can be used again."""
        try:
            return copy_of(self.upper.at(placed.path)) == placed.copy
        except OSError:
            return False

    def _new_staging(self, inode: int) -> Staging:
        """Create an empty staging. One that is left from a failure goes first: it may share an installed file."""
        path = self.upper.work.at(b"/%x" % inode)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        os.close(path.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        return Staging(path)

    def _unshare(self, inode: int, staged: Staging) -> Staging:
        """Copy a staging that shares an installed file, so that it can be written."""
        copy = self.upper.work.at(staged.path.path + b".own")
        try:
            _copy(staged.path, copy)
            copy.rename(staged.path)
        except OSError:
            with contextlib.suppress(OSError):
                copy.unlink()  # it would take space on a disk that may be full
            raise
        staged.shared = False
        return staged

    # ------------------------------------------------------------ placing

    def begin(self) -> None:
        """Begin a complete list: `end` deletes every file that is not placed before it."""
        self._kept = set()

    def end(self) -> None:
        """Delete every file that was not placed since `begin`, and every empty directory. A directory that hides the
        origin's stays if it was placed: it is a removal that the origin lacks."""
        kept, self._kept = self._kept, None
        if kept is None:
            return
        for path, status in list(self.upper.walk()):
            if path not in kept and path != b"/" and not stat.S_ISDIR(status.st_mode):
                self._clear(path)
        self._drop_empty(kept)

    def _drop_empty(self, kept: set[bytes]) -> None:
        for path, status in reversed(list(self.upper.walk())):
            if path == b"/" or not stat.S_ISDIR(status.st_mode):
                continue
            with contextlib.suppress(OSError):  # most have entries; no data is lost with one that stays
                if path not in kept or not is_removed(self.upper.at(path)):
                    self.upper.at(path).rmdir()

    def place(self, snapshot: Snapshot) -> None:
        """Make a name match its snapshot. All ranges from `missing` must have been written for a large file."""
        if self._kept is not None:
            self._kept.add(snapshot.path)
        with self.upper.lock:
            if snapshot.shape == EntryType.GONE:
                self._clear(snapshot.path)
                return
            self._make_parents(snapshot.path)
            if snapshot.shape in (EntryType.DIRECTORY, EntryType.REMOVED):
                self._place_directory(snapshot)
                return
            if self.upper.at(snapshot.path).is_directory():
                self._clear(snapshot.path)
            if snapshot.shape == EntryType.WHITEOUT:
                hide(self.upper, snapshot.path, snapshot.replaces)
            else:
                self._place_file(snapshot)

    def _place_file(self, snapshot: Snapshot) -> None:
        new = self._staged[snapshot.inode].path if snapshot.is_large else self.upper.new()
        try:
            self._build(new, snapshot)
            self._finish(new, snapshot)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink()  # it would take space on a disk that may be full
            raise

    def _build(self, new: SafePath, snapshot: Snapshot) -> None:
        """Create an entry in `work` with the snapshot's content. A large file is its staging, which leaves the table of
        stagings."""
        if snapshot.shape == EntryType.LINK:
            new.symlink(snapshot.content)
        elif snapshot.is_large:
            staged = self._staged.pop(snapshot.inode)
            if staged.shared and new.lstat().st_size != snapshot.size_bytes:
                self._unshare(snapshot.inode, staged)
            _truncate(new, snapshot.size_bytes)
            count = block_count(snapshot.size_bytes)
            sums = [staged.sums[number] for number in range(count)]
            self._placed[snapshot.inode] = Installed(
                snapshot.path, (snapshot.inode, snapshot.ctime_ns, snapshot.size_bytes), sums
            )
        else:
            with open(new.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as out:
                out.write(snapshot.content)

    def _finish(self, new: SafePath, snapshot: Snapshot) -> None:
        """Give an entry of `work` the snapshot's attributes and its name."""
        set_base(new, snapshot.path, snapshot.replaces)
        new.chown(snapshot.uid, snapshot.gid)
        if snapshot.shape == EntryType.FILE:
            give_mode(new, snapshot.mode)
            source = msgspec.msgpack.encode((snapshot.inode, snapshot.ctime_ns, snapshot.size_bytes))
            new.setxattr(MARKS.copy, source)
            if snapshot.extras:
                new.setxattr(MARKS.extras, snapshot.extras)
        new.utime((snapshot.mtime_ns, snapshot.mtime_ns))
        if self._is_durable and snapshot.shape == EntryType.FILE:
            _write_back(new)
        new.rename(self.upper.at(snapshot.path))
        with contextlib.suppress(FileNotFoundError):
            new.unlink()  # rename does nothing if both are names of one file

    def _place_directory(self, snapshot: Snapshot) -> None:
        path = self.upper.at(snapshot.path)
        _make_folder(path)
        path.chown(snapshot.uid, snapshot.gid)
        give_mode(path, snapshot.mode)
        _mark(path, MARKS.removed, b"" if snapshot.shape == EntryType.REMOVED else None)
        _mark(path, MARKS.base, None)
        set_base(path, snapshot.path, snapshot.replaces)

    def _make_parents(self, path: bytes) -> None:
        for end, byte in enumerate(path):
            if byte == 0x2F and end:
                _make_folder(self.upper.at(path[:end]))

    def _clear(self, path: bytes) -> None:
        """Delete a path with everything below it, if it exists."""
        if path == b"/":
            return  # the root is always there
        with contextlib.suppress(NotADirectoryError):
            self.upper.at(path).remove_tree()


def copy_of(file: SafePath | int) -> tuple[int, ...]:
    """Return inode number, ctime in ns and size of the writer's file; () if the file is no replica. Raises OSError if
    that is not known now."""
    value = mark_value(file, MARKS.copy)
    try:
        return () if value is None else decode_msgpack(value, tuple[int, ...])
    except msgspec.MsgspecError:
        return ()


def _make_folder(path: SafePath) -> None:
    """Create a directory in the place of anything else."""
    if not path.is_directory():
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        path.mkdir(0o755)


def _truncate(path: SafePath, size_bytes: int) -> None:
    fd = path.open(os.O_WRONLY)
    try:
        os.ftruncate(fd, size_bytes)
    finally:
        os.close(fd)


def _mark(path: SafePath, name: str, value: bytes | None) -> None:
    """Set an extended attribute; None removes it."""
    if value is not None:
        path.setxattr(name, value)
        return
    with contextlib.suppress(OSError):
        path.removexattr(name)


def _write_back(path: SafePath) -> None:
    fd = path.open(os.O_RDONLY)
    try:
        write_back(fd)
    finally:
        os.close(fd)


def _copy(source: SafePath, target: SafePath) -> None:
    """Copy a file within the file system, which may share the blocks."""
    read, write = source.open(os.O_RDONLY), -1
    try:
        write = target.open(os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        while os.copy_file_range(read, write, COPY_BYTES):
            pass
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)
