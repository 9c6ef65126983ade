"""A copy of what another node wrote and has not persisted yet: an upper layer like its own, made of snapshots.

Whoever opens the folder as an `Upper` can persist what is in it, with the conditions that the writer would have used.
A large file is put together in `work` (its staging) and takes its place whole: what was there before is complete
until then. Blocks that are here already, of an earlier state of the file or under an earlier name of it, are not sent
again. Blocking; one call at a time but for `write`. Every call may raise OSError.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from dataclasses import dataclass, field

import msgspec
import xxhash

from headrace.base.beneath import SafePath
from headrace.base.decoding import decode_msgpack
from headrace.base.model import BLOCK_SIZE_BYTES
from headrace.overlay.given_mode import give_mode
from headrace.overlay.object_metadata import ATTRIBUTE as EXTRAS
from headrace.overlay.snapshot import EntryType, Snapshot
from headrace.overlay.syscalls import write_back
from headrace.overlay.upper import BASE, REMOVED, BaseVersion, Upper, set_base

COPY_OF = "trusted.headrace.copy"
"""Of a file: inode number, ctime in ns and size on the node that wrote it."""
RANGE_BYTES = 8 << 20
COPY_BYTES = 64 << 20

Range = tuple[int, int]


@dataclass(slots=True)
class Staging:
    """sums: of the blocks that are there. shared: a second name of a file that has its place; not to be written.
    used_s: monotonic, the last time that something came for it."""

    at: SafePath
    sums: dict[int, int] = field(default_factory=dict)
    shared: bool = False
    used_s: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Installed:
    """copy: what `copy_of` says of it as long as the sums are those of its bytes."""

    path: bytes
    copy: tuple[int, ...]
    sums: list[int]


class ReplicaLayer:
    """folder: made when it is needed. is_durable: a file's bytes are on their way to the disk before it has its name;
    the flush is the caller's."""

    def __init__(self, folder: str, *, is_durable: bool = False) -> None:
        self._is_durable = is_durable
        self.upper = Upper(folder)
        self._staged: dict[int, Staging] = {}
        self._placed: dict[int, Installed] = {}
        self._kept: set[bytes] | None = None
        self._staging = threading.Lock()

    def make(self) -> None:
        self.upper.make()
        for name in self.upper.work.at(b"/").names():
            self.upper.work.at(b"/" + name).throw_away()

    # ------------------------------------------------------------ large files

    def missing(self, wanted: Snapshot) -> list[Range]:
        """The ranges of a large file that have to be fetched and written before it can be placed."""
        staged = self._staged.get(wanted.inode) or self._stage(wanted)
        absent = [number for number, sum in enumerate(wanted.sums) if staged.sums.get(number) != sum]
        if absent and staged.shared:
            staged = self._unshare(wanted.inode, staged)
        ranges: list[Range] = []
        for number in absent:
            start, end = number * BLOCK_SIZE_BYTES, min((number + 1) * BLOCK_SIZE_BYTES, wanted.size_bytes)
            if ranges and ranges[-1][1] == start and end - ranges[-1][0] <= RANGE_BYTES:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((start, end))
        return ranges

    def write(self, inode: int, start: int, body: bytes | bytearray) -> None:
        """Into the staging of a file. start: of a block."""
        with self._staging:  # ranges of one file come in several threads
            staged = self._staged.get(inode)
            if staged is None:
                staged = self._staged[inode] = self._new_staging(inode)
            elif staged.shared:
                staged = self._unshare(inode, staged)
            staged.used_s = time.monotonic()
        fd = staged.at.open(os.O_WRONLY)
        try:
            view, at = memoryview(body), start
            while view:
                done = os.pwrite(fd, view, at)
                view, at = view[done:], at + done
        finally:
            os.close(fd)
        for offset in range(0, len(body), BLOCK_SIZE_BYTES):
            part = memoryview(body)[offset : offset + BLOCK_SIZE_BYTES]
            staged.sums[(start + offset) // BLOCK_SIZE_BYTES] = xxhash.xxh3_64_intdigest(part)

    def drop_idle(self, idle_s: float) -> int:
        """What was sent ahead of a file that nobody came back to is thrown away: it was removed before it was closed.
        Were it still being written, it would be sent anew. How many there were."""
        limit_s = time.monotonic() - idle_s
        with self._staging:
            idle = [inode for inode, staged in self._staged.items() if staged.used_s < limit_s]
            for inode in idle:
                self._staged.pop(inode).at.throw_away()
        return len(idle)

    def _stage(self, wanted: Snapshot) -> Staging:
        """What an earlier state of the file gives: the same inode on the writer, here under this name or another."""
        placed = self._placed.get(wanted.inode)
        staging = self._new_staging(wanted.inode)
        earlier = None if placed is None else self.upper.at(placed.path)
        if placed is not None and earlier is not None and copy_of(earlier) == placed.copy:
            staging.at.unlink()
            earlier.link(staging.at)
            staging = Staging(staging.at, dict(enumerate(placed.sums)), shared=True)
        self._staged[wanted.inode] = staging
        return staging

    def _new_staging(self, inode: int) -> Staging:
        at = self.upper.work.at(b"/%x" % inode)
        os.close(at.open(os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        return Staging(at)

    def _unshare(self, inode: int, staged: Staging) -> Staging:
        own = self.upper.work.at(staged.at.path + b".own")
        _copy(staged.at, own)
        own.rename(staged.at)
        staged.shared = False
        return staged

    # ------------------------------------------------------------ placing

    def begin(self) -> None:
        """From here to `end`, what is to stay is kept; the rest goes then."""
        self._kept = set()

    def end(self) -> None:
        kept, self._kept = self._kept, None
        if kept is None:
            return
        for path, found in list(self.upper.walk()):
            if path not in kept and path != b"/" and not stat.S_ISDIR(found.st_mode):
                self._clear(path)
        self._drop_empty(b"/")

    def _drop_empty(self, directory: bytes) -> None:
        for path, found in reversed(list(self.upper.walk(directory))):
            if path != b"/" and stat.S_ISDIR(found.st_mode):
                with contextlib.suppress(OSError):
                    self.upper.at(path).rmdir()

    def place(self, one: Snapshot) -> None:
        """The name is as the snapshot says on return. Of a large file, all of `missing` was written."""
        if self._kept is not None:
            self._kept.add(one.path)
        with self.upper.lock:
            if one.shape == EntryType.GONE:
                self._clear(one.path)
                return
            self._make_parents(one.path)
            if one.shape in (EntryType.DIRECTORY, EntryType.REMOVED):
                self._place_directory(one)
                return
            if self.upper.at(one.path).is_folder():
                self._clear(one.path)
            if one.shape == EntryType.WHITEOUT:
                self.upper.hide(one.path, one.replaces)
            else:
                self._place_file(one)

    def _place_file(self, one: Snapshot) -> None:
        made = self._made(one)
        if one.replaces is not None:
            set_base(made, BaseVersion(one.path, one.replaces))
        made.chown(one.uid, one.gid)
        if one.shape == EntryType.FILE:
            give_mode(made, one.mode)
            own = msgspec.msgpack.encode((one.inode, one.ctime_ns, one.size_bytes))
            made.setxattr(COPY_OF, own)
            if one.extras:
                made.setxattr(EXTRAS, one.extras)
        made.utime((one.mtime_ns, one.mtime_ns))
        if self._is_durable and one.shape == EntryType.FILE:
            _write_back(made)
        made.rename(self.upper.at(one.path))
        with contextlib.suppress(FileNotFoundError):
            made.unlink()  # rename does nothing where both were names of one file

    def _made(self, one: Snapshot) -> SafePath:
        made = self.upper.new()
        if one.shape == EntryType.LINK:
            made.symlink(one.content)
        elif one.is_large:
            staged = self._staged.pop(one.inode)
            made = staged.at
            _truncate(made, one.size_bytes)
            count = -(-one.size_bytes // BLOCK_SIZE_BYTES)
            sums = [staged.sums[number] for number in range(count)]
            self._placed[one.inode] = Installed(one.path, (one.inode, one.ctime_ns, one.size_bytes), sums)
        else:
            with open(made.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as out:
                out.write(one.content)
        return made

    def _place_directory(self, one: Snapshot) -> None:
        at = self.upper.at(one.path)
        _make_folder(at)
        at.chown(one.uid, one.gid)
        at.chmod(one.mode)
        _mark(at, REMOVED, b"" if one.shape == EntryType.REMOVED else None)
        _mark(at, BASE, None)
        if one.replaces is not None:
            set_base(at, BaseVersion(one.path, one.replaces))

    def _make_parents(self, path: bytes) -> None:
        for end, byte in enumerate(path):
            if byte == 0x2F and end:
                _make_folder(self.upper.at(path[:end]))

    def _clear(self, path: bytes) -> None:
        if path == b"/":
            return  # the root is always there
        with contextlib.suppress(NotADirectoryError):
            self.upper.at(path).throw_away()


def copy_of(at: SafePath | int) -> tuple[int, ...]:
    """Inode number, ctime in ns and size of the writer's file; () for what is no copy."""
    try:
        value = os.getxattr(at, COPY_OF) if isinstance(at, int) else at.getxattr(COPY_OF)
        return decode_msgpack(value, tuple[int, ...])
    except (OSError, msgspec.MsgspecError):
        return ()


def _make_folder(at: SafePath) -> None:
    """In the place of what is none."""
    if not at.is_folder():
        with contextlib.suppress(FileNotFoundError):
            at.unlink()
        at.mkdir(0o755)


def _truncate(at: SafePath, size_bytes: int) -> None:
    fd = at.open(os.O_WRONLY)
    try:
        os.ftruncate(fd, size_bytes)
    finally:
        os.close(fd)


def _mark(at: SafePath, name: str, value: bytes | None) -> None:
    if value is not None:
        at.setxattr(name, value)
        return
    with contextlib.suppress(OSError):
        at.removexattr(name)


def _write_back(at: SafePath) -> None:
    fd = at.open(os.O_RDONLY)
    try:
        write_back(fd)
    finally:
        os.close(fd)


def _copy(source: SafePath, target: SafePath) -> None:
    """Within the file system, which may share the blocks."""
    read, write = source.open(os.O_RDONLY), -1
    try:
        write = target.open(os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        while os.copy_file_range(read, write, COPY_BYTES):
            pass
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)
