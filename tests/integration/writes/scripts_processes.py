"""Scripts of more than one process: appends, locks, shared memory, what one wrote and another reads."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
from functools import partial

from tests.integration.writes.place import (
    LOWER,
    OPEN_FLAGS,
    Beside,
    Place,
    elsewhere,
    equal,
    outcome,
    pwrite_all,
    read_fd,
    read_whole,
    refused,
)
from tests.integration.writes.registry import script

LINES = 400
FLOCK = struct.Struct("hhqqi4x")
"""struct flock of 64-bit Linux: type, whence, start, length, process id."""
F_OFD_GETLK, F_OFD_SETLK = 36, 37


def _append(path: str, letter: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    for _ in range(LINES):
        os.write(fd, letter * 99 + b"\n")
    os.close(fd)


@script()
def two_processes_append(place: Place) -> None:
    """To a new file and to one of the origin: no line is lost and none is torn."""
    new = place.write("file", b"")
    for path, before in ((new, []), (place.low("text"), LOWER["text"].splitlines())):
        others = [Beside(partial(_append, path, letter)) for letter in (b"a", b"b")]
        equal([process.wait() for process in others], [0, 0])
        lines = read_whole(path).splitlines()
        equal(lines[: len(before)], before)
        equal(sorted(lines[len(before) :]), [b"a" * 99] * LINES + [b"b" * 99] * LINES)
        os.truncate(path, len(b"\n".join(before)))  # their order is nobody's


@script()
def what_one_process_wrote_another_reads(place: Place) -> None:
    path = place.path("file")
    fd = os.open(path, OPEN_FLAGS)
    for number in range(20):
        os.pwrite(fd, b"%02d" % number, number * 5_000)
        equal(elsewhere(partial(_tail, path, number * 5_000)), b"%02d" % number)
        elsewhere(partial(edit, path, b"back", number * 5_000 + 2))
        equal(os.pread(fd, 6, number * 5_000), b"%02dback" % number)
    os.close(fd)
    os.rename(path, place.path("renamed"))
    equal(elsewhere(lambda: os.listdir(place.root)), ["renamed"])
    elsewhere(lambda: os.mkdir(place.path("theirs")))
    equal(sorted(os.listdir(place.root)), ["renamed", "theirs"])


def _tail(path: str, start: int) -> bytes:
    return read_whole(path)[start:]


def edit(path: str, data: bytes, offset: int) -> None:
    fd = os.open(path, os.O_WRONLY)
    pwrite_all(fd, data, offset)
    os.close(fd)


@script()
def processes_share_a_mapping(place: Place) -> None:
    fd = os.open(place.write("file", bytes(8_192)), os.O_RDWR)

    def other() -> None:
        own = os.open(place.path("file"), os.O_RDWR)
        with mmap.mmap(own, 8_192) as theirs:
            equal(theirs[100:105], b"first")
            theirs[5_000:5_006] = b"second"

    with mmap.mmap(fd, 8_192) as mapped:
        mapped[100:105] = b"first"
        elsewhere(other)
        equal(mapped[5_000:5_006], b"second")
    equal(read_fd(fd)[5_000:5_006], b"second")
    os.close(fd)


@script()
def whole_file_locks(place: Place) -> None:
    for path in (place.write("file", b"x"), place.low("file")):
        fd = os.open(path, os.O_RDWR)

        def tries(kind: int, path: str = path) -> object:
            def lock() -> object:
                own = os.open(path, os.O_RDWR)
                return outcome(fcntl.flock, own, kind | fcntl.LOCK_NB)

            return elsewhere(lock)

        fcntl.flock(fd, fcntl.LOCK_EX)
        equal(tries(fcntl.LOCK_EX), "EAGAIN")
        equal(tries(fcntl.LOCK_SH), "EAGAIN")
        fcntl.flock(fd, fcntl.LOCK_SH)
        equal(tries(fcntl.LOCK_SH), None)
        equal(tries(fcntl.LOCK_EX), "EAGAIN")
        fcntl.flock(fd, fcntl.LOCK_UN)
        equal(tries(fcntl.LOCK_EX), None)
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.write(fd, b"locked")
        os.close(fd)
        equal(tries(fcntl.LOCK_EX), None)


@script()
def locks_of_ranges(place: Place) -> None:
    for path in (place.write("file", bytes(100)), place.low("file")):
        fd = os.open(path, os.O_RDWR)

        def tries(kind: int, start: int, size: int, path: str = path) -> object:
            def lock() -> object:
                own = os.open(path, os.O_RDWR)
                return outcome(fcntl.lockf, own, kind | fcntl.LOCK_NB, size, start)

            return elsewhere(lock)

        def holder(start: int, path: str = path) -> int:
            def ask() -> int:
                own = os.open(path, os.O_RDWR)
                asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, 1, 0)
                kind, _, _, _, pid = FLOCK.unpack(fcntl.fcntl(own, fcntl.F_GETLK, asked))
                return 0 if kind == fcntl.F_UNLCK else pid

            return elsewhere(ask)

        fcntl.lockf(fd, fcntl.LOCK_EX, 10, 20)
        fcntl.lockf(fd, fcntl.LOCK_SH, 10, 40)
        equal(tries(fcntl.LOCK_EX, 0, 20), None)
        equal(tries(fcntl.LOCK_EX, 29, 5), "EAGAIN")
        equal(tries(fcntl.LOCK_SH, 40, 10), None)
        equal(tries(fcntl.LOCK_EX, 45, 1), "EAGAIN")
        equal((holder(25), holder(60)), (os.getpid(), 0))
        fcntl.lockf(fd, fcntl.LOCK_UN, 5, 22)  # out of the middle
        equal([tries(fcntl.LOCK_EX, start, 1) for start in (21, 24, 28)], ["EAGAIN", None, "EAGAIN"])
        os.close(os.open(path, os.O_RDONLY))  # a close of any descriptor gives up all: fcntl(2)
        equal(tries(fcntl.LOCK_EX, 0, 100), None)
        os.close(fd)


@script()
def locks_of_descriptors(place: Place) -> None:
    path = place.write("file", bytes(100))
    first, second = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    exclusive = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 50, 0)
    fcntl.fcntl(first, F_OFD_SETLK, exclusive)
    refused(errno.EAGAIN, fcntl.fcntl, second, F_OFD_SETLK, exclusive)
    fcntl.fcntl(second, F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 50, 50, 0))
    os.close(first)
    fcntl.fcntl(second, F_OFD_SETLK, exclusive)
    os.close(second)


@script()
def a_lock_is_waited_for(place: Place) -> None:
    """The other one gets it after it was given up, not before: both tell one pipe, in order."""
    path = place.write("file", b"")
    for lock in (fcntl.flock, fcntl.lockf):
        fd = os.open(path, os.O_RDWR)
        read, write = os.pipe()
        lock(fd, fcntl.LOCK_EX)

        def waits(lock: object = lock, write: int = write) -> None:
            assert callable(lock)
            own = os.open(path, os.O_RDWR)
            os.write(write, b"begun,")
            lock(own, fcntl.LOCK_EX)
            os.write(write, b"got,")

        other = Beside(waits)
        equal(os.read(read, 6), b"begun,")
        os.write(write, b"given,")
        lock(fd, fcntl.LOCK_UN)
        equal(other.wait(), 0)
        equal(os.read(read, 100), b"given,got,")
        for descriptor in (fd, read, write):
            os.close(descriptor)


@script()
def many_processes_make_and_remove_names(place: Place) -> None:
    """In one folder at one time; each sees its own, and in the end only what is to stay is there."""

    def work(number: int) -> None:
        for turn in range(40):
            path = place.path(f"{number}-{turn}")
            with open(path, "xb") as file:
                file.write(b"%d" % turn)
            assert f"{number}-{turn}" in os.listdir(place.root)
            if turn % 4:
                os.unlink(path)
            else:
                os.rename(path, f"{path}-kept")

    others = [Beside(partial(work, number)) for number in range(4)]
    equal([process.wait() for process in others], [0] * 4)
    equal(set(os.listdir(place.root)), {f"{n}-{turn}-kept" for n in range(4) for turn in range(0, 40, 4)})


@script()
def one_of_many_makes_a_name(place: Place) -> None:
    """O_EXCL and mkdir are won by one, of a new name and of one that the origin had."""
    os.unlink(place.low("file"))
    shown = [place.path("new"), place.low("file")]
    read, write = os.pipe()

    def work() -> None:
        for path in shown:
            if outcome(_make, path) is None:
                os.write(write, b"%d" % shown.index(path))
            if outcome(os.mkdir, f"{path}-folder") is None:
                os.write(write, b"%d" % (2 + shown.index(path)))

    others = [Beside(work) for _ in range(4)]
    equal([process.wait() for process in others], [0] * 4)
    os.close(write)
    equal(sorted(os.read(read, 100)), sorted(b"0123"))
    os.close(read)


def _make(path: str) -> None:
    fd = os.open(path, OPEN_FLAGS | os.O_EXCL)
    os.write(fd, b"made")
    os.close(fd)
