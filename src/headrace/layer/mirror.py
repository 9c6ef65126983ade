"""A copy of what another node wrote and has not persisted yet: an upper layer like its own, made of snapshots.

Whoever opens the folder as an `Upper` can persist what is in it, with the conditions that the writer would have used.
A large file is put together in `work` (its staging) and takes its place whole: what was there before is complete
until then. Blocks that are here already, of an earlier state of the file or under an earlier name of it, are not sent
again. Blocking; one call at a time but for `write`. Every call may raise OSError.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import threading
import time
from dataclasses import dataclass, field

import msgspec
import xxhash

from headrace.base.model import BLOCK_SIZE_BYTES
from headrace.layer.extras import ATTRIBUTE as EXTRAS
from headrace.layer.snapshot import Shape, Snapshot
from headrace.layer.upper import BASE, REMOVED, Base, Upper, join, set_base, split, throw_away

COPY_OF = "trusted.headrace.copy"
"""Of a file: inode number, ctime in ns and size on the node that wrote it."""
RANGE_BYTES = 8 << 20
COPY_BYTES = 64 << 20

Range = tuple[int, int]


@dataclass(slots=True)
class Staged:
    """sums: of the blocks that are there. shared: a second name of a file that has its place; not to be written.
    used_s: monotonic, the last time that something came for it."""

    at: bytes
    sums: dict[int, int] = field(default_factory=dict)
    shared: bool = False
    used_s: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Placed:
    """copy: what `copy_of` says of it as long as the sums are those of its bytes."""

    path: bytes
    copy: tuple[int, ...]
    sums: list[int]


class Mirror:
    """folder: made when it is needed."""

    def __init__(self, folder: str) -> None:
        self.upper = Upper(folder)
        self._staged: dict[int, Staged] = {}
        self._placed: dict[int, Placed] = {}
        self._kept: set[bytes] | None = None
        self._staging = threading.Lock()

    def make(self) -> None:
        self.upper.make()
        for name in os.listdir(self.upper.work):
            throw_away(join(self.upper.work, name))

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
        fd = os.open(staged.at, os.O_WRONLY | os.O_CLOEXEC)
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
                throw_away(self._staged.pop(inode).at)
        return len(idle)

    def _stage(self, wanted: Snapshot) -> Staged:
        """What an earlier state of the file gives: the same inode on the writer, here under this name or another."""
        placed = self._placed.get(wanted.inode)
        staging = self._new_staging(wanted.inode)
        earlier = b"" if placed is None else self._earlier_copy(placed)
        if placed is not None and earlier:
            os.unlink(staging.at)
            os.link(earlier, staging.at)
            staging = Staged(staging.at, dict(enumerate(placed.sums)), shared=True)
        self._staged[wanted.inode] = staging
        return staging

    def _earlier_copy(self, placed: Placed) -> bytes:
        """Where it lies; b"" when something else has its name now."""
        try:
            at = self.upper.at_without_links(placed.path)
        except NotADirectoryError:
            return b""
        return at if copy_of(at) == placed.copy else b""

    def _new_staging(self, inode: int) -> Staged:
        at = b"%s/%x" % (self.upper.work, inode)
        os.close(os.open(at, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        return Staged(at)

    def _unshare(self, inode: int, staged: Staged) -> Staged:
        own = staged.at + b".own"
        _copy(staged.at, own)
        os.rename(own, staged.at)
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
                    os.rmdir(self.upper.at(path))

    def place(self, one: Snapshot) -> None:
        """The name is as the snapshot says on return. Of a large file, all of `missing` was written."""
        if self._kept is not None:
            self._kept.add(one.path)
        with self.upper.lock:
            if one.shape == Shape.GONE:
                self._clear(one.path)
                return
            self._make_parents(one.path)
            if one.shape in (Shape.DIRECTORY, Shape.REMOVED):
                self._place_directory(one)
                return
            if os.path.isdir(self.upper.at(one.path)) and not os.path.islink(self.upper.at(one.path)):
                self._clear(one.path)
            if one.shape == Shape.WHITEOUT:
                self.upper.hide(one.path, one.replaces)
            else:
                self._place_file(one)

    def _place_file(self, one: Snapshot) -> None:
        made = self._made(one)
        if one.replaces is not None:
            set_base(made, Base(one.path, one.replaces))
        os.chown(made, one.uid, one.gid, follow_symlinks=False)
        if one.shape == Shape.FILE:
            os.chmod(made, one.mode)
            own = msgspec.msgpack.encode((one.inode, one.ctime_ns, one.size_bytes))
            os.setxattr(made, COPY_OF, own)
            if one.extras:
                os.setxattr(made, EXTRAS, one.extras)
        os.utime(made, ns=(one.mtime_ns, one.mtime_ns), follow_symlinks=False)
        os.rename(made, self.upper.at(one.path))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(made)  # rename does nothing where both were names of one file

    def _made(self, one: Snapshot) -> bytes:
        made = self.upper.new()
        if one.shape == Shape.LINK:
            os.symlink(one.content, made)
        elif one.is_large:
            staged = self._staged.pop(one.inode)
            made = staged.at
            os.truncate(made, one.size_bytes)
            count = -(-one.size_bytes // BLOCK_SIZE_BYTES)
            sums = [staged.sums[number] for number in range(count)]
            self._placed[one.inode] = Placed(one.path, (one.inode, one.ctime_ns, one.size_bytes), sums)
        else:
            with open(made, "xb") as out:
                out.write(one.content)
        return made

    def _place_directory(self, one: Snapshot) -> None:
        at = self.upper.at(one.path)
        if os.path.islink(at) or not os.path.isdir(at):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(at)
            os.mkdir(at, 0o755)
        os.chown(at, one.uid, one.gid)
        os.chmod(at, one.mode)
        _mark(at, REMOVED, b"" if one.shape == Shape.REMOVED else None)
        _mark(at, BASE, None)
        if one.replaces is not None:
            set_base(at, Base(one.path, one.replaces))

    def _make_parents(self, path: bytes) -> None:
        directory = split(path)[0]
        if directory == b"/":
            return
        self._make_parents(directory)
        at = self.upper.at(directory)
        if os.path.islink(at) or not os.path.isdir(at):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(at)
            os.mkdir(at, 0o755)

    def _clear(self, path: bytes) -> None:
        if path == b"/":
            return  # the root is always there
        try:
            at = self.upper.at_without_links(path)
            if stat.S_ISDIR(os.lstat(at).st_mode):
                shutil.rmtree(at)
            else:
                os.unlink(at)
        except (FileNotFoundError, NotADirectoryError):
            pass


def copy_of(at: bytes) -> tuple[int, ...]:
    """Inode number, ctime in ns and size of the writer's file; () for what is no copy."""
    try:
        return msgspec.msgpack.decode(os.getxattr(at, COPY_OF, follow_symlinks=False), type=tuple[int, ...])
    except (OSError, msgspec.MsgspecError):
        return ()


def _mark(at: bytes, name: str, value: bytes | None) -> None:
    if value is not None:
        os.setxattr(at, name, value)
        return
    with contextlib.suppress(OSError):
        os.removexattr(at, name)


def _copy(source: bytes, target: bytes) -> None:
    """Within the file system, which may share the blocks."""
    read, write = os.open(source, os.O_RDONLY | os.O_CLOEXEC), -1
    try:
        write = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        while os.copy_file_range(read, write, COPY_BYTES):
            pass
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)
