"""The connections to a peer, to which threads are lent."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import PeerError
from headrace.peer.calls import UnaryCall
from headrace.peer.connection import PeerConnection
from headrace.peer.connection_pool import BREAKER, CONNECTING_MAX, ConnectionPool, Peer
from headrace.testing.waiting import until
from headrace.wire import peer_frame
from headrace.wire.peer_messages import PeerHello, PeerWelcome, Ping

pytestmark = [pytest.mark.timeout(90), pytest.mark.real_time]

WELCOME = PeerWelcome(1, "b", "run", 1)


@pytest.fixture
def _answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every connection opens at once, and has the answer to one ping."""
    others: list[socket.socket] = []

    def connect(address: str, hello: PeerHello, *, who: str, **_: Any) -> PeerConnection:
        own, other = socket.socketpair()
        others.append(other)
        other.sendall(peer_frame.encode(WELCOME))
        connection = PeerConnection(own, who, address, valid_until_s=float("inf"))
        connection.welcome = WELCOME
        return connection

    monkeypatch.setattr(PeerConnection, "connect", connect)
    yield
    for other in others:
        other.close()


@pytest.mark.usefixtures("_answering")
async def test_a_ping_does_not_wait_for_calls_that_wait_for_a_thread() -> None:
    """All places for new connections are taken by calls whose turn for a thread has not come."""
    pool = ConnectionPool(PeerHello((1, 1), "cluster", "a"), tls=None, threads=1)
    peer = Peer("b", "b:1", "run")
    goes_on = threading.Event()
    pool._threads.submit(goes_on.wait)
    calls = [UnaryCall(Ping(), PeerWelcome) for _ in range(CONNECTING_MAX)]
    running = [asyncio.ensure_future(pool.execute(peer, call, Deadline.never())) for call in calls]
    try:
        await until(peer.connecting.locked)
        assert await pool.ping(peer, Deadline.after(60.0)) == WELCOME
        goes_on.set()
        await asyncio.gather(*running)
        assert [call.result() for call in calls] == [WELCOME] * CONNECTING_MAX
    finally:
        goes_on.set()
        pool.close()
        peer.close_idle()


async def test_a_probe_that_is_not_answered_in_time_is_repeated_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer accepts the connection, and is too slow for the ping. So it was heard of just before."""
    others: list[socket.socket] = []

    def connect(address: str, hello: PeerHello, *, who: str, **_: Any) -> PeerConnection:
        own, other = socket.socketpair()
        others.append(other)
        connection = PeerConnection(own, who, address, valid_until_s=float("inf"))
        connection.welcome = WELCOME
        return connection

    monkeypatch.setattr(PeerConnection, "connect", connect)
    pool = ConnectionPool(PeerHello((1, 1), "cluster", "a"), tls=None, threads=1)
    peer = Peer("b", "b:1", "run")
    try:
        peer.breaker.failed(time.monotonic(), chance=0.0, silent=True)
        await until(lambda: peer.breaker.take_probe(time.monotonic()))
        with pytest.raises(PeerError, match="no answer within the time allowed"):
            await pool.ping(peer, Deadline.after(0.2))
        assert peer.breaker.state(time.monotonic()) == "open"
        assert peer.breaker.probe_due_s(time.monotonic()) <= time.monotonic() + BREAKER.pause_s_max
    finally:
        pool.close()
        peer.close_idle()
        for other in others:
            other.close()
