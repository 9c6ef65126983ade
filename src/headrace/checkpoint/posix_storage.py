"""Store checkpoints in a directory of any POSIX file system."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import stat
import threading

from headrace.base.beneath import Root, SafePath
from headrace.base.errors import (
    CheckpointFailedError,
    CheckpointNoSpaceError,
    CorruptCheckpointError,
    NotADirectoryPathError,
    PathNotFoundError,
)
from headrace.base.libc import address_of
from headrace.base.os_errors import OsErrorRow, OsErrorTable, translating_os_errors
from headrace.checkpoint.claim_owner import is_owner_alive, write_claim
from headrace.checkpoint.storage import ALIGN_BYTES, SaveClaim

_SYS_CACHESTAT = 451  # of every architecture but alpha; since Linux 6.5
_MAP_FIXED = 0x10  # include/uapi/asm-generic/mman-common.h; Python does not name it
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_int64)
_FULL = OsErrorRow(CheckpointNoSpaceError, "free some space, or keep fewer checkpoints")
STORAGE_ERRORS = OsErrorTable(
    {
        errno.ENOENT: OsErrorRow(PathNotFoundError),
        errno.ENOTDIR: OsErrorRow(NotADirectoryPathError),
        errno.ELOOP: OsErrorRow(
            CheckpointFailedError, why="it is a symbolic link, which may lead out of the directory"
        ),
        errno.ENOSPC: _FULL,
        errno.EDQUOT: _FULL,
        errno.EFBIG: _FULL,
    },
    OsErrorRow(CheckpointFailedError),
)
_NO_FILE = "it is not a regular file"
_READ_ERRORS = OsErrorTable(
    {
        **STORAGE_ERRORS.rows,
        errno.ELOOP: OsErrorRow(CorruptCheckpointError, why=_NO_FILE),
        errno.EISDIR: OsErrorRow(CorruptCheckpointError, why=_NO_FILE),
        errno.ENXIO: OsErrorRow(CorruptCheckpointError, why=_NO_FILE),  # a socket
    },
    STORAGE_ERRORS.other,
)
_NAMES_ERRORS = OsErrorTable(
    {**STORAGE_ERRORS.rows, errno.ELOOP: OsErrorRow(NotADirectoryPathError, why="it is a symbolic link")},
    STORAGE_ERRORS.other,
)


class PosixStorage:
    """Store checkpoints in a directory of any POSIX file system.

    direct: bypass the page cache if the file system can. The directory's own path comes from the caller, and may
    contain links. No link is followed inside it, because users may be able to write there while root saves, prunes or
    restores.
    """

    def __init__(self, folder: str, *, direct: bool = True) -> None:
        self._folder = os.path.abspath(folder)
        self._direct = direct

    @property
    def name(self) -> str:
        return self._folder

    def path(self, name: str) -> str:
        return os.path.join(self._folder, name) if name else self._folder

    def _safe_path(self, name: str) -> SafePath:
        """Return the path below the directory. Each call opens the directory again, because another disk may be mounted
        there."""
        return Root(os.fsencode(self._folder)).at(b"/" + os.fsencode(name))

    def create(self, name: str) -> PosixWriter:
        path = self.path(name)
        with translating_os_errors(path, STORAGE_ERRORS):
            fd = self._safe_path(name).open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            return PosixWriter(fd, path, direct=self._direct)

    def open(self, name: str) -> PosixReader:
        path = self.path(name)
        with translating_os_errors(path, STORAGE_ERRORS):
            return PosixReader(
                self._safe_path(name).open(os.O_RDONLY | os.O_NONBLOCK), path, direct=self._direct
            )

    def read(self, name: str, *, bytes_max: int) -> bytes:
        path = self.path(name)
        with (
            translating_os_errors(path, _READ_ERRORS),
            open(self._safe_path(name).open(os.O_RDONLY | os.O_NONBLOCK), "rb") as file,
        ):
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise CorruptCheckpointError(path, why=_NO_FILE)
            return file.read(min(bytes_max, status.st_size))

    def size_bytes(self, name: str) -> int:
        with translating_os_errors(self.path(name), STORAGE_ERRORS):
            return self._safe_path(name).lstat().st_size

    def rename(self, name: str, new_name: str) -> None:
        with translating_os_errors(self.path(new_name), STORAGE_ERRORS):
            self._safe_path(name).rename(self._safe_path(new_name))

    def remove(self, name: str) -> None:
        with translating_os_errors(self.path(name), STORAGE_ERRORS), contextlib.suppress(FileNotFoundError):
            self._safe_path(name).unlink()

    def make_folder(self, folder: str) -> None:
        with translating_os_errors(self.path(folder), STORAGE_ERRORS):
            for missing_path in _missing(self._folder):
                with contextlib.suppress(FileExistsError):  # another rank was faster
                    os.mkdir(missing_path)
                Root(os.fsencode(os.path.dirname(missing_path))).at(b"/").sync()
            names = folder.split("/") if folder else []
            for count in range(1, len(names) + 1):
                safe_path = self._safe_path("/".join(names[:count]))
                if not safe_path.is_directory():
                    with contextlib.suppress(FileExistsError):
                        safe_path.mkdir(0o777)
                    self._safe_path("/".join(names[: count - 1])).sync()

    def remove_folder(self, folder: str) -> None:
        try:
            self._safe_path(folder).rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise STORAGE_ERRORS.translate(error, self.path(folder)) from None

    def sync_folder(self, folder: str) -> None:
        with translating_os_errors(self.path(folder), STORAGE_ERRORS):
            self._safe_path(folder).sync()

    def names(self, folder: str) -> list[str]:
        with translating_os_errors(self.path(folder), _NAMES_ERRORS):
            try:
                return sorted(map(os.fsdecode, self._safe_path(folder).names()))
            except FileNotFoundError:
                return []

    def claim(self, name: str, data: bytes) -> SaveClaim:
        """Write and lock the claim under another name, then rename it, so that it is never visible without its lock."""
        path = self.path(name)
        with translating_os_errors(path, STORAGE_ERRORS):
            fd = self._safe_path(f"{name}~").open(os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            claim = SaveClaim(fd)
            try:
                write_claim(fd, data)
                self._safe_path(f"{name}~").rename(self._safe_path(name))
            except BaseException:
                claim.release()
                raise
        return claim

    def is_claimed(self, name: str) -> bool:
        """Return whether the owner lives.

        For a claim that is not written yet, only its lock counts. If that is wrong, its owner finds the claim deleted
        and claims again.
        """
        path = self.path(name)
        try:
            fd = self._safe_path(name).open(os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link or a socket
                return False
            raise STORAGE_ERRORS.translate(error, path) from None
        try:
            with translating_os_errors(path, STORAGE_ERRORS):
                status = os.fstat(fd)
                return stat.S_ISREG(status.st_mode) and is_owner_alive(
                    self, name, fd, lambda: f"{status.st_size}-{status.st_mtime_ns}"
                )
        finally:
            os.close(fd)


class PosixWriter:
    """Write a file past the page cache if alignment and the device permit it."""

    def __init__(self, fd: int, path: str, *, direct: bool) -> None:
        self._fd = fd
        self._path = path
        self._direct = direct and _switch_direct(fd, enable=True)
        self._lock = threading.Lock()

    def write(self, data: memoryview, offset: int) -> None:
        with translating_os_errors(self._path, STORAGE_ERRORS):
            if len(data) % ALIGN_BYTES or offset % ALIGN_BYTES:
                self._use_page_cache()
            while data:
                was_direct = self._direct  # another thread may switch it during the call
                try:
                    count = os.pwrite(self._fd, data, offset)
                except OSError as error:
                    if error.errno != errno.EINVAL or not was_direct:
                        raise
                    self._use_page_cache()  # the device requires more alignment, or can't reach the memory
                    continue
                data, offset = data[count:], offset + count

    def _use_page_cache(self) -> None:
        with self._lock:
            if self._direct:
                _switch_direct(self._fd, enable=False)
                self._direct = False

    def sync(self) -> None:
        with translating_os_errors(self._path, STORAGE_ERRORS):
            os.fdatasync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with translating_os_errors(self._path, STORAGE_ERRORS):
                os.close(fd)


class PosixReader:
    """Read cached bytes from the page cache, and other bytes past it if possible (decision 0009)."""

    def __init__(self, fd: int, path: str, *, direct: bool) -> None:
        self._fd = fd
        self._path = path
        self._direct_fd = _open_direct(fd) if direct else -1

    def read_into(self, target: memoryview, offset: int) -> None:
        with translating_os_errors(self._path, STORAGE_ERRORS):
            if self._direct_fd >= 0 and not _is_cached(self._fd, offset, len(target)):
                count = self._read_direct(target, offset)
                target, offset = target[count:], offset + count
            while target:
                count = os.preadv(self._fd, [target], offset)
                if count == 0:
                    raise CheckpointFailedError(
                        self._path, why=f"it ends at byte {offset}, but more bytes are expected"
                    )
                target, offset = target[count:], offset + count

    def map_into(self, target: memoryview, offset: int) -> bool:
        address = address_of(target)
        if (offset | address | len(target)) % mmap.PAGESIZE or not _is_cached(self._fd, offset, len(target)):
            return False
        flags = mmap.MAP_PRIVATE | _MAP_FIXED
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        mapped_address = _libc.mmap(address, len(target), protection, flags, self._fd, offset)
        return bool(mapped_address == address)

    def _read_direct(self, target: memoryview, offset: int) -> int:
        """Read by O_DIRECT, and return the number of bytes. It is lower than requested if alignment or the file's end
        require it."""
        if not target or offset % ALIGN_BYTES or address_of(target) % ALIGN_BYTES:
            return 0
        total = 0
        aligned_bytes = len(target) // ALIGN_BYTES * ALIGN_BYTES
        while total < aligned_bytes and total % ALIGN_BYTES == 0:
            try:
                count = os.preadv(self._direct_fd, [target[total:aligned_bytes]], offset + total)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                break
            if count == 0:
                break
            total += count
        return total

    def close(self) -> None:
        for fd in (self._fd, self._direct_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._direct_fd = -1


class _Span(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _CacheStat(ctypes.Structure):
    """Mirror struct cachestat, include/uapi/linux/mman.h: number of pages of each kind."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recent"))


def _is_cached(fd: int, offset: int, length: int) -> bool:
    """Return whether the page cache has every page of the range; False if the kernel doesn't report it.

    The kernel reports it since Linux 6.5, to the file's owner. A read with RWF_NOWAIT would start readahead instead,
    and the bytes would be read twice (decision 0009).
    """
    span, cache_stat = _Span(offset, length), _CacheStat()
    if _libc.syscall(_SYS_CACHESTAT, fd, ctypes.byref(span), ctypes.byref(cache_stat), 0) != 0:
        return False
    return bool(cache_stat.cache * os.sysconf("SC_PAGE_SIZE") >= length)


def _open_direct(fd: int) -> int:
    """Open the same file again with O_DIRECT; return -1 if that is not possible."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError:
        return -1


def _switch_direct(fd: int, *, enable: bool) -> bool:
    """Set or clear O_DIRECT; return whether the descriptor is as requested."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    flags = flags | os.O_DIRECT if enable else flags & ~os.O_DIRECT
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    except OSError:
        return False
    return True


def _missing(folder: str) -> list[str]:
    """Return the missing ones of the directory and its parents, topmost first."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing[::-1]
