"""One folder of cache files on one local filesystem. Layout:

lock                        held (flock) by the node; contains its pid
files/<xx>/<id>             bytes of a complete file; xx: last two hex digits of the id, id: 12 hex digits
files/<xx>/<id>.part        bytes of a file that is being filled; renamed when it is complete, so that who
opens
                            the plain name never sees a hole
files/<xx>/<id>.map         presence and checksums of a file of more than one block
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator

from headrace.base.errors import StoreBusyError, StoreError
from headrace.base.libc import c_library, last_errno
from headrace.base.model import FileId
from headrace.base.private_folder import make_private
from headrace.overlay.reserve import is_full

log = logging.getLogger(__name__)

ROOM_BYTES_MIN = 1 << 20
UNLINK_AT_ONCE_BYTES = 128 << 20
"""The callers hold locks, or are the node's loop; measured on ext4: 60 to 250 ms a GiB."""
DISK_SPARE_BYTES = 48 << 20
"""Four threads write 8 MiB each, and as much again."""
SPILL = "spill"
"""The tier of what lies beside the disks (`store/spill.py`)."""
LET_GO_S = 0.5
"""How long the space of an unlinked file may take to come; some milliseconds where the host is idle."""

DATA_NAME = b"%02x/%012x"
"""With id & 255 and id: the cache file, as seen from `files_folder`. A hit has no time for a whole path."""


def files_folder(folder: str) -> str:
    return f"{folder}/files"


def data_path(folder: str, id: int) -> str:
    return f"{folder}/files/{id & 255:02x}/{id:012x}"


def part_path(folder: str, id: int) -> str:
    return f"{folder}/files/{id & 255:02x}/{id:012x}.part"


def map_path(folder: str, id: int) -> str:
    return f"{folder}/files/{id & 255:02x}/{id:012x}.map"


def take_lock(path: str, what: str) -> int:
    """A descriptor that holds the lock until closed. StoreBusyError naming the pid that holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise StoreBusyError(
            f"{what} is in use",
            why=f"process {holder} holds it",
            hint="stop that node, or use another cache folder",
        ) from error
    with contextlib.suppress(OSError):  # who holds it is known, or the disk is full: nobody needs the number
        word = f"{os.getpid()}\n".encode()
        os.pwrite(fd, word, 0)
        os.ftruncate(fd, len(word))  # after it, as its block is ours already
    return fd


class Volume:
    """number: how the index names the volume; it must stay the same for the same folder.
    tier: a word from the configuration; earlier volumes are filled first."""

    def __init__(self, number: int, folder: str, capacity_bytes: int, tier: str = "") -> None:
        self.number = number
        self.folder = folder
        self.capacity_bytes = capacity_bytes
        self.tier = tier
        self.is_cut = False
        """The disk is smaller than what was given: its size is the capacity."""
        self.used_bytes = 0  # kept by the store
        self._lock_fd = -1
        self._folder_fd = -1
        self._unlinked: deque[tuple[float, int]] = deque()  # when, and so many bytes: of late only

    def open(self) -> None:
        """Makes the folders, takes the lock. StoreError with the cause when the volume can't be used."""
        try:
            make_private(self.folder)
            is_new = not os.path.exists(f"{self.folder}/lock")
            if is_new and self._room_bytes() < ROOM_BYTES_MIN:
                raise OSError(errno.ENOSPC, "its filesystem is full")
            os.makedirs(files_folder(self.folder), mode=0o700, exist_ok=True)
            for number in range(256):
                os.makedirs(f"{self.folder}/files/{number:02x}", mode=0o700, exist_ok=True)
            self._probe()
            self._cut_to(os.statvfs(self.folder))
        except OSError as error:
            raise _unusable(self.folder, error) from error
        self._lock_fd = take_lock(f"{self.folder}/lock", f"cache volume {self.folder}")
        self._folder_fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _room_bytes(self) -> int:
        room = os.statvfs(self.folder)
        return room.f_bavail * room.f_frsize

    def _cut_to(self, disk: os.statvfs_result) -> None:
        size_bytes = disk.f_blocks * disk.f_frsize
        if self.capacity_bytes > size_bytes:
            log.warning(
                "capacity is more than the disk has, and is cut to that folder=%s capacity_bytes=%d disk_bytes=%d",
                *(self.folder, self.capacity_bytes, size_bytes),
            )
            self.capacity_bytes, self.is_cut = size_bytes, True

    def _probe(self) -> None:
        """OSError where nothing can be written, though there were room: what a full disk has of ours is used."""
        probe = f"{self.folder}/.writable"
        try:
            with open(probe, "wb") as file:
                file.write(b"x")
        except OSError as error:
            if not is_full(error):
                raise
        with contextlib.suppress(FileNotFoundError):
            os.unlink(probe)

    @property
    def free_bytes(self) -> int:
        """Of the disk, for whoever comes first."""
        try:
            return self._room_bytes()
        except OSError:  # it has another trouble
            return self.capacity_bytes

    def short_on_disk(self, size_bytes: int, *, share: float = 1.0) -> int:
        """How many bytes must go before that many fit the filesystem, which others may fill too. Some stay free: the
        index must be written to let files go, and writes that are under way are not seen yet. share: of those."""
        room = os.statvfs(self._folder_fd)
        spare = min(DISK_SPARE_BYTES, room.f_blocks * room.f_frsize // 8)
        return size_bytes + int(share * spare) - room.f_bavail * room.f_frsize

    @property
    def coming_bytes(self) -> int:
        """Of files that were unlinked just now: who has one open is told, and lets go of it in a moment, and the disk
        takes one too."""
        since_s = time.monotonic() - LET_GO_S
        while self._unlinked and self._unlinked[0][0] < since_s:
            self._unlinked.popleft()
        return sum(size_bytes for _, size_bytes in list(self._unlinked))

    @property
    def disk_is_full(self) -> bool:
        """Nothing new is taken: others fill the filesystem, and what could be evicted is gone."""
        try:
            return self.short_on_disk(0, share=0.5) > 0
        except OSError:  # it has another trouble
            return False

    def close(self) -> None:
        for fd in (self._lock_fd, self._folder_fd):
            if fd >= 0:
                os.close(fd)
        self._lock_fd = self._folder_fd = -1

    def data_path(self, id: FileId) -> str:
        return data_path(self.folder, id)

    def map_path(self, id: FileId) -> str:
        return map_path(self.folder, id)

    def part_path(self, id: FileId) -> str:
        return part_path(self.folder, id)

    def sync(self) -> None:
        """Everything written to this volume before the call is durable on return. Blocks."""
        if c_library().syncfs(self._folder_fd) != 0:
            error = last_errno()
            raise StoreError(f"cache volume {self.folder} can't be synced", why=os.strerror(error))

    def unlink(self, id: FileId) -> int:
        """Removes what there is of a file; the bytes that were allocated. Who has it open keeps reading."""
        freed = 0
        for path in (data_path(self.folder, id), part_path(self.folder, id), map_path(self.folder, id)):
            try:
                size_bytes = os.stat(path).st_blocks * 512
                freed += size_bytes
                if size_bytes > UNLINK_AT_ONCE_BYTES:
                    _unlink_in_thread(path)
                else:
                    os.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _unusable(self.folder, error) from error
        if freed:
            self._unlinked.append((time.monotonic(), freed))
        return freed

    def allocated(self, id: FileId) -> int:
        """Bytes on the disk for what there is of a file."""
        total = 0
        for path in (self.data_path(id), self.part_path(id), self.map_path(id)):
            try:
                total += os.stat(path).st_blocks * 512
            except FileNotFoundError:
                continue
        return total

    def ids(self) -> Iterator[FileId]:
        """Every id that has a file here, once."""
        for number in range(256):
            found: set[FileId] = set()
            for name in os.listdir(f"{self.folder}/files/{number:02x}"):
                try:
                    found.add(FileId(int(name.partition(".")[0], 16)))
                except ValueError:
                    continue
            yield from sorted(found)


def _unlink_in_thread(path: str) -> None:
    """The name goes at once. The space comes back when the last descriptor is closed, which is what takes long."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.unlink(path)
    threading.Thread(target=os.close, args=(fd,), name="unlink").start()


def _unusable(folder: str, error: OSError) -> StoreError:
    hint = {
        errno.EACCES: "give the user that runs the node write permission",
        errno.EROFS: "the filesystem is mounted read-only",
        errno.ENOSPC: "make room on that filesystem",
    }.get(error.errno or 0, "")
    return StoreError(f"cache volume {folder} can't be used", why=error.strerror or str(error), hint=hint)
