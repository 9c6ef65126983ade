"""Run a proxy before a real server that injects faults into its responses: 500, 503, half a body, silence, refused
connections, pages of its own.

Signatures stay valid, because the Host header passes through as the client sent it.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import random
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

from headrace.testing.servers import Server

MODES = ("pass", "500", "503", "429", "half", "close", "hang", "stall", "lost", "page")
"""The faults.

- half: send the whole head and half of the body, then close the connection.
- close: close the connection without a response.
- hang: send no response until the mode changes or the proxy ends, then close.
- stall: send half of the body, then hang.
- lost: let the server execute the request, and lose the response.
- page: answer with status 200 and a page of the proxy, as some do during maintenance.
"""

PAGE = b"<html><body><p>We will be back soon.</p></body></html>"

_HOP_BY_HOP = (
    "connection",
    "keep-alive",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "proxy-connection",
)


class FaultProxy:
    """A proxy that injects faults.

    - `endpoint`: the address to use in place of the server's.
    - `mode`: one of MODES, for every request from now on.
    - `share`: the share of requests that get the fault, 0 to 1; the others pass.
    - `passed_s`: when each request that passed was answered.
    - `requests`: the number of requests so far.
    - `drops`: names of headers, in lower case, that the proxy removes from requests; a server that checks signatures
      then refuses them.
    - `asked`: the method and path of each request.
    - `put_delay_s`: the delay of each PUT and POST before the server gets it.
    - `flip_share`: the share of object bodies in which one random bit of each MiB is flipped; `put_flip_share` is the
      same for uploads.
    - `flipped`: the number of bodies with flipped bits.
    """

    def __init__(self, server: Server, endpoint: str, listener: _Listener) -> None:
        self.server = server
        self._listener = listener
        self.endpoint = endpoint
        self.requests = 0
        self.put_delay_s = 0.0
        self.share = 1.0
        self.passed_s: list[float] = []
        self.flip_share = self.put_flip_share = 0.0
        self.flipped = 0
        self.drops: frozenset[str] = frozenset()
        self.asked: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._chance = random.Random(5)
        self._mode = "pass"
        self._left: int | None = None
        self._losing = ""
        self._changed = threading.Event()
        self._chance = random.Random(17)

    @property
    def mode(self) -> str:
        return self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        self._set(mode, None)

    def fail_next(self, mode: str, count: int) -> None:
        """Apply a mode to the next `count` requests, then pass."""
        self._set(mode, count)

    def refuse(self) -> None:
        """Refuse new connections, and answer no request on the existing ones."""
        self.mode = "close"
        self._listener.close()

    def accept(self) -> None:
        """Accept connections again after `refuse`, without faults."""
        self.mode = "pass"
        self._listener.open()

    def lose_next(self, method: str) -> None:
        """Execute the next request of that method and lose its response; others pass."""
        with self._lock:
            self._losing = method

    def options(self) -> dict[str, str]:
        """Return what build_origin needs besides the URL."""
        options = self.server.options()
        return {**options, "endpoint": self.endpoint} if "endpoint" in options else options

    def url(self, prefix: str = "", *, bucket: str | None = None) -> str:
        return self.server.url(prefix, bucket=bucket).replace(self.server.endpoint, self.endpoint)

    def _set(self, mode: str, count: int | None) -> None:
        assert mode in MODES, mode
        with self._lock:
            self._mode, self._left = mode, count
            self._changed.set()
            self._changed = threading.Event()

    def next_mode(self, method: str) -> tuple[str, threading.Event]:
        """Return the mode of a request that just arrived, and the event that ends a hanging one."""
        with self._lock:
            self.requests += 1
            if method == self._losing:
                self._losing = ""
                return "lost", self._changed
            if self._left is not None:
                if self._left == 0:
                    self._mode, self._left = "pass", None
                else:
                    self._left -= 1
            is_faulty = self.share >= 1.0 or self._chance.random() < self.share
            return self._mode if is_faulty else "pass", self._changed

    def flip(self, body: bytes, share: float) -> bytes:
        """Change one random bit of each MiB, in that share of the bodies."""
        with self._lock:
            if not body or self._chance.random() >= share:
                return body
            self.flipped += 1
            flipped = bytearray(body)
            for start in range(0, len(flipped), 1 << 20):
                index = self._chance.randrange(start, min(start + (1 << 20), len(flipped)))
                flipped[index] ^= 1 << self._chance.randrange(8)
        return bytes(flipped)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultProxy

    def log_message(self, format: str, *args: object) -> None:
        return None

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client gave up, as it should
            super().handle()

    def _answer(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "PUT":
            sent = self.proxy.flip(sent, self.proxy.put_flip_share)
        self.proxy.asked.append((self.command, self.path))
        mode, changed = self.proxy.next_mode(self.command)
        if self.command in ("PUT", "POST"):
            time.sleep(self.proxy.put_delay_s)  # the delay is the fault
        if mode == "hang":
            changed.wait()
        if mode in ("hang", "close"):
            self.close_connection = True
        elif mode in ("500", "503", "429"):
            self._send(
                int(mode), [], b"<Error><Code>ByPlan</Code><Message>by plan</Message></Error>", complete=True
            )
        elif mode == "page":
            self._send(200, [("Content-Type", "text/html"), ("Content-Length", str(len(PAGE)))], PAGE)
        else:
            status, headers, body = self._forward(sent)
            if mode == "lost":
                self.close_connection = True
                return
            if self.command == "GET" and status in (200, 206) and "list-type=" not in self.path:
                body = self.proxy.flip(body, self.proxy.flip_share)
            self._send(status, headers, body, complete=mode not in ("half", "stall"))
            if mode == "stall":
                self.wfile.flush()
                changed.wait()
            self.proxy.passed_s.append(time.monotonic())

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = _answer

    def _forward(self, sent: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = urllib.parse.urlsplit(self.proxy.server.endpoint)
        connection = http.client.HTTPConnection(upstream.hostname or "", upstream.port, timeout=30)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP and name.lower() not in self.proxy.drops:
                    connection.putheader(name, value)
            connection.endheaders(sent or None)
            response = connection.getresponse()
            headers = [pair for pair in response.getheaders() if pair[0].lower() not in _HOP_BY_HOP]
            return response.status, headers, response.read()
        finally:
            connection.close()

    def _send(
        self, status: int, headers: list[tuple[str, str]], body: bytes, *, complete: bool = True
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() != "content-length" or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
            body = body if complete else body[: len(body) // 2]
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        if not complete:
            self.close_connection = True


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        return None  # the client closed the connection


@contextlib.contextmanager
def fault_proxy(server: Server) -> Iterator[FaultProxy]:
    """Run a proxy before a running server, in threads of this process."""

    class Handler(_Handler):
        pass

    listener = _Listener(Handler)
    path = urllib.parse.urlsplit(server.endpoint).path
    proxy = FaultProxy(server, f"http://127.0.0.1:{listener.port}{path}", listener)
    Handler.proxy = proxy
    listener.open()
    try:
        yield proxy
    finally:
        proxy.mode = "pass"  # ends hanging requests
        listener.close()


class _Listener:
    """The listening socket of the proxy. It can close and open again at the same port."""

    def __init__(self, handler: type[_Handler]) -> None:
        self._handler = handler
        self._listening = _Server(("127.0.0.1", 0), handler)
        self.port = self._listening.server_address[1]
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        if self._listening.socket.fileno() < 0:
            self._listening = _Server(("127.0.0.1", self.port), self._handler)
        self._thread = threading.Thread(
            target=self._listening.serve_forever, args=(0.05,), name="fault_proxy", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Refuse new connections. Existing ones stay open."""
        if self._thread is not None:
            self._listening.shutdown()
            self._thread.join()
            self._thread = None
            self._listening.socket.close()
