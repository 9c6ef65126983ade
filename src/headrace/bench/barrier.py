"""Synchronize all simulated accelerators: TCP connections form a star with the first accelerator in the middle.

It does not use torch.distributed: a barrier of gloo took a millisecond and more, this one takes some 20 µs, and
cosmoflow computes for 3.5 ms per step (docs/decisions/0016). The first accelerator makes two system calls for each of
the others.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

MEET_WITHIN_S = 300.0
"""Time limit for connecting all accelerators, in seconds."""
STEP_WITHIN_S = 1800
"""Longest wait for the slowest accelerator, in seconds. The first step over a slow link may take long."""
_LENGTH = struct.Struct("<I")
_TIMEVAL = struct.Struct("@ll")


class Barrier:
    """Connect all accelerators, so that they can wait for each other. Blocks until all are connected.

    meet: HOST:PORT, where the first accelerator listens; unused if there is only one. Raises OSError if an accelerator
    has ended or is late.
    """

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
            # the kernel's timeout: Python's own costs an additional system call each time
            link.settimeout(None)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(STEP_WITHIN_S, 0))
        if rank:
            self._links[0].sendall(_LENGTH.pack(rank))
        else:
            by_rank = {_LENGTH.unpack(_exactly(link, _LENGTH.size))[0]: link for link in self._links}
            self._links = [by_rank[number] for number in range(1, world)]

    def wait(self) -> None:
        """Block until all accelerators have called it."""
        if self._rank:
            self._links[0].sendall(b"?")
            _exactly(self._links[0], 1)
            return
        for link in self._links:
            _exactly(link, 1)
        for link in self._links:
            link.sendall(b"!")

    def gather(self, mine: Any) -> list[Any] | None:
        """Return the values of all accelerators, of JSON's types, to the first accelerator. Return None to the others,
        once the first has received theirs."""
        if not self._rank:
            values = [mine]
            for link in self._links:
                size = _LENGTH.unpack(_exactly(link, _LENGTH.size))[0]
                values.append(json.loads(_exactly(link, size)))
            for link in self._links:
                link.sendall(b"!")
            return values
        body = json.dumps(mine).encode()
        self._links[0].sendall(_LENGTH.pack(len(body)) + body)
        _exactly(self._links[0], 1)
        return None

    def close(self) -> None:
        for link in self._links:
            link.close()


def _accepted(name: str, port: int, count: int) -> list[socket.socket]:
    # a host may resolve its own name to loopback, which the other hosts can't reach
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
            time.sleep(0.02)  # the first accelerator does not listen yet


def _exactly(link: socket.socket, size: int) -> bytes:
    body = b""
    while len(body) < size:
        part = link.recv(size - len(body))
        if not part:
            raise ConnectionError("an accelerator has ended")
        body += part
    return body
