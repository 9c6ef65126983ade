"""The records of peers: those of nodes that left the cluster long ago are forgotten. Nodes may change for months."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import PeerError
from headrace.base.model import Kind
from headrace.peer.client import PeerClient
from headrace.peer.connection import PeerConnection
from headrace.peer.peer_table import FORGET_S, PeerTable
from headrace.ring.view import ClusterView, NodeInfo, next_view
from headrace.wire import peer_frame
from headrace.wire.message import Message
from headrace.wire.peer_messages import FileRange, NameRow, Names, PeerWelcome

pytestmark = pytest.mark.timeout(90)

WELCOME = PeerWelcome(1, "b", "run", 1)
FILE = FileRange(b"/a/f", 1, 1, "v", 0, 1)


def node(id: str) -> NodeInfo:
    return NodeInfo(id, "run", f"{id}:1", "", 1 << 30, "0", 1)


def view_of(*ids: str) -> ClusterView:
    return next_view(None, {id: node(id) for id in ids}, epoch=1)


class Wires:
    """Opens every connection at once. answer: what each of them has received already."""

    def __init__(self, sockets: ExitStack) -> None:
        self.answer: Message = WELCOME
        self.opened: list[PeerConnection] = []
        self._sockets = sockets

    def connect(self, address: str, hello: object, *, who: str, node: str, **_: Any) -> PeerConnection:
        own, other = socket.socketpair()
        self._sockets.enter_context(own)
        self._sockets.enter_context(other)
        other.sendall(peer_frame.encode(self.answer))
        connection = PeerConnection(own, who, address, valid_until_s=float("inf"))
        connection.welcome = PeerWelcome(1, node, "run", 1)
        self.opened.append(connection)
        return connection


@pytest.fixture
def wires(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wires]:
    with ExitStack() as sockets:
        wires = Wires(sockets)
        monkeypatch.setattr(PeerConnection, "connect", wires.connect)
        yield wires


async def test_a_node_that_left_long_ago_is_forgotten() -> None:
    table = PeerTable()
    for id in ("b", "c"):
        table.latencies.add(table.peer(node(id)).id, 1, seconds=1.0, now_s=0.0)
    assert table.forget_absent({"a", "b"}, now_s=0.0) == []
    assert table.forget_absent({"a", "b"}, now_s=FORGET_S - 1) == []
    assert set(table.statistics()) == {"b", "c"}
    assert table.forget_absent({"a", "b"}, now_s=FORGET_S) == ["c"]
    assert set(table.statistics()) == {"b"}
    assert table.latencies.over_all("c", share=0.5, now_s=0.0) is None
    assert table.latencies.over_all("b", share=0.5, now_s=0.0) == 1.0


async def test_a_node_that_comes_back_is_kept() -> None:
    table = PeerTable()
    table.peer(node("b"))
    assert table.forget_absent({"a"}, now_s=0.0) == []
    assert table.forget_absent({"a", "b"}, now_s=FORGET_S - 1) == []
    assert table.forget_absent({"a"}, now_s=FORGET_S + 1) == []
    assert set(table.statistics()) == {"b"}


async def test_nothing_is_left_of_a_forgotten_node(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its connections, also those in use, nor its queue of small files."""
    peers = PeerClient("a", "cluster")
    try:
        await peers.ping(node("b"), Deadline.never())
        with pytest.raises(PeerError):
            await peers.fetch_small(node("b"), FILE, epoch=1, deadline=Deadline.after(0.01))
        peer = peers.table.peer(node("b"))
        monkeypatch.setattr("headrace.peer.peer_table.FORGET_S", 0.0)
        peers.on_view(view_of("a", "b"))
        assert peers.table.peer(node("b")) is peer
        peers.on_view(view_of("a"))
        assert not peers.table.statistics() and not peers._batchers
        await peers._pool.ping(peer, Deadline.never())
        assert not peer.idle
        peers._pool._threads.shutdown()  # the thread of the cancelled request closes its connection as it ends
        assert all(connection.fileno() == -1 for connection in wires.opened)
    finally:
        peers.close()


def row(name: bytes) -> NameRow:
    return NameRow(name, int(Kind.FILE), 1, 1, "v")


@pytest.mark.parametrize("rows", [[row(b"other")], [row(b"f"), row(b"other")], [row(b"f"), row(b"f")]])
async def test_a_lookup_takes_the_row_of_its_name_only(wires: Wires, rows: list[NameRow]) -> None:
    """A damaged or hostile node sends other rows: the caller then asks the origin."""
    wires.answer = Names(rows, 5.0, last=True)
    peers = PeerClient("a", "cluster")
    try:
        with pytest.raises(PeerError, match="other names"):
            await peers.lookup(node("b"), b"/a", b"f", epoch=1, deadline=Deadline.never())
        for right in ([], [row(b"f")]):
            peers.table.peer(node("b")).close_idle()
            wires.answer = Names(right, 5.0, last=True)
            names = await peers.lookup(node("b"), b"/a", b"f", epoch=1, deadline=Deadline.never())
            assert names.rows == right
    finally:
        peers.close()
