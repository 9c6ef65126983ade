"""The counting proxy before a server that says what it got: bodies are whole, and counts are what was served."""

from __future__ import annotations

import hashlib
import http.client
import http.server
import random
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from headrace.bench.counting import CountingProxy, StoreCounts
from headrace.bench.prices import DEFAULT, Price, price, read
from headrace.testing.waiting import wait_for

BODY = random.Random(1).randbytes((5 << 20) + 17)


class Store(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        return None

    def do_GET(self) -> None:
        if self.path.startswith("/chunked"):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for start in range(0, len(BODY), 700_001):
                part = BODY[start : start + 700_001]
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
            return
        exists = self.path != "/missing"
        body = BODY if exists else b"none"
        self.send_response(200 if exists else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        said = hashlib.sha256(body).hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = Server(("127.0.0.1", 0), Store)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def proxy_of(endpoint: str, *, bytes_s: float = 0, latency_s: float = 0) -> CountingProxy:
    proxy = CountingProxy("127.0.0.1", endpoint, bytes_s=bytes_s, latency_s=latency_s)
    threading.Thread(target=proxy.serve, daemon=True).start()
    return proxy


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> bytes:
    connection.request(method, path, body=body)
    return connection.getresponse().read()


def test_what_passes_is_whole_and_counted(endpoint: str) -> None:
    proxy = proxy_of(endpoint)
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    assert ask(connection, "GET", "/a") == BODY
    assert ask(connection, "GET", "/chunked") == BODY
    assert ask(connection, "HEAD", "/a") == b""
    assert ask(connection, "GET", "/?list-type=2&prefix=a") == BODY
    assert ask(connection, "PUT", "/b", BODY) == hashlib.sha256(BODY).hexdigest().encode()
    assert ask(connection, "GET", "/missing") == b"none"
    connection.close()
    wanted = StoreCounts(gets=3, lists=1, heads=1, others=1, bytes_out=3 * len(BODY) + 64 + 4, errors=1)
    wait_for(lambda: proxy.counts() == wanted)  # the last bytes are counted once they are sent
    counts = proxy.counts()
    assert counts.requests == 6
    assert counts.since(StoreCounts(gets=1, bytes_out=10)).gets == 2


def test_many_at_a_time(endpoint: str) -> None:
    proxy = proxy_of(endpoint)
    wrong: list[None] = []

    def read() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
        wrong.extend(None for _ in range(3) if ask(connection, "GET", "/a") != BODY)
        connection.close()

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    wanted = StoreCounts(gets=18, bytes_out=18 * len(BODY))
    wait_for(lambda: proxy.counts() == wanted)


def test_it_is_as_slow_as_it_is_told_to_be(endpoint: str) -> None:
    proxy = proxy_of(endpoint, bytes_s=20e6, latency_s=0.05)
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    begin_s = time.monotonic()
    assert ask(connection, "HEAD", "/a") == b""
    assert time.monotonic() - begin_s >= 0.05
    begin_s = time.monotonic()
    assert ask(connection, "GET", "/a") == BODY
    # the last part goes when its turn has come, not when its time is over
    assert time.monotonic() - begin_s >= 0.05 + (len(BODY) - (1 << 20)) / 20e6
    connection.close()


def test_costs_are_those_of_the_table() -> None:
    counts = StoreCounts(gets=2000, heads=500, lists=100, others=50, bytes_out=3 << 30, errors=9)
    prices = Price(get=0.4, list=5.0, out=0.09)
    assert prices.of(counts) == pytest.approx(2.5 * 0.4 + 0.15 * 5.0 + 3 * 0.09)
    assert DEFAULT in read()
    assert price("aws-s3-internet").out == 0.09
