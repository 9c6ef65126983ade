"""Scripts that do to one file all that can be done to its bytes, in random order, against the same in memory: in the
manner of fsx (Apple, 1991; now of xfstests)."""

from __future__ import annotations

import mmap
import os
import random

from tests.integration.writes import place as calls
from tests.integration.writes.place import BLOCK, LOWER_LARGE, OPEN_FLAGS, Place, equal, pwrite_all, read_fd
from tests.integration.writes.registry import script

STEPS = 250
SIZE_MAX = 2 * BLOCK + 50_000


class Exercise:
    """Opens the file anew now and then; what is expected is `wanted`."""

    def __init__(self, path: str, wanted: bytes, seed: int) -> None:
        self._path = path
        self._chance = random.Random(seed)
        self._wanted = bytearray(wanted)
        self._fd = os.open(path, OPEN_FLAGS)

    def run(self) -> None:
        steps = [self.write, self.write, self.read, self.map_write, self.map_read, self.truncate]
        steps += [self.punch, self.append, self.reopen, self.allocate]
        for number in range(STEPS):
            step = self._chance.choice(steps)
            step()
            where = f"step {number}, {step.__name__}"
            assert os.fstat(self._fd).st_size == len(self._wanted), where
            if number % 10 == 0:
                assert read_fd(self._fd) == bytes(self._wanted), where
        equal(read_fd(self._fd), bytes(self._wanted))
        os.close(self._fd)
        with open(self._path, "rb") as file:
            equal(file.read(), bytes(self._wanted))

    def _range(self) -> tuple[int, int]:
        """Within the file; it is not empty."""
        start = self._chance.randrange(len(self._wanted))
        return start, min(len(self._wanted), start + self._chance.randrange(1, 66_000))

    def _put(self, data: bytes, start: int) -> None:
        if start > len(self._wanted):
            self._wanted += bytes(start - len(self._wanted))
        self._wanted[start : start + len(data)] = data

    def write(self) -> None:
        data = self._chance.randbytes(self._chance.randrange(1, 66_000))
        start = self._chance.randrange(min(SIZE_MAX, len(self._wanted) + 100_000))
        pwrite_all(self._fd, data, start)
        self._put(data, start)

    def append(self) -> None:
        if len(self._wanted) > SIZE_MAX:
            return
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"appended")
        os.close(fd)
        self._wanted += b"appended"

    def read(self) -> None:
        if self._wanted:
            start, end = self._range()
            equal(os.pread(self._fd, end - start, start), bytes(self._wanted[start:end]))

    def map_read(self) -> None:
        if self._wanted:
            start, end = self._range()
            with mmap.mmap(self._fd, len(self._wanted), prot=mmap.PROT_READ) as mapped:
                equal(mapped[start:end], bytes(self._wanted[start:end]))

    def map_write(self) -> None:
        if self._wanted:
            start, end = self._range()
            data = self._chance.randbytes(end - start)
            with mmap.mmap(self._fd, len(self._wanted)) as mapped:
                mapped[start:end] = data
                if self._chance.random() < 0.5:
                    mapped.flush()
            self._put(data, start)

    def truncate(self) -> None:
        size = self._chance.randrange(SIZE_MAX)
        if self._chance.random() < 0.5:
            os.ftruncate(self._fd, size)
        else:
            os.truncate(self._path, size)
        del self._wanted[size:]
        self._wanted += bytes(size - len(self._wanted))

    def punch(self) -> None:
        if self._wanted:
            start, end = self._range()
            calls.fallocate(self._fd, calls.PUNCH_HOLE | calls.KEEP_SIZE, start, end - start)
            self._put(bytes(end - start), start)

    def allocate(self) -> None:
        size = self._chance.randrange(1, SIZE_MAX)
        calls.fallocate(self._fd, 0, 0, size)
        self._wanted += bytes(max(0, size - len(self._wanted)))

    def reopen(self) -> None:
        os.fsync(self._fd)
        os.close(self._fd)
        self._fd = os.open(self._path, os.O_RDWR)


@script()
def a_new_file_is_exercised(place: Place) -> None:
    Exercise(place.path("file"), b"", seed=1).run()


@script(lower=LOWER_LARGE)
def a_lower_file_is_exercised(place: Place) -> None:
    Exercise(place.low("large"), LOWER_LARGE["large"], seed=2).run()
