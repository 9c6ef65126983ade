"""A script of file operations runs in a place, and makes notes: the same in a plain folder as in a mount.

A script is a function of a `Place`. It asserts what POSIX or Linux say; what they leave open it notes, and the notes
of both runs are compared. It runs in a process of its own (`runner.py`), which may fork: no threads there.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import pickle
import random
import stat
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

LOWER_TIME_NS = 1_000_000_000_123_456_789
"""Modification time of the files that the origin has: 2001. Whatever was written since is newer."""
SET_BEFORE_NS = 1_500_000_000 * 10**9
"""Times before (2017) were set by a script or came from the origin; later ones are the clock's, and not compared."""
OTHER_USER = 12_345
"""A user id, and group id, that is nobody's."""
OPEN_FLAGS = os.O_CREAT | os.O_RDWR

BLOCK = 1 << 20


def bytes_of(name: str, size: int) -> bytes:
    return random.Random(name).randbytes(size)


LOWER: dict[str, bytes] = {
    "file": bytes_of("file", 5_000),
    "second": bytes_of("second", 777),
    "empty": b"",
    "text": b"one\ntwo\nthree\n",
    "folder/one": b"one of the folder",
    "folder/two": bytes_of("two", 9_000),
    "folder/below/three": b"three",
    "folder/below/deep/four": bytes_of("four", 4_097),
    "other/five": b"five",
    "alone/only": b"only",
}
"""What the origin holds below a script's lower folder, before the node starts."""
LOWER_LARGE: dict[str, bytes] = LOWER | {"large": bytes_of("large", 2 * BLOCK + 17)}
MANY = 120
LOWER_MANY: dict[str, bytes] = LOWER | {f"many/{number}": b"%03d" % number * 10 for number in range(MANY)}
LOWER_EMPTY_FOLDERS = ("bare",)


def make_lower(folder: str, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        os.chmod(path, 0o644)
        os.utime(path, ns=(LOWER_TIME_NS, LOWER_TIME_NS))
    for name in LOWER_EMPTY_FOLDERS:
        os.makedirs(os.path.join(folder, name), exist_ok=True)


@dataclass
class Place:
    root: str
    """A new empty folder."""
    lower: str
    """A folder with the script's lower files: of the origin in a mount, a copy of them in the plain folder."""
    outside: str
    """A plain folder, of this place alone."""
    mounted: bool
    """Nothing may depend on it but what is known to differ, and then docs/semantics/ says so."""
    notes: list[str] = field(default_factory=list)

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    def low(self, name: str) -> str:
        return os.path.join(self.lower, name)

    def note(self, label: str, value: object) -> None:
        self.notes.append(f"{label}: {value!r}")

    def note_result(self, call: Callable[..., object], *args: Any, **options: Any) -> None:
        """Note what came back, or which errno: the same in both places."""
        self.note(f"{getattr(call, '__name__', 'call')}{self._shown(args)}", outcome(call, *args, **options))

    def _shown(self, args: tuple[Any, ...]) -> str:
        shown = repr(args)
        return shown.replace(self.root, "ROOT").replace(self.lower, "LOWER").replace(self.outside, "OUTSIDE")

    def write(self, name: str, data: bytes, mode: int = 0o644) -> str:
        """A file below the root; its path."""
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, mode)
        write_all(fd, data)
        os.close(fd)
        return path


def outcome(call: Callable[..., object], *args: Any, **options: Any) -> object:
    try:
        return call(*args, **options)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))


def refused(number: int, call: Callable[..., object], *args: Any, **options: Any) -> None:
    got = outcome(call, *args, **options)
    assert got == errno.errorcode[number], (errno.errorcode[number], got, args)


def equal(got: object, wanted: object) -> None:
    assert got == wanted, f"got {shortened(got)}, wanted {shortened(wanted)}"


def shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) < 400 else f"{text[:200]}…{text[-100:]} ({len(text)} characters)"


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def pwrite_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count


def read_whole(path: str | bytes) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def read_fd(fd: int) -> bytes:
    """All of the file from its begin, whatever its position."""
    parts, offset = [], 0
    while part := os.pread(fd, BLOCK, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def removed_file_is_whole(fd: int, data: bytes) -> None:
    equal(read_fd(fd), data)
    equal(os.fstat(fd).st_size, len(data))


# ------------------------------------------------------------ other processes


def elsewhere(call: Callable[[], T], *, user: int = 0) -> T:
    """Return what the call gives in a forked process, as another user where one is named. Its exception is raised
    here."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(read)
            if user:
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
            try:
                answer: tuple[bool, Any] = (True, call())
            except OSError as error:
                answer = (False, OSError(error.errno, error.strerror))
            except BaseException:  # noqa: BLE001 - it is raised by who called
                answer = (False, AssertionError(traceback.format_exc()))
            write_all(write, pickle.dumps(answer))
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as answers:
        data = answers.read()
    os.waitpid(pid, 0)
    good, value = pickle.loads(data)
    if not good:
        raise value
    result: T = value
    return result


class Beside:
    """A forked process that runs beside this one; `wait` gives its exit status, an exception there is status 1."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                call()
                status = 0
            except BaseException:  # noqa: BLE001 - status 1 tells of it
                traceback.print_exc()
            finally:
                os._exit(status)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


# ------------------------------------------------------------ system calls that Python has not

_libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
AT_EMPTY_PATH, AT_SYMLINK_FOLLOW = 0x1000, 0x400
NOREPLACE, EXCHANGE = 1, 2
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def renameat2(old: str, new: str, flags: int) -> None:
    _checked(_libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags))


def fallocate(fd: int, mode: int, offset: int, size: int) -> None:
    _checked(_libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(size)))


def link_of_descriptor(fd: int, path: str) -> None:
    """Names a file that has none (O_TMPFILE)."""
    old = os.fsencode(f"/proc/self/fd/{fd}")
    _checked(_libc.linkat(AT_FDCWD, old, AT_FDCWD, os.fsencode(path), AT_SYMLINK_FOLLOW))


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def set_times(path: str, accessed: tuple[int, int], modified: tuple[int, int]) -> None:
    """Seconds and nanoseconds, the latter also UTIME_NOW or UTIME_OMIT."""
    times = (_Timespec * 2)(_Timespec(*accessed), _Timespec(*modified))
    _checked(_libc.utimensat(AT_FDCWD, os.fsencode(path), times, 0))


# ------------------------------------------------------------ the tree that is left


def tree_of(folder: str, left_out: tuple[str, ...] = ()) -> dict[str, str]:
    """Path below the folder → all that a user sees of it. Names that are left out are not looked into.

    Two paths of one file show the same `file` number: that of the first path in sorted order.
    """
    tree: dict[str, str] = {}
    files: dict[tuple[int, int], int] = {}
    _walk(os.fsencode(folder), b"", tree, files, left_out)
    return tree


def contents_of(folder: str) -> dict[str, str]:
    """Path below the folder → digest, of regular files only: what an origin keeps of a tree."""
    digests: dict[str, str] = {}
    top = os.fsencode(folder)
    for where, _, names in os.walk(top):
        for name in names:
            full = os.path.join(where, name)
            if stat.S_ISREG(os.lstat(full).st_mode):
                digests[os.path.relpath(full, top).decode(errors="backslashreplace")] = _digest(full)
    return digests


def _walk(
    top: bytes,
    below: bytes,
    tree: dict[str, str],
    files: dict[tuple[int, int], int],
    left_out: tuple[str, ...],
) -> None:
    names = sorted(os.listdir(os.path.join(top, below)))
    assert len(set(names)) == len(names), f"a name twice in {below!r}"
    for name in names:
        path = os.path.join(below, name)
        shown = path.decode(errors="backslashreplace")
        if os.fsdecode(name) in left_out:
            continue
        full = os.path.join(top, path)
        status = os.lstat(full)
        tree[shown] = _described(full, status, files)
        if stat.S_ISDIR(status.st_mode):
            _walk(top, path, tree, files, left_out)


def _described(full: bytes, status: os.stat_result, files: dict[tuple[int, int], int]) -> str:
    words = [f"{status.st_mode:o}", f"{status.st_uid}:{status.st_gid}"]
    if stat.S_ISLNK(status.st_mode):
        return " ".join([*words, f"-> {os.readlink(full)!r}"])
    if not stat.S_ISDIR(status.st_mode):
        words += [f"links {status.st_nlink}", f"size {status.st_size}"]
        if status.st_nlink > 1:
            words.append(f"file {files.setdefault((status.st_dev, status.st_ino), len(files))}")
        if status.st_mtime_ns < SET_BEFORE_NS:
            words.append(f"modified {status.st_mtime_ns}")
    if stat.S_ISREG(status.st_mode):
        words.append(_digest(full))
    return " ".join([*words, *_attributes(full)])


def _digest(full: bytes) -> str:
    """Return the digest of the bytes as read, or a short file itself."""
    with open(full, "rb") as file:
        start = file.read(40)
        if len(start) < 40:
            return repr(start)
        digest, part = hashlib.sha1(start), start
        while part:
            part = file.read(BLOCK)
            digest.update(part)
    return digest.hexdigest()


def _attributes(full: bytes) -> list[str]:
    names = [name for name in os.listxattr(full) if name.startswith("user.")]
    kept = sorted(name for name in names if not name.startswith("user.headrace."))
    return [f"{name}={os.getxattr(full, name)!r}" for name in kept]
