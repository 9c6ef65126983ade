"""Where all simulated accelerators wait for each other: a star of TCP connections with the first one in the middle.

Not torch.distributed: a barrier of gloo's took a millisecond and more where this takes some 20 µs, and cosmoflow
computes for 3.5 ms a step (docs/decisions/0016). The one in the middle has two system calls for each of the others.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

MEET_WITHIN_S = 300.0
STEP_WITHIN_S = 1800
"""How long the others wait for the slowest: a first step over a slow link may take long."""
_LENGTH = struct.Struct("<I")
_TIMEVAL = struct.Struct("@ll")


class Barrier:
    """meet: HOST:PORT, where the first listens. Blocks until all are there. Nothing where there is only one. OSError
    when one of them is gone, or late."""

    def __init__(self, meet: str, rank: int, world: int) -> None:
        self._rank, self._links = rank, list[socket.socket]()
        if world == 1:
            return
        name, _, port = meet.rpartition(":")
        until_s = time.monotonic() + MEET_WITHIN_S
        if rank == 0:
            self._links = _accepted(name, int(port), world - 1)
        else:
            self._links = [_connected(name, int(port), until_s)]
        for link in self._links:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # in the kernel: a timeout of Python's costs one more system call each time
            link.settimeout(None)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(STEP_WITHIN_S, 0))
        if rank:
            self._links[0].sendall(_LENGTH.pack(rank))
        else:
            by_rank = {_LENGTH.unpack(_exactly(link, _LENGTH.size))[0]: link for link in self._links}
            self._links = [by_rank[number] for number in range(1, world)]

    def wait(self) -> None:
        """Until all have called it."""
        if self._rank:
            self._links[0].sendall(b"?")
            _exactly(self._links[0], 1)
            return
        for link in self._links:
            _exactly(link, 1)
        for link in self._links:
            link.sendall(b"!")

    def gather(self, mine: Any) -> list[Any] | None:
        """What everybody has, in JSON's types, for the first; None for the others, once it has been taken."""
        if not self._rank:
            found = [mine]
            for link in self._links:
                size = _LENGTH.unpack(_exactly(link, _LENGTH.size))[0]
                found.append(json.loads(_exactly(link, size)))
            for link in self._links:
                link.sendall(b"!")
            return found
        body = json.dumps(mine).encode()
        self._links[0].sendall(_LENGTH.pack(len(body)) + body)
        _exactly(self._links[0], 1)
        return None

    def close(self) -> None:
        for link in self._links:
            link.close()


def _accepted(name: str, port: int, count: int) -> list[socket.socket]:
    # of a host's own name it may know only that it is loopback: the others would not reach that
    with socket.create_server((name if name.startswith("127.") else "", port), backlog=count) as server:
        server.settimeout(MEET_WITHIN_S)
        return [server.accept()[0] for _ in range(count)]


def _connected(name: str, port: int, until_s: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection((name, port), timeout=5)
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.02)  # the first is not there yet


def _exactly(link: socket.socket, size: int) -> bytes:
    body = b""
    while len(body) < size:
        part = link.recv(size - len(body))
        if not part:
            raise ConnectionError("an accelerator has gone")
        body += part
    return body
