"""Receive requests and send answers on one client's connection. The socket never blocks; a thread of the pool waits
with `poll`.

A connection belongs to the waiting thread while it waits for a request, and to one thread of the pool while a
request is answered.
"""

from __future__ import annotations

import enum
import os
import select
import socket
import time
from collections.abc import Iterator

from headrace.http.admission import count_address, reset
from headrace.http.body import BodyFraming, Stream, framing_of, http_chunks
from headrace.http.errors import BadRequestError, HttpFault, HungUpError
from headrace.http.messages import (
    HEAD_BYTES_MAX,
    HEAD_END,
    Request,
    Response,
    SendableContent,
    parse_head,
    render_head,
)
from headrace.http.pace import TransferPace

RECEIVE_BYTES = 256 << 10
LINGER_BYTES_MAX = 5 << 20
"""Most bytes that a refused client may still send. They are received and dropped, so that the client sees the
answer."""
ROOM_WAIT_MS = 100
"""Milliseconds that a thread itself waits for room in a socket: on a fast link that is cheaper than a handover."""
COPIED_BYTES_MAX = 32 << 10
"""Largest answer that is copied, head and bytes in one call: that is cheaper than a second call that copies nothing."""
STEP_BYTES = 8 << 20
"""Most bytes of incomplete content that are waited for at a time."""
COPY_BYTES = 256 << 10
"""Bytes of a file that are read and sent at a time, where `sendfile` can't send them."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_DISCARDED = bytearray(RECEIVE_BYTES)
"""The waiting thread receives unneeded bytes here; with MSG_TRUNC the kernel drops them without a copy."""


class ConnectionPhase(enum.Enum):
    """Names what a connection waits for without a thread."""

    HELLO = "the next step of a TLS handshake"
    HEAD = "a request"
    BODY = "the beginning of a body"
    ANSWER = "room in its socket for the rest of an answer"
    END = "the client to read the answer and disconnect"


class HttpServerConnection:
    """Holds the state of one connection. client: its address. address: the address by which its connections are
    counted. framing: the framing of the last request's body."""

    secure = False
    """Tells whether the connection is encrypted. The kernel can't send file pages over it."""
    certificate = ""
    """Name in the client's certificate; "" without one."""

    def __init__(self, sock: socket.socket, address: str = "") -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.fd = sock.fileno()
        self.client = address
        self.address = count_address(address)
        self.phase = ConnectionPhase.HEAD
        self.deadline_s = 0.0
        self.events = select.EPOLLIN
        self.is_authenticated = False
        self.is_buffered = False
        self.is_lingering = False
        self.buffer = bytearray()
        self.request: Request | None = None
        self.response: Response | None = None
        self.pace = TransferPace()
        self.parked_s = 0.0
        self._parked_bytes = 0
        self.framing = BodyFraming()
        self._lingered_bytes = 0
        self.unsent = b""
        self.offset = 0

    # ------------------------------------------------------------ in

    def next_request(self) -> Request | None:
        """Return the next request, or None if its head is not complete. Raise BadRequestError for an invalid one; the
        caller must then close the connection."""
        end = self.buffer.find(HEAD_END)
        if end < 0 and len(self.buffer) <= HEAD_BYTES_MAX:
            return None
        if not 0 <= end <= HEAD_BYTES_MAX:
            raise BadRequestError(
                HttpFault.HEAD_TOO_LARGE, "Your request header section exceeds what is allowed."
            )
        head = bytes(self.buffer[: end + len(HEAD_END)])
        del self.buffer[: len(head)]
        request = parse_head(head)
        request.address = self.client
        if self.secure:
            request.secure, request.certificate = True, self.certificate
        try:
            self.framing = framing_of(request)
        except BadRequestError:
            self.framing = BodyFraming(is_chunked=True)  # its body may end anywhere
            raise
        if self.framing.has_body:
            self.pace = TransferPace()
        return request

    def send_continue(self) -> None:
        """Tell a client that waits for it to send its body. Raise HungUpError."""
        if not self.framing.owes_continue:
            return
        self.framing.owes_continue = False
        try:  # for an empty body too: without it aws 1.46 misreads the next answer
            is_sent = self.sock.send(CONTINUE) == len(CONTINUE)
        except OSError as error:
            raise HungUpError(str(error)) from error
        if not is_sent:
            raise HungUpError("the client reads nothing")

    def body(self, request: Request) -> Iterator[bytes]:
        """Yield the body. Raise HungUpError, and BadRequestError for a body that ends early."""
        if "transfer-encoding" in request.headers:
            return http_chunks(Stream(self._received(None)))
        return self._received(self.framing.left_bytes)

    def _received(self, count: int | None) -> Iterator[bytes]:
        self.send_continue()
        while count is None or self.framing.left_bytes > 0:
            count_max = RECEIVE_BYTES if count is None else min(RECEIVE_BYTES, self.framing.left_bytes)
            piece = bytes(self.buffer[:count_max])
            if piece:
                del self.buffer[: len(piece)]
            else:
                piece = self.receive(count_max)
                self.pace.moved(len(piece))
            if count is not None:
                self.framing.left_bytes -= len(piece)
            yield piece

    def receive_now(self, count: int) -> bytes | None:
        """Return bytes that have arrived, None when there are none, or b"" at the end of the connection."""
        try:
            return self.sock.recv(count)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def receive(self, count: int) -> bytes:
        """Wait for bytes. Raise HungUpError at the end of the connection."""
        while True:
            try:
                piece = self.sock.recv(count)
            except BlockingIOError:
                self._wait(select.POLLIN)
                continue
            except OSError as error:
                raise HungUpError(str(error)) from error
            if not piece:
                raise HungUpError("the client closed the connection")
            return piece

    def skip_body(self) -> bool:
        """Drop the body. Return False when more of it is to come, so that the connection must be closed."""
        if not self.framing.is_whole(self.buffer):
            return False
        del self.buffer[: self.framing.left_bytes]
        self.framing.left_bytes = 0
        return True

    def discard_input(self) -> bool:
        """Drop what the client still sends on a connection that ends. Return False when it must be closed now. The
        waiting thread calls it."""
        try:
            count = socket.socket.recv_into(self.sock, _DISCARDED, 0, socket.MSG_TRUNC)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._lingered_bytes += count
        return count > 0 and self._lingered_bytes <= LINGER_BYTES_MAX

    # ------------------------------------------------------------ out

    def head_of(self, response: Response, common_headers: list[tuple[str, str]]) -> bytes:
        """Return the head of an answer. Announce the end of the connection when part of the body will not be read.
        common_headers: see render_head."""
        framing = self.framing
        if not framing.is_plain and framing.has_body and not framing.is_whole(self.buffer):
            response.close = True
        keep_alive = framing.is_reusable and not response.close
        return render_head(response, common_headers, keep_alive=keep_alive)

    def send_now(self, response: Response, head: bytes, small_bytes: int) -> bool:
        """Send a small answer without waiting, when the socket has room and the bytes are in memory. Return False
        when some of it is left for `send_rest`."""
        content = response.content
        count = response.end - response.start
        self.prepare(response, head)
        if content is None or response.bodiless:
            return self._send_some()
        if 0 < count <= COPIED_BYTES_MAX:
            body = content.read_now(response.start, response.end)
            return body is not None and self._send_together(head, body)
        if count > small_bytes or not content.is_in_memory():
            return False
        try:
            sent = self.sock.send(head, socket.MSG_MORE if count else 0)
            self.unsent = head[sent:]
            if not self.unsent and count:
                self.offset += os.sendfile(self.fd, content.fd, self.offset, count)
        except BlockingIOError:
            return False
        except OSError as error:
            raise HungUpError(str(error)) from error
        return not self.unsent and self.offset == response.end

    def _send_together(self, head: bytes, body: bytearray) -> bool:
        try:
            sent = self.sock.sendmsg((head, body))
        except BlockingIOError:
            return False
        except OSError as error:
            raise HungUpError(str(error)) from error
        self.unsent = head[sent:]
        self.offset += max(0, sent - len(head))
        return sent == len(head) + len(body)

    def _send_some(self) -> bool:
        try:
            self.unsent = self.unsent[self.sock.send(self.unsent) :]
        except BlockingIOError:
            return False
        except OSError as error:
            raise HungUpError(str(error)) from error
        return not self.unsent

    def prepare(self, response: Response, head: bytes) -> None:
        """Set what `send_rest` sends."""
        self.unsent, self.offset = head, response.start
        if response.content is None or response.bodiless:
            self.unsent, self.offset = head if response.bodiless else head + response.body, response.end

    def send_rest(self, response: Response) -> bool:
        """Send until the kernel has the complete answer; return False if the socket has no room for a while. Blocks
        until missing content is there. The caller must end the connection after an error of the content, because the
        head has been sent. Raises HungUpError if the client disconnected."""
        content, end = response.content, response.end
        while True:
            if not self._push(more=self.offset < end):
                return False
            if response.pieces is not None and not response.bodiless:
                self._take_piece(response, response.pieces)
                continue
            if content is None or self.offset >= end:
                return True
            step_end = end if content.fd >= 0 else min(end, self.offset + STEP_BYTES)
            if not self._send_file(content, content.wait(self.offset, step_end), step_end):
                return False

    def _take_piece(self, response: Response, pieces: Iterator[bytes]) -> None:
        """Make the next chunk, or the last one, the bytes to be sent."""
        piece = next(pieces, b"")
        if not piece:
            response.pieces = None
        self.unsent = b"%x\r\n%b\r\n" % (len(piece), piece)
        self.offset += len(self.unsent)

    def _send_file(self, content: SendableContent, fd: int, end: int) -> bool:
        """Send part of a file. Return False when the socket has no room for a while. `sendfile` queues the file's pages
        themselves, and a write in place changes them before the client receives them. So a file that may be written is
        copied, as it is for TLS. Raises VersionChangedError in place of its last bytes if it was written."""
        is_copied = self.secure or content.is_versioned
        while self.offset < end:
            if is_copied:
                self.unsent = _read_piece(content, fd, self.offset, end)
                self.offset += len(self.unsent)
                if not self._push(more=self.offset < end):
                    return False
                continue
            try:
                sent = os.sendfile(self.fd, fd, self.offset, end - self.offset)
            except BlockingIOError:
                if not self._is_ready(select.POLLOUT):
                    return False
                continue
            except OSError as error:
                raise HungUpError(str(error)) from error
            if sent == 0:
                raise HungUpError("the file was truncated while it was sent")
            self.offset += sent
        return True

    def _push(self, *, more: bool) -> bool:
        """Send `unsent`. Return False when the socket has no room for a while. more: bytes follow at once."""
        while self.unsent:
            try:
                sent = self.sock.send(self.unsent, socket.MSG_MORE if more else 0)
                self.unsent = self.unsent[sent:]
            except BlockingIOError:
                if not self._is_ready(select.POLLOUT):
                    return False
            except OSError as error:
                raise HungUpError(str(error)) from error
        return True

    def _is_ready(self, event: int) -> bool:
        """Return whether the event occurs within a short wait. Record it as the event to wait for otherwise."""
        self.events = select.EPOLLOUT if event == select.POLLOUT else select.EPOLLIN
        poll = select.poll()
        poll.register(self.fd, event)
        return bool(poll.poll(ROOM_WAIT_MS))

    def park(self, phase: ConnectionPhase, events: int, limit_s: float) -> None:
        """Begin to wait without a thread, for at most that time."""
        self.phase, self.events = phase, events
        self.parked_s = time.monotonic()
        self.deadline_s = self.parked_s + limit_s

    def park_answer(self, response: Response) -> None:
        """Park until the socket has room for the rest of the answer. Raise HungUpError for a client that reads too
        slowly."""
        sent = self.offset - len(self.unsent)
        if self.response is response:
            self.pace.moved(sent - self._parked_bytes)
        else:
            self.response, self.pace = response, TransferPace()
        self._parked_bytes = sent
        if not self.pace.left_s:
            raise HungUpError("the client reads its answer too slowly")
        self.park(ConnectionPhase.ANSWER, self.events, self.pace.left_s)

    def unpark(self) -> None:
        """End the wait; its duration counts against the transfer's pace."""
        self.pace.waited(time.monotonic() - self.parked_s)

    def _wait(self, event: int) -> None:
        """Wait in this thread for more of a body. Raise HungUpError when it arrives too slowly."""
        poll = select.poll()
        poll.register(self.fd, event)
        started_s = time.monotonic()
        ready = poll.poll(self.pace.left_s * 1000)
        self.pace.waited(time.monotonic() - started_s)
        if not ready or not self.pace.left_s:
            raise HungUpError("the body arrives too slowly")

    def shut(self, direction: int = socket.SHUT_RDWR) -> bool:
        """End the connection or one direction of it, from any thread: a thread that waits for it sees it ended. Return
        False when the client has disconnected."""
        try:
            socket.socket.shutdown(self.sock, direction)
        except OSError:
            return False
        return True

    def close(self, *, at_once: bool = False) -> None:
        """Close the connection. at_once: the kernel discards what the client has not received."""
        if self.response is not None:
            self.response.release()
            self.response, at_once = None, True
        if at_once:
            reset(self.sock)
        else:
            self.sock.close()


def _read_piece(content: SendableContent, fd: int, start: int, end: int) -> bytes:
    """Read the next bytes of a part that ends at `end`. The file must be the version that the head names when the last
    ones have been read: a body that is too short keeps a client from taking two versions for one. Raises
    VersionChangedError and HungUpError."""
    try:
        piece = os.pread(fd, min(COPY_BYTES, end - start), start)
    except OSError as error:
        raise HungUpError(str(error)) from error
    if not piece:
        raise HungUpError("the file was truncated while it was sent")
    if content.is_versioned and start + len(piece) == end:
        content.check_unchanged()
    return piece
