"""One client's connection: bytes in, answers out. The socket never blocks; a thread of the pool waits by `poll`.

It belongs to the door's thread while it waits for a request, and to one thread of the pool while one is answered.
"""

from __future__ import annotations

import contextlib
import enum
import os
import select
import socket
import time
from collections.abc import Iterator

from headrace.http.admission import count_address, reset
from headrace.http.body import Stream, http_chunks
from headrace.http.errors import BadRequestError, HttpFault, HungUpError
from headrace.http.messages import (
    HEAD_BYTES_MAX,
    HEAD_END,
    Request,
    Response,
    is_number,
    parse_head,
    render_head,
)
from headrace.http.pace import TransferPace

RECEIVE_BYTES = 256 << 10
GATHER_BYTES = 64 << 10
"""A body up to this length is there as a whole before a thread takes the request up, and of a longer one as much."""
LINGER_S = 2.0
LINGER_BYTES_MAX = 5 << 20
"""Of what a client sends after it was refused: as long and as much is taken from it, so that it hears why."""
ROOM_WAIT_MS = 100
"""How long a thread waits itself for room in a socket: on a fast link that is cheaper than to hand over."""
COPIED_BYTES_MAX = 32 << 10
"""Of a small answer: head and bytes go by one call, which is cheaper than a second one that copies nothing."""
STEP_BYTES = 8 << 20
"""Of content that is not whole yet so much is waited for at once."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_TAKEN_AWAY = bytearray(RECEIVE_BYTES)
"""What nobody wants to know is received here, by the door's thread: the kernel drops it without a copy."""


class ConnectionPhase(enum.Enum):
    """What a connection waits for, without a thread."""

    HELLO = "the next step of a TLS handshake"
    HEAD = "a request"
    BODY = "the beginning of a body"
    ANSWER = "room in its socket for the rest of an answer"
    END = "the client to take the answer and go"


class HttpServerConnection:
    """client: its address; address: by what its connections are counted. plain: the last request has no body, and
    another may follow it."""

    secure = False
    """Whether what is said on it is encrypted."""
    certificate = ""
    """The name in the client's certificate."""

    def __init__(self, sock: socket.socket, address: str = "") -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.number = sock.fileno()
        self.client = address
        self.address = count_address(address)
        self.phase = ConnectionPhase.HEAD
        self.until_s = 0.0
        self.events = select.EPOLLIN
        self.proven = False
        self.holds = False
        self.lingers = False
        self.buffer = bytearray()
        self.request: Request | None = None
        self.response: Response | None = None
        self.pace = TransferPace()
        self.parked_s = 0.0
        self._parked_at = 0
        self._left_bytes = 0
        self._chunked = False
        self._owes_continue = False
        self._reusable = True
        self.plain = False
        self._lingered_bytes = 0
        self.buffer_out = b""
        self.at = 0

    # ------------------------------------------------------------ in

    def next_request(self) -> Request | None:
        """None: its head is not whole yet. BadRequestError for one that is no request; then the connection is of no
        use."""
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
        self._begin(request)
        return request

    def _begin(self, request: Request) -> None:
        """The body that comes with it, and whether another request can follow."""
        length = request.header("content-length", "0")
        if not is_number(length):
            raise BadRequestError(HttpFault.NO_REQUEST, "Content-Length is not a number")
        self._left_bytes = int(length)
        self._chunked = "transfer-encoding" in request.headers
        if self._chunked and (
            request.header("transfer-encoding").lower() != "chunked" or "content-length" in request.headers
        ):
            raise BadRequestError(
                HttpFault.NO_REQUEST, "Transfer-Encoding must be chunked, without a Content-Length"
            )
        self._owes_continue = request.header("expect").lower() == "100-continue"
        self._reusable = (
            request.keep_alive and not self._chunked
        )  # what follows the last chunk is not kept apart
        self.plain = self._reusable and not (self._left_bytes or self._owes_continue)
        if self._left_bytes or self._chunked:
            self.pace = TransferPace()

    @property
    def reusable(self) -> bool:
        """Whether another request may follow on it."""
        return self._reusable

    @property
    def has_body(self) -> bool:
        return self._left_bytes > 0 or self._chunked or self._owes_continue

    @property
    def is_whole(self) -> bool:
        """Whether all of the body has come."""
        return not self._chunked and not self._owes_continue and self._left_bytes <= len(self.buffer)

    @property
    def gathers(self) -> bool:
        """Whether more bytes have to come before a thread takes the request up."""
        if self._owes_continue:
            return False
        if self._chunked:  # all of them end so
            return len(self.buffer) < GATHER_BYTES and not self.buffer.endswith(HEAD_END)
        return len(self.buffer) < min(self._left_bytes, GATHER_BYTES)

    def invite(self) -> None:
        """The client is told to send its body, if it waits for that. HungUpError."""
        if self._owes_continue:
            self._owes_continue = False
            self._send_all(CONTINUE)  # of no body, too: without it aws 1.46 misreads the next answer

    def body(self, request: Request) -> Iterator[bytes]:
        """HungUpError; BadRequestError for a body that ends early."""
        if "transfer-encoding" in request.headers:
            return http_chunks(Stream(self._received(None)))
        return self._received(self._left_bytes)

    def _received(self, count: int | None) -> Iterator[bytes]:
        self.invite()
        while count is None or self._left_bytes > 0:
            wanted = RECEIVE_BYTES if count is None else min(RECEIVE_BYTES, self._left_bytes)
            piece = bytes(self.buffer[:wanted])
            if piece:
                del self.buffer[: len(piece)]
            else:
                piece = self.receive(wanted)
                self.pace.moved(len(piece))
            if count is not None:
                self._left_bytes -= len(piece)
            yield piece

    def receive_now(self, count: int) -> bytes | None:
        """None: nothing has come. b"" at the end of the connection."""
        try:
            return self.sock.recv(count)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def receive(self, count: int) -> bytes:
        """Waits. HungUpError at the end of the connection."""
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
        """Drops what has come of the body; False: there is more of it, and the connection has to be closed."""
        if not self.is_whole:
            return False
        del self.buffer[: self._left_bytes]
        self._left_bytes = 0
        return True

    def take_away(self) -> bool:
        """For the door's thread, of a connection that ends: drops what the client goes on to send; False: it is to be
        closed now."""
        try:
            count = socket.socket.recv_into(self.sock, _TAKEN_AWAY, 0, socket.MSG_TRUNC)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._lingered_bytes += count
        return count > 0 and self._lingered_bytes <= LINGER_BYTES_MAX

    # ------------------------------------------------------------ out

    def head_of(self, response: Response, marks: list[tuple[str, str]]) -> bytes:
        """marks: as of render_head. Says that the connection ends with it, where a body is left that nobody will
        read."""
        if not self.plain and self.has_body and not self.is_whole:
            response.close = True
        keep_alive = self._reusable and not response.close
        return render_head(response, marks, keep_alive=keep_alive)

    def send_now(self, response: Response, head: bytes, small_bytes: int) -> bool:
        """All of a small answer at once, if the socket has room and the bytes are in memory: never waits. False: some
        of it is left, which `send_rest` sends."""
        content = response.content
        count = response.end - response.start
        if content is None or response.bodiless:
            self.buffer_out = head if response.bodiless else head + response.body
            self.at = response.end
            return self._send_some()
        self.buffer_out, self.at = head, response.start
        if 0 < count <= COPIED_BYTES_MAX:
            body = content.read_now(response.start, response.end)
            return body is not None and self._send_together(head, body)
        if count > small_bytes or not content.is_in_memory():
            return False
        try:
            sent = self.sock.send(head, socket.MSG_MORE if count else 0)
            self.buffer_out = head[sent:]
            if not self.buffer_out and count:
                self.at += os.sendfile(self.number, content.fd, self.at, count)
        except BlockingIOError:
            return False
        except OSError as error:
            raise HungUpError(str(error)) from error
        return not self.buffer_out and self.at == response.end

    def _send_together(self, head: bytes, body: bytearray) -> bool:
        try:
            sent = self.sock.sendmsg((head, body))
        except BlockingIOError:
            return False
        except OSError as error:
            raise HungUpError(str(error)) from error
        self.buffer_out = head[sent:]
        self.at += max(0, sent - len(head))
        return sent == len(head) + len(body)

    def _send_some(self) -> bool:
        try:
            self.buffer_out = self.buffer_out[self.sock.send(self.buffer_out) :]
        except BlockingIOError:
            return False
        except OSError as error:
            raise HungUpError(str(error)) from error
        return not self.buffer_out

    def begin(self, response: Response, head: bytes) -> None:
        """What `send_rest` sends from now on."""
        self.buffer_out, self.at = head, response.start
        if response.content is None or response.bodiless:
            self.buffer_out, self.at = head if response.bodiless else head + response.body, response.end

    def send_rest(self, response: Response) -> bool:
        """Until the kernel has all of it, or has no room for a while: False. What of the content is not there yet is
        waited for, step by step; where that fails the connection breaks off, as the head has been sent. HungUpError."""
        content, end = response.content, response.end
        while True:
            if not self._push(more=self.at < end):
                return False
            if response.pieces is not None:
                self._take_piece(response, response.pieces)
                continue
            if content is None or self.at >= end:
                return True
            step = end if content.fd >= 0 else min(end, self.at + STEP_BYTES)
            if not self._send_file(content.wait(self.at, step), step):
                return False

    def _take_piece(self, response: Response, pieces: Iterator[bytes]) -> None:
        """The next chunk, or the last one, is to be sent."""
        piece = next(pieces, b"")
        if not piece:
            response.pieces = None
        self.buffer_out = b"%x\r\n%b\r\n" % (len(piece), piece)
        self.at += len(self.buffer_out)

    def _send_file(self, fd: int, end: int) -> bool:
        """False: there is no room for a while."""
        while self.at < end:
            try:
                sent = os.sendfile(self.number, fd, self.at, end - self.at)
            except BlockingIOError:
                if not self._has_room(select.POLLOUT):
                    return False
                continue
            except OSError as error:
                raise HungUpError(str(error)) from error
            if sent == 0:
                raise HungUpError("the file was cut short while it was sent")
            self.at += sent
        return True

    def _push(self, *, more: bool) -> bool:
        """What is in buffer_out; False: there is no room for a while. more: bytes follow at once."""
        while self.buffer_out:
            try:
                sent = self.sock.send(self.buffer_out, socket.MSG_MORE if more else 0)
                self.buffer_out = self.buffer_out[sent:]
            except BlockingIOError:
                if not self._has_room(select.POLLOUT):
                    return False
            except OSError as error:
                raise HungUpError(str(error)) from error
        return True

    def _has_room(self, event: int) -> bool:
        """After a short wait. Notes what to wait for else."""
        self.events = select.EPOLLOUT if event == select.POLLOUT else select.EPOLLIN
        poll = select.poll()
        poll.register(self.number, event)
        return bool(poll.poll(ROOM_WAIT_MS))

    def park(self, phase: ConnectionPhase, events: int, limit_s: float) -> None:
        """Waits from now on without a thread, so long at most."""
        self.phase, self.events = phase, events
        self.parked_s = time.monotonic()
        self.until_s = self.parked_s + limit_s

    def park_answer(self, response: Response) -> None:
        """As `park`, for room for the rest of the answer. HungUpError for a client that takes too little of it."""
        sent = self.at - len(self.buffer_out)
        if self.response is response:
            self.pace.moved(sent - self._parked_at)
        else:
            self.response, self.pace = response, TransferPace()
        self._parked_at = sent
        if not self.pace.left_s:
            raise HungUpError("the client takes its answer too slowly")
        self.park(ConnectionPhase.ANSWER, self.events, self.pace.left_s)

    def unpark(self) -> None:
        """It goes on; how long it waited counts against its pace."""
        self.pace.waited(time.monotonic() - self.parked_s)

    def _send_all(self, data: bytes) -> None:
        """A few bytes, for which a socket has room."""
        try:
            if self.sock.send(data) == len(data):
                return
        except OSError as error:
            raise HungUpError(str(error)) from error
        raise HungUpError("the client takes nothing")

    def _wait(self, event: int) -> None:
        """A thread waits for more of a body. HungUpError for one that comes too slowly."""
        poll = select.poll()
        poll.register(self.number, event)
        begun_s = time.monotonic()
        ready = poll.poll(self.pace.left_s * 1000)
        self.pace.waited(time.monotonic() - begun_s)
        if not ready or not self.pace.left_s:
            raise HungUpError("the body comes too slowly")

    def end_sending(self) -> bool:
        """The client is told that nothing more comes; False: it is gone already."""
        try:
            socket.socket.shutdown(self.sock, socket.SHUT_WR)
        except OSError:
            return False
        return True

    def shut(self) -> None:
        """From any thread: whoever waits for the connection finds it ended."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def close(self, *, at_once: bool = False) -> None:
        """at_once: the kernel is not to keep for the client what was not taken."""
        if self.response is not None:
            self.response.drop()
            self.response, at_once = None, True
        if at_once:
            reset(self.sock)
        else:
            self.sock.close()
