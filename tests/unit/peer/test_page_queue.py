"""Listings of large directories: a peer sends more than the loop has stored."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.base.deadline import Deadline
from headrace.base.model import Kind
from headrace.peer.client import PeerClient
from headrace.peer.connection import PeerConnection
from headrace.ring.view import NodeInfo
from headrace.testing.waiting import until
from headrace.wire import peer_frame
from headrace.wire.peer_messages import NameRow, Names, PeerWelcome

pytestmark = pytest.mark.timeout(90)

NODE = NodeInfo("b", "run", "b:1", "", 1 << 30, "0", 1)
PAGES = 500


class LargeDirectory:
    """A peer that sends pages of a thousand names, as fast as they are received. connections: of the other side."""

    def __init__(self) -> None:
        rows = [NameRow(b"%020d" % number, int(Kind.FILE), 1, 1, "v") for number in range(1000)]
        self._page = peer_frame.encode(Names(rows=rows, good_for_s=1.0, last=False))
        self._last = peer_frame.encode(Names(rows=rows, good_for_s=1.0, last=True))
        self._threads: list[threading.Thread] = []
        self.connections: list[PeerConnection] = []
        self.sent = 0
        self.ended = threading.Event()

    def connect(self, address: str, hello: object, *, who: str, node: str, **_: Any) -> PeerConnection:
        own, other = socket.socketpair()
        thread = threading.Thread(target=self._send, args=(other,))
        thread.start()
        self._threads.append(thread)
        connection = PeerConnection(own, who, address, valid_until_s=float("inf"))
        connection.welcome = PeerWelcome(1, node, "run", 1)
        self.connections.append(connection)
        return connection

    def _send(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            for _ in range(PAGES - 1):
                sock.sendall(self._page)
                self.sent += 1
            sock.sendall(self._last)
            self.sent += 1
        self.ended.set()

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[LargeDirectory]:
    directory = LargeDirectory()
    monkeypatch.setattr(PeerConnection, "connect", directory.connect)
    try:
        yield directory
    finally:
        directory.close()


async def test_a_peer_is_not_received_faster_than_its_pages_are_stored(directory: LargeDirectory) -> None:
    peers = PeerClient("a", "cluster")
    pages = peers.list(NODE, b"/d", epoch=1, deadline=Deadline.never())
    try:
        count = len((await anext(pages)).rows)
        assert not await asyncio.to_thread(directory.ended.wait, 1.0)
        assert directory.sent < PAGES / 10  # those in the buffers of the sockets
        async for page in pages:
            count += len(page.rows)
        assert count == 1000 * PAGES
    finally:
        peers.close()


async def test_a_listing_that_is_given_up_ends_its_thread(directory: LargeDirectory) -> None:
    peers = PeerClient("a", "cluster", threads=1)
    try:
        for number in range(3):  # each takes the only thread
            pages = peers.list(NODE, b"/d", epoch=1, deadline=Deadline.never())
            await anext(pages)
            await pages.aclose()  # type: ignore[attr-defined]
            connection = directory.connections[number]
            await until(lambda connection=connection: connection.fileno() == -1)  # type: ignore[misc]
    finally:
        peers.close()
