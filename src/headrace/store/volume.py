"""One directory of cache files on one local file system. Layout:

lock                        locked (flock) by the node; contains its pid
files/<folder>/<id>         bytes of a complete file; folder: first ten hex digits of the id, id: 12 hex digits
files/<folder>/<id>.part    bytes of a file that is being filled; renamed when it is complete, so that a reader of
                            the plain name never sees a hole
files/<folder>/<id>.map     presence and checksums of a file of more than one block
moving/                     copies of files that move here from another volume (staged_copy.py)
written                     bytes that were written here (written_bytes.py)

A directory appears with its first file and goes with its last one (base/cache_names.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from headrace.base.cache_names import folder_name
from headrace.base.errors import StoreBusyError, StoreError
from headrace.base.libc import c_library, last_errno
from headrace.base.model import FileId
from headrace.base.private_folder import make_private
from headrace.base.sizes import disk_bytes
from headrace.overlay.reserve import is_full
from headrace.store.written_bytes import WrittenBytes

log = logging.getLogger(__name__)

ROOM_BYTES_MIN = 1 << 20
UNLINK_AT_ONCE_BYTES = 128 << 20
"""Bytes of the largest file that is unlinked at once. A larger one is unlinked in a thread, because callers hold locks
or run in the node's loop. Measured on ext4: 60 to 250 ms a GiB."""
DISK_SPARE_BYTES = 48 << 20
"""Bytes of a disk that stay free: four threads write 8 MiB each, and the rest is a reserve."""
SPILL = "spill"
"""The tier of files outside the disks (`store/spill.py`)."""
LET_GO_S = 0.5
FAILING_S, FAILING_S_MAX = 30.0, 600.0
"""Seconds for which a disk that failed gets no new files. The pause doubles as long as it goes on to fail."""
_OTHER_ERRORS = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EEXIST),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN),
    }
)
"""Errors that do not mean that the disk is broken: it is full, or the node is short of something."""
"""Seconds that the disk may take to free the space of an unlinked file; some milliseconds on an idle host."""

CREATE_ATTEMPTS = 100
"""Attempts to create a file in a directory that is removed each time, with its last file."""
_FOLDER = re.compile(r"[0-9a-f]{10}")
_OLD_DIRECTORY = re.compile(r"[0-9a-f]{2}")
"""Name of a directory until the layout of decision 0068: the last two hex digits of the ids."""
_FILE = re.compile(r"[0-9a-f]{12}(?:\.part|\.map)?")


def files_folder(directory: str) -> str:
    return f"{directory}/files"


def data_path(directory: str, id: int) -> str:
    return f"{directory}/files/{folder_name(id)}/{id:012x}"


def part_path(directory: str, id: int) -> str:
    return f"{directory}/files/{folder_name(id)}/{id:012x}.part"


def map_path(directory: str, id: int) -> str:
    return f"{directory}/files/{folder_name(id)}/{id:012x}.map"


def takes_changes(directory: str) -> bool:
    """Return whether a file can be created and removed in a volume now."""
    try:
        _probe(directory)
    except OSError:
        return False
    return True


def _probe(directory: str) -> None:
    """Raise OSError if the directory is not writable. A full disk is no error: its existing files are used."""
    probe = f"{directory}/.writable"
    try:
        with open(probe, "wb") as file:
            file.write(b"x")
    except OSError as error:
        if not is_full(error):
            raise
    with contextlib.suppress(FileNotFoundError):
        os.unlink(probe)


def take_lock(path: str, subject: str) -> int:
    """Return a descriptor that holds the lock until it is closed. A file that a failed start removes meanwhile locks
    nothing. StoreBusyError names the pid that holds the lock. Raises OSError."""
    fd = _locked(path, subject)
    while os.fstat(fd).st_nlink == 0:
        os.close(fd)
        fd = _locked(path, subject)
    with contextlib.suppress(OSError):  # the disk may be full, and the pid is only a help
        pid_line = f"{os.getpid()}\n".encode()
        os.pwrite(fd, pid_line, 0)
        os.ftruncate(fd, len(pid_line))  # after the write, so that the file keeps its block
    return fd


def _locked(path: str, subject: str) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise StoreBusyError(
            f"{subject} is in use",
            why=f"process {holder} holds it",
            hint="stop that node, or use another cache directory",
        ) from error
    return fd


class Volume:
    """A cache volume. number: the index names the volume by it, so it must stay the same for the same directory. tier:
    from the configuration; earlier volumes are filled first. writes_a_day: bytes that the cache writes here a day; 0:
    no limit. written: what was written here."""

    def __init__(
        self, number: int, directory: str, capacity_bytes: int, tier: str = "", *, writes_a_day: int = 0
    ) -> None:
        self.number = number
        self.folder = directory
        self.capacity_bytes = capacity_bytes
        self.tier = tier
        self.writes_a_day = writes_a_day
        self.written = WrittenBytes(f"{directory}/written")
        self.is_new = False
        """No node had opened it before: in memory, all that was there is gone."""
        self.is_cut = False
        """The disk is smaller than the configured capacity, so its size is the capacity."""
        self.used_bytes = 0  # kept by the store
        self.failures = 0
        """Changes that the disk refused since the start, other than for want of space."""
        self._lock_fd = -1
        self._folder_fd = -1
        self._unlinked: deque[tuple[float, int]] = deque()  # times and bytes of recent unlinks
        self._failing_until_s = float("-inf")
        self._pause_s = FAILING_S

    def open(self) -> None:
        """Create the directories and take the lock. Raises StoreError with the cause if the volume can't be used."""
        try:
            make_private(self.folder)
            self.is_new = not os.path.exists(f"{self.folder}/lock")
            if self.is_new and self._room_bytes() < ROOM_BYTES_MIN:
                raise OSError(errno.ENOSPC, "its filesystem is full")
            os.makedirs(files_folder(self.folder), mode=0o700, exist_ok=True)
            _probe(self.folder)
            self._cut_to(os.statvfs(self.folder))
            self._lock_fd = take_lock(f"{self.folder}/lock", f"cache volume {self.folder}")
        except StoreBusyError:
            raise
        except OSError as error:
            raise _unusable(self.folder, error) from error
        self._folder_fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.written.load()
        try:
            self._move_old_files()
        except OSError as error:
            raise _unusable(self.folder, error) from error

    def _room_bytes(self) -> int:
        disk = os.statvfs(self.folder)
        return disk.f_bavail * disk.f_frsize

    def _cut_to(self, disk: os.statvfs_result) -> None:
        size_bytes = disk.f_blocks * disk.f_frsize
        if self.capacity_bytes > size_bytes:
            log.warning(
                "the capacity exceeds the disk and is reduced to its size folder=%s capacity_bytes=%d disk_bytes=%d",
                *(self.folder, self.capacity_bytes, size_bytes),
            )
            self.capacity_bytes, self.is_cut = size_bytes, True

    @property
    def free_bytes(self) -> int:
        """Return the free bytes of the disk, which other programs may use, too."""
        try:
            return self._room_bytes()
        except OSError:  # another error of the disk
            return self.capacity_bytes

    def short_on_disk(self, size_bytes: int, *, share: float = 1.0) -> int:
        """Return the bytes that must be freed before that many fit the file system, which others may fill too. A spare
        stays free: evictions write to the index, and writes in progress do not show yet. share: of that spare. Raises
        StoreError."""
        try:
            disk = os.statvfs(self._folder_fd)
        except OSError as error:
            self.note_failure(error)
            raise _unusable(self.folder, error) from error
        spare = min(DISK_SPARE_BYTES, disk.f_blocks * disk.f_frsize // 8)
        return size_bytes + int(share * spare) - disk.f_bavail * disk.f_frsize

    @property
    def coming_bytes(self) -> int:
        """Return the bytes of recently unlinked files. Clients that have one open are notified and close it in a
        moment, and the disk needs a moment, too."""
        since_s = time.monotonic() - LET_GO_S
        while self._unlinked and self._unlinked[0][0] < since_s:
            self._unlinked.popleft()
        return sum(size_bytes for _, size_bytes in list(self._unlinked))

    @property
    def disk_is_full(self) -> bool:
        """Return whether the volume accepts no new files: others fill the file system, and everything that could be
        evicted is gone."""
        try:
            return self.short_on_disk(0, share=0.5) > 0
        except OSError:  # another error of the disk
            return False

    def note_failure(self, error: OSError, *, of_disk: bool = True) -> None:
        """Note an error of a change here. A disk that fails, or became read-only, gets no new files for a while.
        of_disk: False: it concerns one file, and the disk takes other changes."""
        if error.errno is None or error.errno in _OTHER_ERRORS:
            return
        self.failures += 1
        if self.is_failing or not of_disk:
            return
        now_s = time.monotonic()
        is_again = now_s < self._failing_until_s + FAILING_S_MAX
        self._pause_s = min(FAILING_S_MAX, 2 * self._pause_s) if is_again else FAILING_S
        self._failing_until_s = now_s + self._pause_s

    @property
    def is_failing(self) -> bool:
        """Return whether a change here failed lately."""
        return time.monotonic() < self._failing_until_s

    @property
    def is_spent(self) -> bool:
        """Return whether the cache has written as much here as it may in a day."""
        return self.writes_a_day > 0 and self.written.day_bytes() >= self.writes_a_day

    def close(self) -> None:
        if self._lock_fd >= 0:
            self.written.save(now=True)
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
        """Make everything durable that was written to this volume before the call. Blocks."""
        if c_library().syncfs(self._folder_fd) != 0:
            error = last_errno()
            self.note_failure(OSError(error, os.strerror(error)))
            raise StoreError(f"cache volume {self.folder} can't be synced", why=os.strerror(error))

    def create(self, path: str, flags: int) -> int:
        """Create a cache file, with its directory where there is none, and return its descriptor. Raises OSError."""
        for _ in range(CREATE_ATTEMPTS):
            try:
                return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                _make_folder(os.path.dirname(path))
        return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def make_folder(self, id: FileId) -> None:
        """Create the directory of an id's files. It stays until a file of it is unlinked and none is left."""
        _make_folder(f"{self.folder}/files/{folder_name(id)}")

    def unlink(self, id: FileId) -> int:
        """Unlink the files of an id, with their directory if nothing else is in it, and return their allocated bytes.
        Open readers keep reading."""
        freed, is_gone = 0, False
        for path in (data_path(self.folder, id), part_path(self.folder, id), map_path(self.folder, id)):
            try:
                size_bytes = disk_bytes(os.stat(path))
                freed += size_bytes
                if size_bytes > UNLINK_AT_ONCE_BYTES:
                    _unlink_in_thread(path)
                else:
                    os.unlink(path)
                is_gone = True
            except FileNotFoundError:
                continue
            except OSError as error:
                self.note_failure(error, of_disk=not takes_changes(self.folder))
                raise _unusable(self.folder, error) from error
        if is_gone:
            _remove_if_empty(os.path.dirname(data_path(self.folder, id)))
        if freed:
            self._unlinked.append((time.monotonic(), freed))
        return freed

    def allocated(self, id: FileId) -> int:
        """Return the allocated bytes of the files of an id. One that the disk can't read counts as none: it must not
        keep a node from its start."""
        total = 0
        for path in (self.data_path(id), self.part_path(id), self.map_path(id)):
            try:
                total += disk_bytes(os.stat(path))
            except FileNotFoundError:
                continue
            except OSError as error:
                self.note_failure(error)
        return total

    def ids(self, on_unread: Callable[[StoreError], None] | None = None) -> Iterator[FileId]:
        """Yield every id that has a file here, once, in their order. on_unread: gets the error of each directory that
        the disk can't list; without it the error is raised."""
        try:
            directories = self._folders(_FOLDER)
        except OSError as error:
            _pass_on(_unlisted(files_folder(self.folder), error), on_unread)
            return
        for directory in directories:
            path = f"{self.folder}/files/{directory}"
            try:
                names = os.listdir(path)
            except FileNotFoundError:
                continue  # its last file was unlinked just now
            except OSError as error:
                _pass_on(_unlisted(path, error), on_unread)
                continue
            ids = {FileId(int(name[:12], 16)) for name in filter(_FILE.fullmatch, names)}
            yield from sorted(id for id in ids if folder_name(id) == directory)

    def remove_empty_folders(self) -> None:
        """Remove empty directories that remain after a kill between an unlink and the removal of its directory.
        Suppresses OSErrors."""
        with contextlib.suppress(OSError):
            for directory in self._folders(_FOLDER):
                _remove_if_empty(f"{self.folder}/files/{directory}")

    def _folders(self, pattern: re.Pattern[str]) -> list[str]:
        return sorted(filter(pattern.fullmatch, os.listdir(files_folder(self.folder))))

    def _move_old_files(self) -> None:
        """Move files from the places of the older layout, one by one, so that the next start continues after a kill.
        Blocks for some 30 microseconds per file. Raises OSError."""
        moved = 0
        for directory in self._folders(_OLD_DIRECTORY):
            old = f"{self.folder}/files/{directory}"
            for name in filter(_FILE.fullmatch, os.listdir(old)):
                id = FileId(int(name[:12], 16))
                self.make_folder(id)
                os.rename(f"{old}/{name}", f"{self.folder}/files/{folder_name(id)}/{name}")
                moved += 1
            _remove_if_empty(old)
        if moved:
            log.info("cache files were moved to the present layout folder=%s files=%d", self.folder, moved)


def _make_folder(path: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)


def _remove_if_empty(path: str) -> None:
    with contextlib.suppress(OSError):  # usually it has other files
        os.rmdir(path)


def _unlink_in_thread(path: str) -> None:
    """Unlink the name at once. The space is freed when the last descriptor is closed, which takes long, so a thread
    does that. Where there are no more descriptors or threads, the caller waits: a name that stays would use space that
    no account has."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError:
        os.unlink(path)
        return
    try:
        os.unlink(path)
        threading.Thread(target=os.close, args=(fd,), name="unlink").start()
    except BaseException as error:
        os.close(fd)
        if not isinstance(error, RuntimeError):  # "can't start new thread"
            raise


def _unlisted(path: str, error: OSError) -> StoreError:
    return StoreError(f"directory {path} can't be listed", why=error.strerror or str(error))


def _pass_on(error: StoreError, to: Callable[[StoreError], None] | None) -> None:
    if to is None:
        raise error
    to(error)


def _unusable(directory: str, error: OSError) -> StoreError:
    hint = {
        errno.EACCES: "give the user that runs the node write permission",
        errno.EROFS: "the filesystem is mounted read-only",
        errno.ENOSPC: "free space on that file system",
    }.get(error.errno or 0, "")
    return StoreError(f"cache volume {directory} can't be used", why=error.strerror or str(error), hint=hint)
