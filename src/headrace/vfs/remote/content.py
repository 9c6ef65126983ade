"""Read a file of other hosts as a `Content`. Bytes are fetched on demand, several parts at a time."""

from __future__ import annotations

import io
import itertools
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from headrace.base.cancel import Cancel
from headrace.vfs.remote.cluster_client import STEP_BYTES, ClusterClient
from headrace.vfs.remote.request_group import RequestGroup
from headrace.vfs.streams import Content

WINDOW_BYTES_MIN = 128 << 10
"""Bytes of the first window of a file that is read in small pieces. It doubles with each read that continues where the
last one ended; then the next window is fetched ahead, too."""
DIRECT_BYTES = 1 << 20
"""Bytes from which on a read bypasses the window."""
FIRST_PART_BYTES = 64 << 20
"""Bytes for which a read takes memory at once: as many as all threads fetch at one time. Then it doubles."""


def ranges(start: int, end: int) -> list[tuple[int, int]]:
    """Cut a range at multiples of STEP_BYTES, so that requests are for whole blocks."""
    cuts = [start, *range((start // STEP_BYTES + 1) * STEP_BYTES, end, STEP_BYTES), end]
    return [(begin, stop) for begin, stop in itertools.pairwise(cuts) if stop > begin]


def growing_parts(size_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut a file into parts, each as long as all before it. Memory for one part at a time grows with what has arrived:
    another host names the size."""
    start, end = 0, min(size_bytes, FIRST_PART_BYTES)
    while start < size_bytes:
        yield start, end
        start, end = end, min(size_bytes, 2 * end)


def filled(size_bytes: int, fill: Callable[[memoryview, int], None]) -> bytes:
    """Return the bytes that `fill` writes into the memory it gets, without another copy. It is called with the memory
    of a part and the part's offset. BytesIO lends its memory, and gives it away as bytes: half the time and half the
    memory of bytes(bytearray)."""
    buffer = io.BytesIO(bytes(min(size_bytes, FIRST_PART_BYTES)))
    for start, end in growing_parts(size_bytes):
        if start:
            buffer.seek(end - 1)
            buffer.write(b"\0")
        with buffer.getbuffer() as memory, memory[start:] as part:
            fill(part, start)
    return buffer.getvalue()


def fetch_into(
    nodes: ClusterClient,
    path: bytes,
    etag: str,
    target: memoryview,
    start: int,
    *,
    group: RequestGroup | None = None,
) -> None:
    """Fill the whole target. VersionChangedError; OriginError and its kinds. group: of the requests."""
    parts = ranges(start, start + len(target))

    def fetch(part: tuple[int, int]) -> None:
        into = target[part[0] - start : part[1] - start]
        nodes.fetch(path, *part, etag=etag, into=into, group=group)

    if len(parts) == 1:
        fetch(parts[0])
        return
    in_flight = [nodes.threads.executor().submit(fetch, part) for part in parts]
    try:
        for future in in_flight:
            future.result()
    finally:
        for future in in_flight:
            future.cancel()
        for future in in_flight:
            if not future.cancelled():
                future.exception()  # no thread may write into the target after the return


class RemoteContent(Content):
    """Reads one version of a file. It has no descriptor until `wait_whole`."""

    def __init__(self, nodes: ClusterClient, path: bytes, size_bytes: int, etag: str) -> None:
        super().__init__(size_bytes)
        self._nodes = nodes
        self._path = path
        self._etag = etag
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._window_at = 0
        self._window = memoryview(b"")
        self._window_bytes = WINDOW_BYTES_MIN
        self._next: tuple[int, Future[memoryview]] | None = None

    def _held(self) -> threading.Lock:
        """Return the lock of the window and of `fd`. A forked child gets another one, and drops the window that its
        parent fetches ahead: it has no thread that does, and none that frees the lock."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._lock = threading.Lock()
            self._next = None
        return self._lock

    def read(self, start: int, end: int) -> bytes:
        end = min(end, self.size_bytes)
        if end <= start:
            return b""

        def fill(target: memoryview, offset: int) -> None:
            fetch_into(self._nodes, self._path, self._etag, target, start + offset)

        return filled(end - start, fill)

    def read_into(self, target: memoryview, start: int) -> int:
        count = min(len(target), self.size_bytes - start)
        if count <= 0:
            return 0
        if count >= DIRECT_BYTES:
            fetch_into(self._nodes, self._path, self._etag, target[:count], start)
            return count
        with self._held():
            if not self._window_at <= start < self._window_at + len(self._window):
                self._move_window(start)
            offset = start - self._window_at
            count = min(count, len(self._window) - offset)
            target[:count] = self._window[offset : offset + count]
            return count

    def _move_window(self, start: int) -> None:
        is_sequential = start == self._window_at + len(self._window) and len(self._window) > 0
        ahead, self._next = self._next, None
        if ahead is not None and ahead[0] == start:
            self._window_at, self._window = start, ahead[1].result()
        else:
            if not is_sequential:
                self._window_bytes = WINDOW_BYTES_MIN
            self._window_at, self._window = start, self._fetch(start, self._window_bytes)
        following = start + len(self._window)
        if is_sequential and following < self.size_bytes:
            self._window_bytes = min(STEP_BYTES, self._window_bytes * 2)
            count = self._window_bytes
            self._next = (
                following,
                self._nodes.threads.executor().submit(lambda: self._fetch(following, count)),
            )

    def _fetch(self, start: int, count: int) -> memoryview:
        end = min(start + count, self.size_bytes, (start // STEP_BYTES + 1) * STEP_BYTES)
        return memoryview(self._nodes.fetch(self._path, start, end, etag=self._etag).data)

    def wait(self, start: int, end: int) -> int:
        return self.wait_whole()

    def wait_whole(self, cancel: Cancel | None = None) -> int:
        """Return a file in memory that has all bytes. A cancel has no effect."""
        with self._held():
            if self.fd < 0:
                self.fd = self._fetch_whole()
            return self.fd

    def _fetch_whole(self) -> int:
        fd = os.memfd_create("headrace", os.MFD_CLOEXEC)
        try:
            for start, end in growing_parts(self.size_bytes):
                os.ftruncate(fd, end)
                # Unmapped with its last reference: an error's trace may have one, which a close would not permit.
                target = memoryview(mmap.mmap(fd, end - start, offset=start))
                fetch_into(self._nodes, self._path, self._etag, target, start)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def is_in_memory(self) -> bool:
        return False

    def copy_to(self, target: int, on_copied: Callable[[int], object] = lambda _: None) -> None:
        step = 4 * STEP_BYTES
        buffer = memoryview(bytearray(min(step, self.size_bytes)))
        for start in range(0, self.size_bytes, step):
            part = buffer[: min(step, self.size_bytes - start)]
            fetch_into(self._nodes, self._path, self._etag, part, start)
            offset = 0
            while offset < len(part):
                offset += os.pwrite(target, part[offset:], start + offset)
            on_copied(len(part))

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self._next is not None:
            self._next[1].cancel()
            self._next = None
        self._window = memoryview(b"")
