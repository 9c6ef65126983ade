"""Connections of somebody who wants a server to be of no use to others: thousands of them, from one thread.

As a program: `python -m headrace.testing.hostile --address HOST:PORT --count 5000 --seconds 60 KIND…`. Says a JSON line
when all were opened once, and one at its end. A connection that the server closes is opened again a second later.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import resource
import select
import signal
import socket
import ssl
import sys
import time
from collections import Counter
from dataclasses import dataclass

from headrace.wire.peer_frame import encode
from headrace.wire.peer_messages import PEER_PROTOCOL, PeerHello

AGAIN_S = 1.0
TICKS_A_SECOND = 20
OPENED_A_SECOND = 2000
FLOOD = bytes(64 << 10)


@dataclass(frozen=True)
class HostileKind:
    """first: what is sent at once. slowly: a byte of it a second, for ever. flood: as much as the server takes."""

    first: bytes = b""
    slowly: bytes = b""
    flood: bool = False


def client_hello() -> bytes:
    """The first flight of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


def kinds_of(target: str) -> dict[str, HostileKind]:
    """What is done to an HTTP server. target: of uploads that it refuses, such as /bucket/key."""
    head = f"PUT {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
    upload = head + b"Content-Length: 1000000000\r\n\r\n"
    return {
        "silent": HostileKind(),
        "slow-head": HostileKind(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", b"x"),
        "large-slow-head": HostileKind(
            b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"x" * 60_000, b"x"
        ),
        "slow-body": HostileKind(upload, b"x"),
        "slow-chunks": HostileKind(head + b"Transfer-Encoding: chunked\r\n\r\n", b"1"),
        "half-handshake": HostileKind(client_hello()),
        "refused-upload": HostileKind(upload, flood=True),
    }


def kinds_for_peers() -> dict[str, HostileKind]:
    hello = encode(PeerHello((PEER_PROTOCOL, PEER_PROTOCOL), "another-cluster", "mallory"))
    return {
        "silent": HostileKind(),
        "slow-hello": HostileKind(hello[:3], hello[3:4]),
        "large-hello": HostileKind((4 << 20).to_bytes(4, "little") + FLOOD, b"x"),
        "half-handshake": HostileKind(client_hello()),
        "refused-hello": HostileKind(hello, flood=True),
    }


class Hostile:
    """sources: addresses that the connections come from, in turn."""

    def __init__(
        self,
        address: tuple[str, int],
        kinds: list[HostileKind],
        count: int,
        sources: list[str],
        *,
        opened_a_second: int = OPENED_A_SECOND,
    ) -> None:
        self._address = address
        self._kinds = kinds
        self._count = count
        self._sources = sources
        self._opened_a_tick = opened_a_second // TICKS_A_SECOND
        self._open: dict[int, tuple[socket.socket, int]] = {}
        self._to_open: list[tuple[float, int]] = [(0.0, index) for index in range(count)]
        self._epoll = select.epoll()
        self._tick = 0
        self._stopping = False
        self.counts: Counter[str] = Counter()

    def run(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (now_s := time.monotonic()) < until_s and not self._stopping:
            self.turn()
            time.sleep(max(0.0, 1 / TICKS_A_SECOND - (time.monotonic() - now_s)))

    def stop(self) -> None:
        """`run` returns soon."""
        self._stopping = True

    def turn(self) -> None:
        """What is done in a twentieth of a second."""
        self._tick += 1
        for number, _ in self._epoll.poll(0):
            self._read(number)
        now_s, budget = time.monotonic(), self._opened_a_tick
        while self._to_open and self._to_open[0][0] <= now_s and budget:
            self._begin(self._to_open.pop(0)[1])
            budget -= 1
        for sock, index in list(self._open.values()):
            kind = self._kinds[index % len(self._kinds)]
            if kind.flood or (kind.slowly and index % TICKS_A_SECOND == self._tick % TICKS_A_SECOND):
                self._send(sock, index, FLOOD if kind.flood else kind.slowly)

    def close(self) -> None:
        for sock, _ in list(self._open.values()):
            sock.close()
        self._open.clear()
        self._epoll.close()

    @property
    def open(self) -> int:
        return len(self._open)

    @property
    def opened_once(self) -> bool:
        return self.counts["opened"] >= self._count

    def _begin(self, index: int) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        try:
            sock.bind((self._sources[index % len(self._sources)], 0))
            done = sock.connect_ex(self._address)
        except OSError:
            done = errno.EADDRNOTAVAIL
        if done not in (0, errno.EINPROGRESS):
            self.counts["not opened"] += 1
            sock.close()
            self._to_open.append((time.monotonic() + AGAIN_S, index))
            return
        self.counts["opened"] += 1
        self._open[sock.fileno()] = sock, index
        self._epoll.register(sock, select.EPOLLIN | select.EPOLLRDHUP)
        kind = self._kinds[index % len(self._kinds)]
        if kind.first:
            self._send(sock, index, kind.first)

    def _send(self, sock: socket.socket, index: int, data: bytes) -> None:
        try:
            self.counts["bytes"] += sock.send(data)
        except BlockingIOError:
            return
        except OSError:
            self._end(sock, index)

    def _read(self, number: int) -> None:
        sock, index = self._open.get(number, (None, 0))
        if sock is None:
            return
        try:
            if not sock.recv(65536):
                self._end(sock, index)
        except BlockingIOError:
            return
        except OSError:
            self._end(sock, index)

    def _end(self, sock: socket.socket, index: int) -> None:
        self.counts["ended by the server"] += 1
        self._open.pop(sock.fileno(), None)
        sock.close()
        self._to_open.append((time.monotonic() + AGAIN_S, index))


def say(found: dict[str, int]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--address", required=True)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--rate", type=int, default=OPENED_A_SECOND, help="connections opened a second at most"
    )
    parser.add_argument("--target", default="/bucket/key", help="of uploads")
    parser.add_argument("--source", action="append", help="an address that connections come from")
    parser.add_argument("--peers", action="store_true", help="the peers' port, and no HTTP server")
    parser.add_argument("kind", nargs="*", help="all, where none is named")
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    known = kinds_for_peers() if given.peers else kinds_of(given.target)
    kinds = [known[name] for name in given.kind or known]
    host, _, port = given.address.rpartition(":")
    sources = given.source or ["127.0.0.1"]
    hostile = Hostile((host, int(port)), kinds, given.count, sources, opened_a_second=given.rate)
    until_s = time.monotonic() + given.seconds
    while not hostile.opened_once and time.monotonic() < until_s:
        hostile.run(0.05)
    say({"opened": hostile.counts["opened"]})
    signal.signal(signal.SIGTERM, lambda *_: hostile.stop())
    hostile.run(until_s - time.monotonic())
    say({"open": hostile.open, **hostile.counts})
    hostile.close()


if __name__ == "__main__":
    main()
