"""Open thousands of hostile connections from one thread, which try to make a server useless to others.

As a program: `python -m headrace.testing.hostile --address HOST:PORT --count 5000 --seconds 60 KIND…`. It prints a
JSON line when all connections were opened once, and one at its end. A connection that the server closes is opened
again a second later.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import select
import signal
import socket
import ssl
import sys
import time
from collections import Counter
from dataclasses import dataclass

from headrace.base.descriptor_limit import raise_descriptor_limit
from headrace.wire.peer_frame import encode
from headrace.wire.peer_messages import PEER_PROTOCOL, PeerHello

REOPEN_S = 1.0
TICKS_A_SECOND = 20
OPENED_A_SECOND = 2000
FLOOD = bytes(64 << 10)


@dataclass(frozen=True)
class HostileKind:
    """A kind of hostile connection. `first` is sent at once. `slowly` is sent once a second, forever. `flood`: send
    as much as the server accepts."""

    first: bytes = b""
    slowly: bytes = b""
    flood: bool = False


def client_hello() -> bytes:
    """Return the first flight of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


def kinds_of(target: str) -> dict[str, HostileKind]:
    """Return the attacks on an HTTP server. `target` is the path of uploads that the server refuses, such as
    /bucket/key."""
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
    """Return the attacks on the port of peers."""
    hello = encode(PeerHello((PEER_PROTOCOL, PEER_PROTOCOL), "another-cluster", "mallory"))
    return {
        "silent": HostileKind(),
        "slow-hello": HostileKind(hello[:3], hello[3:4]),
        "large-hello": HostileKind((4 << 20).to_bytes(4, "little") + FLOOD, b"x"),
        "half-handshake": HostileKind(client_hello()),
        "refused-hello": HostileKind(hello, flood=True),
    }


class Hostile:
    """A set of hostile connections. `sources` are the addresses that they come from, in turn."""

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
        """Make `run` return soon."""
        self._stopping = True

    def turn(self) -> None:
        """Do the work of a twentieth of a second."""
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
            code = sock.connect_ex(self._address)
        except OSError:
            code = errno.EADDRNOTAVAIL
        if code not in (0, errno.EINPROGRESS):
            self.counts["not opened"] += 1
            sock.close()
            self._to_open.append((time.monotonic() + REOPEN_S, index))
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
        self._to_open.append((time.monotonic() + REOPEN_S, index))


def say(counts: dict[str, int]) -> None:
    """Print counts as a JSON line."""
    sys.stdout.write(json.dumps(counts) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--address", required=True, help="The HOST:PORT to attack.")
    parser.add_argument("--count", type=int, default=5000, help="The number of connections.")
    parser.add_argument("--seconds", type=float, default=60.0, help="The duration in seconds.")
    parser.add_argument(
        "--rate",
        type=int,
        default=OPENED_A_SECOND,
        help="The largest number of connections to open per second.",
    )
    parser.add_argument("--target", default="/bucket/key", help="The path of uploads.")
    parser.add_argument(
        "--source", action="append", help="An address that connections come from; may be repeated."
    )
    parser.add_argument(
        "--peers", action="store_true", help="Attack the port of peers instead of an HTTP server."
    )
    parser.add_argument("kind", nargs="*", help="The kinds of connections; all of them by default.")
    arguments = parser.parse_args()
    raise_descriptor_limit()
    all_kinds = kinds_for_peers() if arguments.peers else kinds_of(arguments.target)
    kinds = [all_kinds[name] for name in arguments.kind or all_kinds]
    host, _, port = arguments.address.rpartition(":")
    sources = arguments.source or ["127.0.0.1"]
    hostile = Hostile((host, int(port)), kinds, arguments.count, sources, opened_a_second=arguments.rate)
    until_s = time.monotonic() + arguments.seconds
    while not hostile.opened_once and time.monotonic() < until_s:
        hostile.run(0.05)
    say({"opened": hostile.counts["opened"]})
    signal.signal(signal.SIGTERM, lambda *_: hostile.stop())
    hostile.run(until_s - time.monotonic())
    say({"open": hostile.open, **hostile.counts})
    hostile.close()


if __name__ == "__main__":
    main()
