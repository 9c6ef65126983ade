"""The answer to one Fetch: what is in the cache goes out at once, the rest as it lands.

Of one file, block by block. Of many, each as a whole, in the order in which they become ready. Other bytes than those
asked for are never sent: what can't be read ends the connection, or, before the first byte of a block, fails the file.
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
"""How much of one file is waited for at a time: what a peer asks for in one range, and more, so that the origin is
asked in ranges of its own size."""
WAITS_MAX = 5
"""How often what was waited for may be gone again before it is sent."""


class Sending:
    """One file of the answer. at: up to where it was sent."""

    def __init__(self, index: int, wanted: FileRange, piece: OpenFileRange) -> None:
        self.index = index
        self.wanted = wanted
        self.piece = piece
        self.at = wanted.start
        self.waits = 0

    def next_block(self) -> tuple[int, int]:
        boundary = (self.at // BLOCK_SIZE_BYTES + 1) * BLOCK_SIZE_BYTES
        return self.at, min(boundary, self.wanted.end)


class Arrivals:
    """Which of many waits have ended. One thread takes, others add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: deque[tuple[Sending, Future[None]]] = deque()
        self._waiter: Future[None] | None = None
        self._waits: dict[int, Future[None]] = {}

    def __len__(self) -> int:
        """Those not taken yet."""
        return len(self._waits)

    def add(self, sending: Sending, wait: Future[None]) -> None:
        self._waits[sending.index] = wait
        wait.add_done_callback(lambda done: self._arrived(sending, done))

    def next(self) -> Steps[tuple[Sending, Future[None]]]:
        while True:
            with self._lock:
                if self._ended:
                    found = self._ended.popleft()
                    del self._waits[found[0].index]
                    return found
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
    """Of a wait that ended. HungUpError when it was cancelled."""
    if future.cancelled():
        raise PeerGoneError("the peer left")
    error = future.exception()
    if error is None or isinstance(error, HeadraceError):
        return error
    raise error


class Transfer:
    def __init__(self, channel: Channel, calls: LoopBridge, request: Fetch) -> None:
        self._channel = channel
        self._calls = calls
        self._request = request
        self._arrivals = Arrivals()
        self._opened: list[OpenFileRange | HeadraceError] = []

    def run(self) -> Steps[None]:
        """Up to Done. HungUpError, OSError: the connection is of no more use."""
        request = self._request
        opening = self._calls.open_many(
            request.files, cached_only=request.cached_only, epoch=request.epoch, keep=self._opened.extend
        )
        try:
            yield opening
            if opening.cancelled():
                raise PeerGoneError("the peer left")
            yield from self._send_all(opening.result())
        finally:
            opening.cancel()
            self._arrivals.cancel()
            self._calls.soon(lambda: close_opened(self._opened))  # not while one of them still waits
        self._channel.put(Done())
        yield from self._channel.flush()

    def _send_all(self, pieces: Opened) -> Steps[None]:
        together = len(pieces) > 1  # one file after the other on the wire: begun only when all of it is there
        for index, piece in enumerate(pieces):
            if isinstance(piece, HeadraceError):
                self._fail(index, piece)
                continue
            yield from self._go_on(Sending(index, self._request.files[index], piece), together=together)
        while len(self._arrivals):
            yield from self._channel.flush()
            sending, wait = yield from self._arrivals.next()
            failed = outcome(wait)
            if failed is not None:
                self._fail(sending.index, failed)
                continue
            yield from self._go_on(sending, together=together)

    def _go_on(self, sending: Sending, *, together: bool) -> Steps[None]:
        """Sends what is there; where not all of it is, asks for it."""
        wanted, piece = sending.wanted, sending.piece
        try:
            if not together or piece.ready(sending.at, wanted.end):
                while sending.at < wanted.end:
                    start, end = sending.next_block()
                    if not piece.ready(start, end):
                        break
                    yield from self._send_block(sending, start, end)
                    sending.at = end
                    sending.waits = 0
                else:
                    return self._channel.put(FileEnd(sending.index, extras=piece.extras()))
            self._wait_for_rest(sending, together=together)
        except HeadraceError as error:
            self._fail(sending.index, error)

    def _wait_for_rest(self, sending: Sending, *, together: bool) -> None:
        sending.waits += 1
        if sending.waits > WAITS_MAX:
            raise StoreError("file for a peer", why="it is evicted as soon as it was fetched")
        end = sending.wanted.end if together else min(sending.wanted.end, sending.at + STRIDE_BYTES)
        work = sending.piece.wait(sending.at, end)
        self._arrivals.add(sending, self._calls.call(work, "fetching for a peer", WORK_LIMIT_S))

    def _send_block(self, sending: Sending, start: int, end: int) -> Steps[None]:
        file, number = sending.piece.fileno(), start // BLOCK_SIZE_BYTES
        if not sending.piece.steady:
            return (yield from self._send_as_it_is(sending, file, start, end))
        block_start = number * BLOCK_SIZE_BYTES
        block_end = min(block_start + BLOCK_SIZE_BYTES, sending.wanted.size_bytes)
        checksum = sending.piece.checksum(number)
        part = None
        if (start, end) != (block_start, block_end):
            whole = _read_block(file, block_start, block_end, checksum=checksum)
            part = memoryview(whole)[start - block_start : end - block_start]
            checksum = xxhash.xxh3_64_intdigest(part)
        self._channel.put(Block(sending.index, start, end - start, checksum))
        yield from self._channel.flush(more=True)
        if part is not None:
            yield from self._channel.send(part)
            return
        try:
            yield from self._channel.send_file(file, start, end)
        except OSError as error:
            if error.errno == errno.EIO:
                log.warning("cache file can't be read for a peer error=%s", error)
            raise

    def _send_as_it_is(self, sending: Sending, file: int, start: int, end: int) -> Steps[None]:
        """Of a file that is being written, perhaps: what is read once is what the checksum is of."""
        body = os.pread(file, end - start, start)
        if len(body) != end - start:
            raise StoreError("file for a peer", why=f"it ends at byte {start + len(body)} now")
        if not sending.piece.ready(start, end):
            raise VersionChangedError("file for a peer", why="it was written again")
        self._channel.put(Block(sending.index, start, end - start, xxhash.xxh3_64_intdigest(body)))
        yield from self._channel.flush(more=True)
        yield from self._channel.send(memoryview(body))

    def _fail(self, index: int, error: HeadraceError) -> None:
        self._channel.put(FileEnd(index, failure_of(error)))


def _read_block(file: int, start: int, end: int, *, checksum: int) -> bytes:
    """For a part of a block, which has no checksum of its own: the whole is checked first."""
    try:
        body = os.pread(file, end - start, start)
    except OSError as error:
        raise StoreError("cache file can't be read", why=error.strerror or str(error)) from error
    if xxhash.xxh3_64_intdigest(body) != checksum:
        raise CorruptBlockError("file for a peer", why=f"block at {start} does not match its checksum")
    return body
