"""Send the answer to one Fetch: cached bytes at once, the others as they arrive.

A single file is sent block by block. Of many files each is sent as a whole, in the order in which they become
complete. No bytes other than those requested are ever sent: a read error ends the connection, or fails the file when
it comes before the first byte of a block.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import deque
from concurrent.futures import Future

import xxhash

from headrace.base.errors import CorruptBlockError, HeadraceError, StoreError, VersionChangedError
from headrace.base.model import BLOCK_SIZE_BYTES
from headrace.entry.peer.channel import Channel, PeerGoneError, Steps
from headrace.entry.peer.service import WORK_LIMIT_S, LoopBridge, Opened, OpenFileRange, close_opened
from headrace.wire.messages import Done
from headrace.wire.peer_frame import failure_of
from headrace.wire.peer_messages import Block, Fetch, FileEnd, FileRange

log = logging.getLogger(__name__)

STRIDE_BYTES = 16 << 20
"""Bytes of one file that a transfer waits for at a time. They cover what a peer requests in one range, so that the
origin is read in ranges of its own size."""
WAITS_MAX = 5
"""Attempts to send bytes that arrived and were evicted again before they were sent."""


class Sending:
    """Tracks one file of the answer. position: the end of the bytes sent so far."""

    def __init__(self, index: int, file: FileRange, range_: OpenFileRange) -> None:
        self.index = index
        self.file = file
        self.range = range_
        self.position = file.start
        self.waits = 0

    def next_block(self) -> tuple[int, int]:
        boundary = (self.position // BLOCK_SIZE_BYTES + 1) * BLOCK_SIZE_BYTES
        return self.position, min(boundary, self.file.end)


class Arrivals:
    """Collects the waits that have ended. One thread takes them, other threads add them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: deque[tuple[Sending, Future[None]]] = deque()
        self._waiter: Future[None] | None = None
        self._waits: dict[int, Future[None]] = {}

    def __len__(self) -> int:
        """Return the number of waits that `next` has not returned."""
        return len(self._waits)

    def add(self, sending: Sending, wait: Future[None]) -> None:
        self._waits[sending.index] = wait
        wait.add_done_callback(lambda done: self._arrived(sending, done))

    def next(self) -> Steps[tuple[Sending, Future[None]]]:
        """Return the next wait that has ended, and its file."""
        while True:
            with self._lock:
                if self._ended:
                    arrival = self._ended.popleft()
                    del self._waits[arrival[0].index]
                    return arrival
                waiter = self._waiter = Future()
            yield waiter
            if waiter.cancelled():
                raise PeerGoneError("the peer left")

    def cancel(self) -> None:
        for wait in list(self._waits.values()):
            wait.cancel()

    def _arrived(self, sending: Sending, wait: Future[None]) -> None:
        with self._lock:
            self._ended.append((sending, wait))
            waiter, self._waiter = self._waiter, None
        if waiter is not None and waiter.set_running_or_notify_cancel():
            waiter.set_result(None)


def outcome(future: Future[None]) -> HeadraceError | None:
    """Return the error of a wait that ended, or None. Raise PeerGoneError when it was cancelled."""
    if future.cancelled():
        raise PeerGoneError("the peer left")
    error = future.exception()
    if error is None or isinstance(error, HeadraceError):
        return error
    raise error


class Transfer:
    """Sends the files of one Fetch. peer: the id of the node that asks."""

    def __init__(self, channel: Channel, bridge: LoopBridge, request: Fetch, *, peer: str) -> None:
        self._channel = channel
        self._bridge = bridge
        self._request = request
        self._peer = peer
        self._arrivals = Arrivals()
        self._opened: list[OpenFileRange | HeadraceError] = []

    def run(self) -> Steps[None]:
        """Send everything up to Done. Raise PeerGoneError or OSError when the connection can't be used any more."""
        request = self._request
        opening = self._bridge.open_many(
            request,
            peer=self._peer,
            keep=self._opened.extend,
        )
        try:
            yield opening
            if opening.cancelled():
                raise PeerGoneError("the peer left")
            yield from self._send_all(opening.result())
        finally:
            opening.cancel()
            self._arrivals.cancel()
            self._bridge.soon(lambda: close_opened(self._opened))  # after the waits that were cancelled
        self._channel.put(Done())
        yield from self._channel.flush()

    def _send_all(self, opened: Opened) -> Steps[None]:
        whole_files = (
            len(opened) > 1
        )  # files follow one another on the wire, so each begins only when it is complete
        for index, file in enumerate(opened):
            if isinstance(file, HeadraceError):
                self._fail(index, file)
                continue
            yield from self._send_ready(
                Sending(index, self._request.files[index], file), whole_files=whole_files
            )
        while len(self._arrivals):
            yield from self._channel.flush()
            sending, wait = yield from self._arrivals.next()
            error = outcome(wait)
            if error is not None:
                self._fail(sending.index, error)
                continue
            yield from self._send_ready(sending, whole_files=whole_files)

    def _send_ready(self, sending: Sending, *, whole_files: bool) -> Steps[None]:
        """Send the bytes that are cached, and wait for the rest."""
        file, range_ = sending.file, sending.range
        try:
            if not whole_files or range_.ready(sending.position, file.end):
                while sending.position < file.end:
                    start, end = sending.next_block()
                    if not range_.ready(start, end):
                        break
                    yield from self._send_block(sending, start, end)
                    sending.position = end
                    sending.waits = 0
                else:
                    return self._channel.put(FileEnd(sending.index, extras=range_.extras()))
            self._wait_for_rest(sending, whole_files=whole_files)
        except HeadraceError as error:
            self._fail(sending.index, error)

    def _wait_for_rest(self, sending: Sending, *, whole_files: bool) -> None:
        sending.waits += 1
        if sending.waits > WAITS_MAX:
            raise StoreError(
                "file for a peer", why=f"it was evicted {WAITS_MAX} times before it could be sent"
            )
        end = sending.file.end if whole_files else min(sending.file.end, sending.position + STRIDE_BYTES)
        work = sending.range.wait(sending.position, end)
        self._arrivals.add(sending, self._bridge.call(work, "fetching for a peer", WORK_LIMIT_S))

    def _send_block(self, sending: Sending, start: int, end: int) -> Steps[None]:
        fd, block_index = sending.range.fileno(), start // BLOCK_SIZE_BYTES
        if not sending.range.steady:
            return (yield from self._send_changing(sending, fd, start, end))
        block_start = block_index * BLOCK_SIZE_BYTES
        block_end = min(block_start + BLOCK_SIZE_BYTES, sending.file.size_bytes)
        checksum = sending.range.checksum(block_index)
        part = None
        if (start, end) != (block_start, block_end):
            block = _read_block(fd, block_start, block_end, checksum=checksum)
            part = memoryview(block)[start - block_start : end - block_start]
            checksum = xxhash.xxh3_64_intdigest(part)
        self._channel.put(Block(sending.index, start, end - start, checksum))
        yield from self._channel.flush(more=True)
        if part is not None:
            yield from self._channel.send(part)
            return
        try:
            yield from self._channel.send_file(fd, start, end)
        except OSError as error:
            if error.errno == errno.EIO:
                log.warning("a cache file can't be read for a peer error=%s", error)
            raise

    def _send_changing(self, sending: Sending, fd: int, start: int, end: int) -> Steps[None]:
        """Send bytes of a file that may be written at this time. They are read once, and the checksum covers the
        bytes read."""
        body = os.pread(fd, end - start, start)
        if len(body) != end - start:
            raise StoreError("file for a peer", why=f"it ends at byte {start + len(body)} now")
        if not sending.range.ready(start, end):
            raise VersionChangedError("file for a peer", why="it was written while it was sent")
        self._channel.put(Block(sending.index, start, end - start, xxhash.xxh3_64_intdigest(body)))
        yield from self._channel.flush(more=True)
        yield from self._channel.send(memoryview(body))

    def _fail(self, index: int, error: HeadraceError) -> None:
        self._channel.put(FileEnd(index, failure_of(error)))


def _read_block(fd: int, start: int, end: int, *, checksum: int) -> bytes:
    """Return a whole block after checking it. Part of a block has no checksum of its own."""
    try:
        body = os.pread(fd, end - start, start)
    except OSError as error:
        raise StoreError("cache file can't be read", why=error.strerror or str(error)) from error
    if xxhash.xxh3_64_intdigest(body) != checksum:
        raise CorruptBlockError("file for a peer", why=f"block at {start} does not match its checksum")
    return body
