"""A web server that counts what it sends: how often each byte of a file left it, and how many reads were under way.

It knows one folder, makes index pages, serves ranges, and may take its time before each.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class CountedOrigin:
    """sent: (name, start, end) of each answer with bytes, in the order they were asked for. in_flight_max: answers that
    were under way at one time."""

    def __init__(self, folder: Path, *, delay_s: float) -> None:
        self.folder = folder
        self.delay_s = delay_s
        self.sent: list[tuple[str, int, int]] = []
        self.in_flight_max = 0
        self.url = ""
        self._in_flight = 0
        self._lock = threading.Lock()

    @property
    def bytes_sent(self) -> int:
        return sum(end - start for _, start, end in self.sent)

    @contextlib.contextmanager
    def answering(self, name: str, start: int, end: int) -> Iterator[None]:
        with self._lock:
            self.sent.append((name, start, end))
            self._in_flight += 1
            self.in_flight_max = max(self.in_flight_max, self._in_flight)
        try:
            time.sleep(self.delay_s)  # the answer's latency, which is what is served here
            yield
        finally:
            with self._lock:
                self._in_flight -= 1


@contextlib.contextmanager
def counted_origin(folder: Path, *, delay_s: float = 0.0) -> Iterator[CountedOrigin]:
    origin = CountedOrigin(folder, delay_s=delay_s)
    server = _Server(("127.0.0.1", 0), _handler_of(origin))
    origin.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield origin
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256
    block_on_close = False  # connections that clients keep open end with their threads, which are daemons

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed go without a word."""


def _handler_of(origin: CountedOrigin) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = origin.folder / urllib.parse.unquote(self.path).strip("/")
            if path.is_dir():
                self._index(path)
            elif path.is_file():
                self._file(path)
            else:
                self.send_error(404)

        def _index(self, folder: Path) -> None:
            names = [path.name + "/" * path.is_dir() for path in sorted(folder.iterdir())]
            page = "".join(f'<a href="{urllib.parse.quote(name)}">{name}</a>\n' for name in names).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(page)

        def _file(self, path: Path) -> None:
            size = path.stat().st_size
            asked = _RANGE.fullmatch(self.headers.get("Range", ""))
            start, end = (int(asked[1]), min(size, int(asked[2]) + 1)) if asked else (0, size)
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.send_header("ETag", f'"{size}-{path.stat().st_mtime_ns}"')
            self.send_header("Last-Modified", self.date_time_string(int(path.stat().st_mtime)))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(end - start))
            if self.command == "HEAD":
                self.end_headers()
                return
            name = str(path.relative_to(origin.folder))
            with origin.answering(name, start, end):
                self.end_headers()
                self.wfile.flush()
                _send(self.connection, path, start, end)

        def log_message(self, *_words: Any) -> None:
            """Nothing."""

    return Handler


def _send(connection: socket.socket, path: Path, start: int, end: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        while start < end:
            sent = os.sendfile(connection.fileno(), fd, start, end - start)
            if not sent:
                return
            start += sent
    finally:
        os.close(fd)
