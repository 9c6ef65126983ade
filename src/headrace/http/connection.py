"""One client's connection: bytes in, answers out. The socket never blocks; a thread of the pool waits by `poll`.

It belongs to the door's thread while it waits for a request, and to one thread of the pool while one is answered.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator

from headrace.http.body import Stream, http_chunks
from headrace.http.errors import BadRequestError, Fault, HungUpError
from headrace.http.messages import (
    HEAD_BYTES_MAX,
    HEAD_END,
    Request,
    Response,
    is_number,
    parse_head,
    render_head,
)

RECEIVE_BYTES = 256 << 10
STALL_MS = 60_000
"""A client that neither sends nor takes a byte for so long, in the middle of a request, is cut off."""
DRAIN_BYTES_MAX = 1 << 20
"""Of a body that nobody read: more than that is not worth the connection."""
LINGER_S = 2.0
COPIED_BYTES_MAX = 32 << 10
"""Of a small answer: head and bytes go by one call, which is cheaper than a second one that copies nothing."""
STEP_BYTES = 8 << 20
"""Of content that is not whole yet so much is waited for at once."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection:
    secure = False
    """Whether what is said on it is encrypted."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.number = sock.fileno()
        self.buffer = bytearray()
        self.idle_since_s = time.monotonic()
        self._left_bytes = 0
        self._owes_continue = False
        self._reusable = True
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
                Fault.HEAD_TOO_LARGE, "Your request header section exceeds what is allowed."
            )
        head = bytes(self.buffer[: end + len(HEAD_END)])
        del self.buffer[: len(head)]
        request = parse_head(head)
        request.secure = self.secure
        self._begin(request)
        return request

    def _begin(self, request: Request) -> None:
        """The body that comes with it, and whether another request can follow."""
        length = request.header("content-length", "0")
        if not is_number(length):
            raise BadRequestError(Fault.NO_REQUEST, "Content-Length is not a number")
        self._left_bytes = int(length)
        chunked = "transfer-encoding" in request.headers
        if chunked and (
            request.header("transfer-encoding").lower() != "chunked" or "content-length" in request.headers
        ):
            raise BadRequestError(
                Fault.NO_REQUEST, "Transfer-Encoding must be chunked, without a Content-Length"
            )
        self._owes_continue = request.header("expect").lower() == "100-continue"
        self._reusable = request.keep_alive and not chunked  # what follows the last chunk is not kept apart

    @property
    def has_body(self) -> bool:
        return self._left_bytes > 0 or not self._reusable or self._owes_continue

    def body(self, request: Request) -> Iterator[bytes]:
        """HungUpError; BadRequestError for a body that ends early."""
        if "transfer-encoding" in request.headers:
            return http_chunks(Stream(self._received(None)))
        return self._received(self._left_bytes)

    def _received(self, count: int | None) -> Iterator[bytes]:
        if self._owes_continue:
            self._owes_continue = False
            self.send_all(CONTINUE)  # of no body, too: without it aws 1.46 misreads the next answer
        while count is None or self._left_bytes > 0:
            wanted = RECEIVE_BYTES if count is None else min(RECEIVE_BYTES, self._left_bytes)
            piece = bytes(self.buffer[:wanted])
            if piece:
                del self.buffer[: len(piece)]
            else:
                piece = self.receive(wanted)
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

    def drain(self) -> bool:
        """What is left of the body is read away; False: the connection has to be closed instead."""
        if self._owes_continue or not self._reusable or self._left_bytes > DRAIN_BYTES_MAX:
            return False
        for _ in self._received(self._left_bytes):
            pass
        return True

    # ------------------------------------------------------------ out

    def head_of(self, response: Response, marks: list[tuple[str, str]]) -> bytes:
        """marks: as of render_head. Says that the connection ends with it, where a body is left that nobody will
        read."""
        if self._owes_continue or self._left_bytes > DRAIN_BYTES_MAX:
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

    def send(self, response: Response, head: bytes) -> None:
        """Waits until the kernel has all of it. What of the content is not there yet is waited for, step by step;
        where that fails the connection breaks off, as the head has been sent. HungUpError."""
        self.buffer_out, self.at = head, response.start
        if response.content is None or response.bodiless:
            self.buffer_out = head if response.bodiless else head + response.body
        self.send_rest(response)

    def send_rest(self, response: Response) -> None:
        content, end = response.content, response.end
        has_content = content is not None and not response.bodiless and self.at < end
        if self.buffer_out:
            rest, self.buffer_out = self.buffer_out, b""
            self.send_all(rest, more=has_content)
        if content is None or not has_content:
            return
        while self.at < end:
            step = end if content.fd >= 0 else min(end, self.at + STEP_BYTES)
            self._send_file(content.wait(self.at, step), step)

    def _send_file(self, fd: int, end: int) -> None:
        while self.at < end:
            try:
                sent = os.sendfile(self.number, fd, self.at, end - self.at)
            except BlockingIOError:
                self._wait(select.POLLOUT)
                continue
            except OSError as error:
                raise HungUpError(str(error)) from error
            if sent == 0:
                raise HungUpError("the file was cut short while it was sent")
            self.at += sent

    def send_all(self, data: bytes, *, more: bool = False) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self.sock.send(view, socket.MSG_MORE if more else 0) :]
            except BlockingIOError:
                self._wait(select.POLLOUT)
            except OSError as error:
                raise HungUpError(str(error)) from error

    def _wait(self, event: int, limit_ms: float = STALL_MS) -> None:
        poll = select.poll()
        poll.register(self.number, event)
        if not poll.poll(limit_ms):
            raise HungUpError("the client has done nothing for too long")

    def close(self) -> None:
        self.sock.close()

    def close_after_answer(self) -> None:
        """Where the client may be sending still: closed at once, what it sends would have the kernel take back the
        answer. So it is read away for a moment."""
        until_s = time.monotonic() + LINGER_S
        poll = select.poll()
        poll.register(self.number, select.POLLIN)
        try:
            self.sock.shutdown(socket.SHUT_WR)
            while (left_s := until_s - time.monotonic()) > 0 and poll.poll(left_s * 1000):
                if not self.sock.recv(RECEIVE_BYTES):
                    break
        except OSError:
            pass
        self.close()
