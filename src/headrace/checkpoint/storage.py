"""Where checkpoints lie: the few things a folder must be able to do, and POSIX directories, which can.

A `CheckpointStorage` moves bytes and names; what the names mean is layout.py's. Names are relative, with `/`
between folders. All calls block, and may come from many threads. Foreign errors become ours here.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Iterator
from typing import Protocol

from headrace.base.beneath import Root, SafePath
from headrace.base.boot_clock import boot_id
from headrace.base.errors import (
    CheckpointFailedError,
    CheckpointNoSpaceError,
    HeadraceError,
    NotADirectoryPathError,
    PathNotFoundError,
)
from headrace.checkpoint.foreign_claims import is_abandoned
from headrace.overlay.syscalls import sync_folder

ALIGN_BYTES = 4096
"""Offsets, lengths and addresses that are multiples of it may bypass the page cache (O_DIRECT)."""
_SYS_CACHESTAT = 451  # of every architecture but alpha; since Linux 6.5
_MAP_FIXED = 0x10  # include/uapi/asm-generic/mman-common.h; Python does not name it
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_int64)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FileWriter(Protocol):
    """A new file that is being written."""

    def write(self, data: memoryview, offset: int) -> None:
        """All of `data` there. Writes of many threads must not overlap."""

    def sync(self) -> None:
        """On return the bytes and the length survive a power loss; the name does not yet (`sync_folder`)."""

    def close(self) -> None: ...


class FileReader(Protocol):
    """A file to be read; goes on working when its name is removed."""

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fills `target`. CheckpointFailedError where the file ends before that."""

    def map_into(self, target: memoryview, offset: int) -> bool:
        """Puts the file's own pages, private ones, in the place of the target's, which are a mapping of the caller's.
        False where they are not in memory, or can't be mapped: then nothing happened."""

    def close(self) -> None: ...


class SaveClaim(Protocol):
    """Says that its owner lives, until it is released or the owner ends, however it ends."""

    def release(self) -> None: ...


class CheckpointStorage(Protocol):
    """PathNotFoundError for what is not there; CheckpointNoSpaceError and CheckpointFailedError for the rest."""

    @property
    def name(self) -> str:
        """What messages call it."""

    def create(self, name: str) -> FileWriter:
        """A file that is not there yet."""

    def open(self, name: str) -> FileReader: ...

    def read(self, name: str, *, bytes_max: int | None = None) -> bytes:
        """A small file, or its beginning."""

    def size_bytes(self, name: str) -> int: ...

    def rename(self, name: str, new_name: str) -> None:
        """Atomic, over what is there. Durable after `sync_folder`."""

    def remove(self, name: str) -> None:
        """Nothing happens when it is not there."""

    def make_folder(self, folder: str) -> None:
        """With those above it, durable on return. Nothing happens when it is there."""

    def remove_folder(self, folder: str) -> None:
        """Nothing happens when it is not empty, or not there."""

    def sync_folder(self, folder: str) -> None:
        """On return the names in it are durable."""

    def names(self, folder: str) -> list[str]:
        """Sorted; empty when there is no such folder."""

    def claim(self, name: str, data: bytes) -> SaveClaim:
        """A new file with `data`, held by this process. Seen by others on return; not durable, nor need it be."""

    def is_claimed(self, name: str) -> bool:
        """Whether its owner lives, as far as can be known; else, a day after somebody here looked first, it does
        not."""


def place_of(where: str | CheckpointStorage) -> CheckpointStorage:
    """where: a folder, or headrace:///folder of this host's node: NodeUnavailableError, UsageError."""
    if not isinstance(where, str):
        return where
    if where.startswith("headrace://"):
        from headrace.checkpoint.node_storage import NodeStorage  # what it needs, a folder does not

        return NodeStorage(where)
    return PosixStorage(where)


class PosixStorage:
    """A directory of any POSIX file system. `direct`: bypass the page cache where the file system can. The path of the
    directory is the caller's, and may lead over links; within it none is followed, as others may be able to write there
    while root saves, prunes or restores."""

    def __init__(self, folder: str, *, direct: bool = True) -> None:
        self._folder = os.path.abspath(folder)
        self._direct = direct

    @property
    def name(self) -> str:
        return self._folder

    def path(self, name: str) -> str:
        return os.path.join(self._folder, name) if name else self._folder

    def _at(self, name: str) -> SafePath:
        """The directory is opened for each call: another disk may be mounted there by now."""
        return Root(os.fsencode(self._folder)).at(b"/" + os.fsencode(name))

    def create(self, name: str) -> PosixWriter:
        path = self.path(name)
        with _told(path):
            fd = self._at(name).open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            return PosixWriter(fd, path, direct=self._direct)

    def open(self, name: str) -> PosixReader:
        path = self.path(name)
        with _told(path):
            return PosixReader(self._at(name).open(os.O_RDONLY | os.O_NONBLOCK), path, direct=self._direct)

    def read(self, name: str, *, bytes_max: int | None = None) -> bytes:
        path = self.path(name)
        with _told(path), open(self._at(name).open(os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            return file.read(-1 if bytes_max is None else bytes_max)

    def size_bytes(self, name: str) -> int:
        with _told(self.path(name)):
            return self._at(name).lstat().st_size

    def rename(self, name: str, new_name: str) -> None:
        with _told(self.path(new_name)):
            self._at(name).rename(self._at(new_name))

    def remove(self, name: str) -> None:
        with _told(self.path(name)), contextlib.suppress(FileNotFoundError):
            self._at(name).unlink()

    def make_folder(self, folder: str) -> None:
        with _told(self.path(folder)):
            for path in _missing(self._folder):
                with contextlib.suppress(FileExistsError):  # another rank was faster
                    os.mkdir(path)
                sync_folder(os.path.dirname(path))
            parts = folder.split("/") if folder else []
            for count in range(1, len(parts) + 1):
                at = self._at("/".join(parts[:count]))
                if not at.is_folder():
                    with contextlib.suppress(FileExistsError):
                        at.mkdir(0o777)
                    self._at("/".join(parts[: count - 1])).sync()

    def remove_folder(self, folder: str) -> None:
        try:
            self._at(folder).rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise _ours(error, self.path(folder)) from None

    def sync_folder(self, folder: str) -> None:
        with _told(self.path(folder)):
            self._at(folder).sync()

    def names(self, folder: str) -> list[str]:
        with _told(self.path(folder)):
            try:
                return sorted(map(os.fsdecode, self._at(folder).names()))
            except FileNotFoundError:
                return []

    def claim(self, name: str, data: bytes) -> PosixClaim:
        """Made under another name first, and locked there: nobody ever sees the name without its lock."""
        path = self.path(name)
        with _told(path):
            fd = self._at(f"{name}~").open(os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                os.write(fd, boot_id().encode() + b"\n" + data)
                self._at(f"{name}~").rename(self._at(name))
            except BaseException:
                os.close(fd)
                raise
        return PosixClaim(fd)

    def is_claimed(self, name: str) -> bool:
        """One that is not written yet goes by its lock alone: if that errs, its owner finds it gone, and claims
        again."""
        path = self.path(name)
        try:
            fd = self._at(name).open(os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _ours(error, path) from None
        try:
            with _told(path):
                boot, whole, _ = os.read(fd, 64).partition(b"\n")
                if whole and boot != boot_id().encode():
                    found = os.fstat(fd)
                    return not is_abandoned(self, name, f"{found.st_size}-{found.st_mtime_ns}")
                try:
                    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
                return False
        finally:
            os.close(fd)


class PosixClaim:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        """A child that was forked meanwhile has the descriptor too; unlocking counts for both."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


class PosixWriter:
    def __init__(self, fd: int, path: str, *, direct: bool) -> None:
        self._fd = fd
        self._path = path
        self._direct = direct and _switch_direct(fd, wanted=True)
        self._lock = threading.Lock()

    def write(self, data: memoryview, offset: int) -> None:
        with _told(self._path):
            if len(data) % ALIGN_BYTES or offset % ALIGN_BYTES:
                self._go_buffered()
            while data:
                try:
                    done = os.pwrite(self._fd, data, offset)
                except OSError as error:
                    if error.errno != errno.EINVAL or not self._direct:
                        raise
                    self._go_buffered()  # the device wants more than ALIGN_BYTES, or memory it can't reach
                    continue
                data, offset = data[done:], offset + done

    def _go_buffered(self) -> None:
        with self._lock:
            if self._direct:
                _switch_direct(self._fd, wanted=False)
                self._direct = False

    def sync(self) -> None:
        with _told(self._path):
            os.fdatasync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with _told(self._path):
                os.close(fd)


class PosixReader:
    """What the page cache has is taken from there; the rest bypasses it where it can: measured in decision 0009."""

    def __init__(self, fd: int, path: str, *, direct: bool) -> None:
        self._fd = fd
        self._path = path
        self._direct_fd = _open_direct(fd) if direct else -1

    def read_into(self, target: memoryview, offset: int) -> None:
        with _told(self._path):
            if self._direct_fd >= 0 and not _is_cached(self._fd, offset, len(target)):
                done = self._directly(target, offset)
                target, offset = target[done:], offset + done
            while target:
                done = os.preadv(self._fd, [target], offset)
                if done == 0:
                    raise CheckpointFailedError(self._path, why=f"ends at byte {offset}, more is expected")
                target, offset = target[done:], offset + done

    def map_into(self, target: memoryview, offset: int) -> bool:
        address = address_of(target)
        if (offset | address | len(target)) % mmap.PAGESIZE or not _is_cached(self._fd, offset, len(target)):
            return False
        flags = mmap.MAP_PRIVATE | _MAP_FIXED
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        found = _libc.mmap(address, len(target), protection, flags, self._fd, offset)
        return bool(found == address)

    def _directly(self, target: memoryview, offset: int) -> int:
        """Bytes read; fewer than asked for where alignment or the file's end forbid more."""
        if not target or offset % ALIGN_BYTES or address_of(target) % ALIGN_BYTES:
            return 0
        total = 0
        whole = len(target) // ALIGN_BYTES * ALIGN_BYTES
        while total < whole and total % ALIGN_BYTES == 0:
            try:
                done = os.preadv(self._direct_fd, [target[total:whole]], offset + total)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                break
            if done == 0:
                break
            total += done
        return total

    def close(self) -> None:
        for fd in (self._fd, self._direct_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._direct_fd = -1


class _Span(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _CacheStat(ctypes.Structure):
    """struct cachestat, include/uapi/linux/mman.h: pages of each kind."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recent"))


def _is_cached(fd: int, offset: int, length: int) -> bool:
    """Whether the page cache has every page of it; False where the kernel doesn't say (before Linux 6.5, or not the
    file's owner). Asking by RWF_NOWAIT would start readahead, and the bytes would be read twice (decision 0009)."""
    span, found = _Span(offset, length), _CacheStat()
    if _libc.syscall(_SYS_CACHESTAT, fd, ctypes.byref(span), ctypes.byref(found), 0) != 0:
        return False
    return bool(found.cache * os.sysconf("SC_PAGE_SIZE") >= length)


def address_of(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def _open_direct(fd: int) -> int:
    """The same file, opened once more."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError:
        return -1


def _switch_direct(fd: int, *, wanted: bool) -> bool:
    """Whether the descriptor is as wanted."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    flags = flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    except OSError:
        return False
    return True


def _missing(folder: str) -> list[str]:
    """Of it and those above it, those that are not there, the topmost one first."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing[::-1]


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except HeadraceError:
        raise
    except OSError as error:
        raise _ours(error, path) from None


def _ours(error: OSError, path: str) -> HeadraceError:
    why = os.strerror(error.errno).lower() if error.errno else str(error)
    if error.errno == errno.ENOENT:
        return PathNotFoundError(path, why=why)
    if error.errno == errno.ENOTDIR:
        return NotADirectoryPathError(path, why=why)
    if error.errno == errno.ELOOP:
        return CheckpointFailedError(path, why="it is a symbolic link, which may lead out of the folder")
    if error.errno in _FULL:
        return CheckpointNoSpaceError(path, why=why, hint="free some space, or keep fewer checkpoints")
    return CheckpointFailedError(path, why=why)
