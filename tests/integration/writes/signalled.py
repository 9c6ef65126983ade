"""A program under an interval timer: system calls of every kind, as a C program makes them, and SQLite.

`python -m tests.integration.writes.signalled FOLDER --every MS --calls N`: calls go to the C library by ctypes, since
Python's own repeat what a signal interrupted. The answer is one JSON line: kind → errno's name → how often, without the
calls that went well; and how many signals were handled. FOLDER is there, and for this program alone.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path

C = ctypes.CDLL(None, use_errno=True)
for name in ("lseek", "read", "pread", "write", "pwrite", "copy_file_range"):
    getattr(C, name).restype = ctypes.c_int64
C.mmap.restype = ctypes.c_void_p
AT_FDCWD, EXCHANGE, SEEK_DATA, SEEK_HOLE, SHARED, MS_SYNC = -100, 2, 3, 4, 1, 4
PAGE = 4096
LARGE = 3 << 20
"""More than one request may hold."""
LONG = ctypes.c_int64
Call = Callable[[int], None]


class Failures:
    """Counts how often each call failed, by the errno."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}

    def call(self, kind: str, function: Callable[..., int], *arguments: object) -> int:
        """Return what the function returned; below 0, the errno is counted."""
        ctypes.set_errno(0)
        result = function(*arguments)
        if result is None or result < 0:
            self.note(kind, errno.errorcode.get(ctypes.get_errno(), "?"))
        return result

    def whole(self, kind: str, function: Callable[..., int], *arguments: object, count: int = PAGE) -> None:
        """Call a function, as `call` does, that returns how many bytes it moved. On a disk a signal makes none of them
        fewer."""
        result = self.call(kind, function, *arguments)
        if 0 <= result < count:
            self.note(kind, "short")

    def note(self, kind: str, why: str) -> None:
        self.counts.setdefault(kind, Counter())[why] += 1


class Calls:
    """Each kind of call, made `calls` times below the folder; whatever a call needs is put back by another one, that is
    counted too."""

    def __init__(self, folder: bytes, failures: Failures) -> None:
        self._folder = folder
        self._call = failures.call
        self._whole = failures.whole
        self._failures = failures
        self._file = folder + b"/file"
        self._fd = self._open(self._file, os.O_RDWR | os.O_CREAT)
        self._other = self._open(folder + b"/other", os.O_RDWR | os.O_CREAT)
        self._large = self._open(folder + b"/large", os.O_RDWR | os.O_CREAT)
        self._directory = self._open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._page = ctypes.create_string_buffer(os.urandom(PAGE), PAGE)
        self._into = ctypes.create_string_buffer(1 << 15)
        self._whole("write", C.pwrite, self._fd, self._page, PAGE, LONG(0))
        self._mapped = C.mmap(None, PAGE, 3, SHARED, self._fd, LONG(0))
        os.mkdir(folder + b"/names")
        for number in range(40):
            os.close(os.open(folder + b"/names/%d" % number, os.O_CREAT | os.O_RDWR))

    def kinds(self) -> dict[str, Call]:
        """Each is called with its turn."""
        return {
            name.removeprefix("_do_"): getattr(self, name) for name in dir(self) if name.startswith("_do_")
        }

    def _open(self, path: bytes, flags: int, kind: str = "open") -> int:
        return self._call(kind, C.open, path, flags | os.O_CLOEXEC, 0o644)

    def _close(self, fd: int, kind: str = "close") -> None:
        if fd >= 0:
            self._call(kind, C.close, fd)

    def _path(self, kind: bytes, turn: int) -> bytes:
        return self._folder + b"/%s-%d" % (kind, turn)

    def _do_create_write_close_unlink(self, turn: int) -> None:
        path = self._path(b"new", turn)
        fd = self._open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, "create")
        if fd >= 0:
            self._whole("write", C.write, fd, self._page, PAGE)
            self._close(fd)
        self._call("unlink", C.unlink, path)

    def _do_large_write_read(self, turn: int) -> None:
        if turn % 20:
            return
        data = ctypes.create_string_buffer(os.urandom(LARGE), LARGE)
        into = ctypes.create_string_buffer(LARGE)
        self._whole("write_large", C.pwrite, self._large, data, LARGE, LONG(0), count=LARGE)
        os.posix_fadvise(self._large, 0, 0, os.POSIX_FADV_DONTNEED)
        self._whole("read_large", C.pread, self._large, into, LARGE, LONG(0), count=LARGE)
        if data.raw != into.raw:
            self._failures.note("read_large", "other bytes than were written")

    def _do_open(self, turn: int) -> None:
        self._close(self._open(self._file, os.O_RDONLY))

    def _do_open_truncate(self, turn: int) -> None:
        self._close(self._open(self._folder + b"/names/%d" % (turn % 40), os.O_WRONLY | os.O_TRUNC))

    def _do_fsync(self, turn: int) -> None:
        self._whole("write", C.pwrite, self._fd, self._page, PAGE, LONG(0))
        self._call("fsync", C.fsync, self._fd)

    def _do_fdatasync(self, turn: int) -> None:
        self._whole("write", C.pwrite, self._fd, self._page, PAGE, LONG(0))
        self._call("fdatasync", C.fdatasync, self._fd)

    def _do_fsync_directory(self, turn: int) -> None:
        self._call("fsync_directory", C.fsync, self._directory)

    def _do_msync(self, turn: int) -> None:
        ctypes.memset(self._mapped, turn & 255, 8)
        self._call("msync", C.msync, ctypes.c_void_p(self._mapped), PAGE, MS_SYNC)

    def _do_read(self, turn: int) -> None:
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        self._whole("read", C.pread, self._fd, self._into, PAGE, LONG(0))

    def _do_stat(self, turn: int) -> None:
        self._call("stat", C.access, self._folder + b"/names/%d" % (turn % 40), 0)

    def _do_fstat(self, turn: int) -> None:
        self._whole("write", C.pwrite, self._fd, self._page, PAGE, LONG(0))
        self._call("statx", C.statx, self._fd, b"", 0x1000, 0x7FF, self._into)

    def _do_lookup_absent(self, turn: int) -> None:
        ctypes.set_errno(0)
        if C.access(self._path(b"absent", turn), 0) == 0 or ctypes.get_errno() != errno.ENOENT:
            self._call("lookup", lambda: -1)

    def _do_mkdir_rmdir(self, turn: int) -> None:
        self._call("mkdir", C.mkdir, self._path(b"folder", turn), 0o755)
        self._call("rmdir", C.rmdir, self._path(b"folder", turn))

    def _do_rename(self, turn: int) -> None:
        names = [self._folder + b"/names/0", self._folder + b"/names/renamed"]
        self._call("rename", C.rename, names[turn & 1], names[1 - (turn & 1)])

    def _do_exchange(self, turn: int) -> None:
        names = (AT_FDCWD, self._folder + b"/names/1", AT_FDCWD, self._folder + b"/names/2")
        self._call("exchange", C.renameat2, *names, EXCHANGE)

    def _do_link_unlink(self, turn: int) -> None:
        self._call("link", C.link, self._file, self._path(b"link", turn))
        self._call("unlink", C.unlink, self._path(b"link", turn))

    def _do_symlink_readlink(self, turn: int) -> None:
        path = self._path(b"symbolic", turn)
        self._call("symlink", C.symlink, b"file", path)
        self._call("readlink", C.readlink, path, self._into, 64)
        self._call("unlink", C.unlink, path)

    def _do_mkfifo(self, turn: int) -> None:
        self._call("mkfifo", C.mkfifo, self._path(b"fifo", turn), 0o644)
        self._call("unlink", C.unlink, self._path(b"fifo", turn))

    def _do_attributes(self, turn: int) -> None:
        self._call("chmod", C.chmod, self._file, 0o600 | turn & 0o77)
        self._call("chown", C.chown, self._file, os.getuid(), os.getgid())
        self._call("utimens", C.utimensat, AT_FDCWD, self._file, None, 0)

    def _do_truncate(self, turn: int) -> None:
        self._call("truncate", C.truncate, self._folder + b"/other", LONG(turn * 512))
        self._call("ftruncate", C.ftruncate, self._other, LONG(turn * 256))

    def _do_fallocate(self, turn: int) -> None:
        self._call("fallocate", C.fallocate, self._other, 0, LONG(0), LONG(PAGE * (1 + turn % 8)))

    def _do_lseek(self, turn: int) -> None:
        self._call("seek_data", C.lseek, self._fd, LONG(0), SEEK_DATA)
        self._call("seek_hole", C.lseek, self._fd, LONG(0), SEEK_HOLE)

    def _do_xattr(self, turn: int) -> None:
        self._call("setxattr", C.setxattr, self._file, b"user.a", b"value", 5, 0)
        self._call("getxattr", C.getxattr, self._file, b"user.a", self._into, 64)
        self._call("listxattr", C.listxattr, self._file, self._into, 256)
        self._call("removexattr", C.removexattr, self._file, b"user.a")

    def _do_copy(self, turn: int) -> None:
        """The kernel's own loop looks for signals before it copies, on a disk too. Then nothing was copied."""
        self._call("ftruncate", C.ftruncate, self._other, LONG(0))
        offsets = (ctypes.c_int64(0), ctypes.c_int64(0))
        source, target = (ctypes.byref(offset) for offset in offsets)
        copied = self._call(
            "copy_range", C.copy_file_range, self._fd, source, self._other, target, LONG(64), 0
        )
        if os.fstat(self._other).st_size != max(0, copied):
            self._failures.note("copy_range", "copied other than it said")

    def _do_statfs(self, turn: int) -> None:
        self._call("statfs", C.statfs, self._folder, self._into)

    def _do_readdir(self, turn: int) -> None:
        fd = self._open(self._folder + b"/names", os.O_RDONLY | os.O_DIRECTORY, "opendir")
        while fd >= 0 and self._getdents(fd) > 0:
            pass
        self._close(fd)

    def _getdents(self, fd: int) -> int:
        return self._call("getdents", C.syscall, SYS_GETDENTS64, fd, self._into, len(self._into))


SYS_GETDENTS64 = {"x86_64": 217, "aarch64": 61}[os.uname().machine]


class Reads:
    """Reads each file of a mount that can't be written as a whole, and compares it with the truth."""

    def __init__(self, folder: bytes, failures: Failures, truth: Path) -> None:
        self._failures = failures
        self._call = failures.call
        self._folder = folder
        self._truth = [(os.fsencode(path.name), path.read_bytes()) for path in sorted(truth.iterdir())]
        self._into = ctypes.create_string_buffer(1 << 20)

    def kinds(self) -> dict[str, Call]:
        return {"read_file": self._read_file, "names": self._look}

    def _read_file(self, turn: int) -> None:
        name, wanted = self._truth[turn % len(self._truth)]
        fd = self._call("open", C.open, self._folder + b"/" + name, os.O_RDONLY | os.O_CLOEXEC)
        if fd < 0:
            return
        parts = []
        while (count := self._call("read", C.read, fd, self._into, len(self._into))) > 0:
            parts.append(self._into.raw[:count])
        if b"".join(parts) != wanted:
            self._failures.note("read", "other bytes than at the origin")
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        self._call("close", C.close, fd)

    def _look(self, turn: int) -> None:
        name, _ = self._truth[turn % len(self._truth)]
        self._call("stat", C.access, self._folder + b"/" + name, 0)
        self._call("statfs", C.statfs, self._folder, self._into)
        fd = self._call("opendir", C.open, self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        arguments = (SYS_GETDENTS64, fd, self._into, len(self._into))
        while fd >= 0 and self._call("getdents", C.syscall, *arguments) > 0:
            pass
        self._call("close", C.close, fd)


def commit_rows(folder: Path, failures: Failures, commits: int) -> None:
    """One row a transaction; each that SQLite said was committed is there in the end, and no other."""
    path = folder / "database"
    base = sqlite3.connect(path, isolation_level=None)
    base.execute("create table t(a integer primary key, b text)")
    committed = []
    for number in range(commits):
        try:
            base.execute("insert into t values (?, ?)", (number, "x" * 100))
            committed.append(number)
        except sqlite3.Error as error:
            failures.note("commit", str(error))
    base.close()
    again = sqlite3.connect(path)
    if [row[0] for row in again.execute("select a from t order by a")] != committed:
        failures.note("commit", "other rows than were committed")
    again.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=float, required=True, metavar="MS")
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--commits", type=int, default=0)
    parser.add_argument("--restart", action="store_true", help="SA_RESTART")
    parser.add_argument("--truth", type=Path, help="only read, and compare with the files of this folder")
    parser.add_argument("--kinds", default="", help="with commas; all when it is empty")
    arguments = parser.parse_args()
    failures = Failures()
    handled = 0

    def handle(*_: object) -> None:
        nonlocal handled
        handled += 1

    folder = os.fsencode(arguments.folder)
    calls = Reads(folder, failures, arguments.truth) if arguments.truth else Calls(folder, failures)
    signal.signal(signal.SIGALRM, handle)
    signal.siginterrupt(signal.SIGALRM, not arguments.restart)
    signal.setitimer(signal.ITIMER_REAL, arguments.every / 1000, arguments.every / 1000)
    for kind, call in calls.kinds().items():
        if not arguments.kinds or kind in arguments.kinds.split(","):
            for turn in range(arguments.calls):
                call(turn)
    if arguments.commits:
        commit_rows(arguments.folder, failures, arguments.commits)
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(json.dumps({"failures": failures.counts, "signals": handled}))


if __name__ == "__main__":
    main()
