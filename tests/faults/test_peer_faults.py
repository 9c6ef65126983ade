"""Peers that lie, hang, break off or are somebody else: an error in time, never other bytes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, PeerError, UsageError
from headrace.identity.mutual import MutualTls, TlsFiles
from headrace.peer.batch import IN_FLIGHT_MAX
from headrace.peer.client import PeerClient
from headrace.peer.connection_pool import GRACE_S, LATE_S, PING_S, ConnectionPool, Peer
from headrace.ring.view import NodeInfo
from headrace.testing.waiting import until
from headrace.wire.peer_messages import FILES_MAX, FileRange, PeerWelcome
from tests.certificates import authority, issued, mutual
from tests.integration.cli.host import send
from tests.integration.peer_desk import CLUSTER, MIB, Serving, nothing_leaks, serving, soon

pytestmark = pytest.mark.timeout(60)

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture
def loop_factory() -> Iterator[LoopFactory]:
    """On uvloop, as the node; afterwards nothing is left."""
    with nothing_leaks():
        yield uvloop.new_event_loop


class FaultyTcpProxy:
    """A TCP proxy that injects `fault` once for each connection, after so many bytes from the node. `freeze`: no more
    bytes pass on any connection. `pause`: bytes wait for `resume`."""

    def __init__(self, upstream: str, fault: str, after_bytes: int) -> None:
        self.upstream = upstream
        self.fault = fault
        self.after_bytes = after_bytes
        self.met = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._ended = threading.Event()
        self._frozen = threading.Event()
        self.resume = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._ended.set()
        self.resume.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()  # from now on it accepts nothing that would have to be ended
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for sock in [self._listening, *self._sockets]:
            sock.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                down, _ = self._listening.accept()
            except OSError:
                return
            host, port = self.upstream.split(":")
            up = socket.create_connection((host, int(port)))
            self._sockets += [down, up]
            for move in (self._forward, self._meddle):
                thread = threading.Thread(target=self._moving, args=(move, down, up))
                self._threads.append(thread)
                thread.start()

    def _moving(
        self, move: Callable[[socket.socket, socket.socket], None], down: socket.socket, up: socket.socket
    ) -> None:
        with contextlib.suppress(OSError):
            move(down, up)
        for sock in (up,) if self.fault == "reset" else (down, up):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _forward(self, down: socket.socket, up: socket.socket) -> None:
        while body := down.recv(65536):
            up.sendall(body)

    def _meddle(self, down: socket.socket, up: socket.socket) -> None:
        left = self.after_bytes
        while body := up.recv(65536):
            if self._frozen.is_set():
                self._ended.wait()
                return
            if len(body) <= left or self.fault == "none":
                down.sendall(body)
                left -= len(body)
                continue
            self.met += 1
            down.sendall(body[:left])
            rest = bytearray(body[left:])
            if self.fault == "truncate":
                return
            if self.fault == "reset":
                down.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                down.shutdown(socket.SHUT_RD)  # the other thread lets go of it
                down.close()
                return
            if self.fault == "stall":
                self._ended.wait()
                return
            if self.fault == "freeze":
                self._frozen.set()
                continue
            if self.fault == "pause":
                self.resume.wait()
            if self.fault == "flip":
                rest[0] ^= 1
            elif self.fault == "nonsense":
                rest = bytearray(os.urandom(len(rest)))
            down.sendall(rest)
            left = 1 << 60


def at(node: NodeInfo, address: str) -> NodeInfo:
    return NodeInfo(node.id, node.instance, address, node.zone, node.capacity_bytes, node.version, 1)


@pytest.mark.parametrize("after_bytes", [10, 5_000, 100_000, 2 * MIB + 5])
@pytest.mark.parametrize("fault", ["truncate", "flip", "nonsense", "reset"])
@pytest.mark.expected_warnings("a peer sent bytes that don't match their checksum")
async def test_a_lie_is_an_error_and_never_other_bytes(tmp_path: Path, fault: str, after_bytes: int) -> None:
    async with serving(tmp_path) as pair:
        wanted = pair.desk.add("f", 3 * MIB)
        proxy = FaultyTcpProxy(pair.node.address, fault, after_bytes)
        node = at(pair.node, proxy.address)
        try:
            for _ in range(2):
                with pytest.raises((PeerError, HeadraceError)) as raised:
                    arrived = await pair.peers.fetch(
                        node, wanted, cached_only=False, epoch=1, deadline=Deadline.after(2)
                    )
                    # a flipped bit may fall into what doesn't matter, as the epoch of the welcome
                    assert bytes(arrived.body) == pair.desk.body(wanted)
                    raise PeerError("right after all")
                assert isinstance(raised.value, PeerError), raised.value
            assert proxy.met
            proxy.fault = "none"
            assert await pair.fetch(wanted) == pair.desk.body(wanted)
        finally:
            await asyncio.to_thread(proxy.close)


@pytest.mark.expected_warnings("a peer sent bytes that don't match their checksum")
async def test_small_files_of_a_liar_fail_or_are_right(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        files = [pair.desk.add(f"f{n}", 50_000) for n in range(60)]
        proxy = FaultyTcpProxy(pair.node.address, "flip", 1_200_000)
        node = at(pair.node, proxy.address)

        async def one(wanted: FileRange) -> bool:
            try:
                arrived = await pair.peers.fetch_small(node, wanted, epoch=1, deadline=soon())
            except PeerError as error:
                assert "node b at" in str(error)
                return False
            assert bytes(arrived.body) == pair.desk.body(wanted)
            return True

        try:
            right = await asyncio.gather(*map(one, files))
            assert True in right
            assert False in right
        finally:
            await asyncio.to_thread(proxy.close)


async def test_a_peer_that_stalls_in_the_middle_of_a_block(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        wanted = pair.desk.add("f", 3 * MIB)
        proxy = FaultyTcpProxy(pair.node.address, "stall", MIB)
        node = at(pair.node, proxy.address)
        try:
            began_s = time.monotonic()
            with pytest.raises(PeerError, match=r"node b at 127\.0\.0\.1"):
                await pair.peers.fetch(node, wanted, cached_only=False, epoch=1, deadline=Deadline.after(0.6))
            assert 0.5 < time.monotonic() - began_s < 15
        finally:
            await asyncio.to_thread(proxy.close)


async def test_a_peer_that_falls_silent_in_the_middle_of_a_block_is_given_up(tmp_path: Path) -> None:
    """Long before the deadline, by the first who waits for it: those who come later don't wait."""
    async with serving(tmp_path) as pair:
        wanted = pair.desk.add("f", 3 * MIB)
        proxy = FaultyTcpProxy(pair.node.address, "freeze", MIB + 5_000)
        node = at(pair.node, proxy.address)
        try:
            with pytest.raises(PeerError, match=r"node b at 127\.0\.0\.1"):
                await pair.peers.fetch(
                    node, wanted, cached_only=False, epoch=1, deadline=Deadline.after(3600)
                )
            assert proxy.met == 1
            assert pair.peers.table.statistics()["b"]["breaker"] == "open"
            with pytest.raises(PeerError, match="no requests for now"):
                await pair.fetch_at(node, wanted)
            assert pair.desk.requests == [1]
        finally:
            await asyncio.to_thread(proxy.close)


async def test_small_files_that_wait_their_turn_are_not_asked_of_a_silent_peer(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        turns = 8
        wanted = pair.desk.add("f", 1000)
        proxy = FaultyTcpProxy(pair.node.address, "freeze", 5_000)
        node = at(pair.node, proxy.address)
        calls = [
            pair.peers.fetch_small(node, wanted, epoch=1, deadline=Deadline.after(3600))
            for _ in range((IN_FLIGHT_MAX + turns) * FILES_MAX)
        ]
        try:
            results = await asyncio.gather(*calls, return_exceptions=True)
            failures = [result for result in results if isinstance(result, BaseException)]
            assert all(isinstance(failure, PeerError) for failure in failures)
            assert len(failures) >= turns * FILES_MAX
            requests = pair.peers.table.statistics()["b"]["requests"]  # some of them ask whether it lives
            assert IN_FLIGHT_MAX < requests < IN_FLIGHT_MAX + turns
        finally:
            await asyncio.to_thread(proxy.close)


async def test_a_peer_that_lives_is_waited_for_in_the_middle_of_a_block(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        wanted = pair.desk.add("f", 3 * MIB)
        proxy = FaultyTcpProxy(pair.node.address, "pause", MIB + 5_000)
        node = at(pair.node, proxy.address)
        try:
            waiting = asyncio.ensure_future(pair.fetch_at(node, wanted))
            await until(lambda: pings(pair, fetches=1) > 1)  # so that one was answered
            proxy.resume.set()
            assert await waiting == pair.desk.body(wanted)
            assert pair.desk.requests == [1]
        finally:
            await asyncio.to_thread(proxy.close)


async def test_an_owner_that_waits_for_its_origin_is_waited_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        files = [pair.desk.add(f"f{n}", MIB + n, landed=False) for n in range(2)]
        small = asyncio.ensure_future(pair.fetch_small(files[0]))
        large = asyncio.ensure_future(pair.fetch(files[1]))
        await until(lambda: pings(pair, fetches=2) > 2)
        for wanted in files:
            pair.desk.files[wanted.path].land(0, 1)
        assert [await small, await large] == [pair.desk.body(file) for file in files]
        assert pair.desk.requests == [1, 1]
        assert pair.peers.table.statistics()["b"]["errors"] == 0


async def test_a_node_that_stood_still_itself_does_not_take_a_peer_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer came long ago when its loop goes on, and so did the end of the time for it."""
    asked = 0
    ping = ConnectionPool.ping

    async def ping_and_stand_still(self: ConnectionPool, peer: Peer, deadline: Deadline) -> PeerWelcome:
        nonlocal asked
        asked += 1
        if asked == 2:  # over a connection that is there
            asyncio.get_running_loop().call_soon(time.sleep, PING_S + GRACE_S + 2 * LATE_S)
        return await ping(self, peer, deadline)

    monkeypatch.setattr(ConnectionPool, "ping", ping_and_stand_still)
    async with serving(tmp_path) as pair:
        wanted = pair.desk.add("f", MIB, landed=False)
        waiting = asyncio.ensure_future(pair.fetch(wanted))
        await until(lambda: asked > 2 or waiting.done())
        pair.desk.files[wanted.path].land(0)
        assert await waiting == pair.desk.body(wanted)
        assert pair.peers.table.statistics()["b"]["breaker"] == "closed"


def pings(pair: Serving, *, fetches: int) -> int:
    row = pair.peers.table.statistics().get("b", {"requests": 0})
    return int(row["requests"]) - fetches


async def test_nobody_there_and_the_breaker(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        wanted = pair.desk.add("f", 1000)
        with socket.create_server(("127.0.0.1", 0)) as empty:
            address = f"127.0.0.1:{empty.getsockname()[1]}"
        gone = at(pair.node, address)
        began_s = time.monotonic()
        while pair.peers.usable(gone):
            with pytest.raises(PeerError, match=r"node b at 127\.0\.0\.1.*can't be reached"):
                await pair.peers.fetch(gone, wanted, cached_only=False, epoch=1, deadline=soon())
        assert time.monotonic() - began_s < 15
        assert pair.peers.table.statistics()["b"]["breaker"] == "open"
        proxy = FaultyTcpProxy(pair.node.address, "none", 0)
        try:
            back = at(pair.node, proxy.address)
            assert pair.peers.usable(back)  # it came back elsewhere: a clean record
            assert await pair.fetch(wanted) == pair.desk.body(wanted)
        finally:
            await asyncio.to_thread(proxy.close)


SERVER = """
import asyncio, sys
from pathlib import Path
import uvloop
from tests.integration.cli.host import send
from tests.integration.peer_desk import MIB, serving

async def work():
    async with serving(Path(sys.argv[1])) as pair:
        pair.desk.add("f", 3 * MIB)
        print(pair.node.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(work())
"""


def start_server(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SERVER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[2],
        text=True,
    )


async def test_a_node_that_is_stopped_and_comes_back(tmp_path: Path) -> None:
    """SIGSTOP: its kernel goes on to accept connections, and nobody answers."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    process = start_server(there)
    try:
        assert process.stdout is not None
        address = (await asyncio.to_thread(process.stdout.readline)).strip()
        async with serving(here) as pair:
            wanted = pair.desk.add("f", 3 * MIB)  # the same bytes as there: they follow from the name
            node = at(pair.node, address)
            arrived = await pair.peers.fetch(node, wanted, cached_only=False, epoch=1, deadline=soon())
            assert bytes(arrived.body) == pair.desk.body(wanted)
            send(process.pid, signal.SIGSTOP)
            began_s = time.monotonic()
            with pytest.raises(PeerError):
                deadline = Deadline.after(0.5)
                await pair.peers.fetch(node, wanted, cached_only=False, epoch=1, deadline=deadline)
            assert time.monotonic() - began_s < 15
            calls = [
                pair.peers.fetch(node, wanted, cached_only=False, epoch=1, deadline=Deadline.after(60))
                for _ in range(100)  # more than there are threads
            ]
            began_s = time.monotonic()
            others = asyncio.gather(*calls, return_exceptions=True)
            assert await pair.fetch_at(pair.node, wanted) == pair.desk.body(wanted)
            assert time.monotonic() - began_s < 15  # the one that hangs doesn't hold up others
            failures = await others
            assert all(isinstance(failure, PeerError) for failure in failures)
            assert time.monotonic() - began_s < 40
            process.send_signal(signal.SIGCONT)
            await until(lambda: pair.peers.usable(node))
            arrived = await pair.peers.fetch(node, wanted, cached_only=False, epoch=1, deadline=soon())
            assert bytes(arrived.body) == pair.desk.body(wanted)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


async def test_a_cache_file_that_is_shorter_than_it_should_be(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        wanted = pair.desk.add("f", 3 * MIB)
        os.truncate(tmp_path / "f", 2 * MIB + 77)
        with pytest.raises(PeerError, match="closed the connection"):
            await pair.fetch(wanted)


@pytest.mark.expected_warnings("a peer sent bytes that don't match their checksum")
async def test_a_rotten_block_of_the_owner_does_not_get_through(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        wanted = pair.desk.add("f", 3 * MIB)
        os.pwrite(pair.desk.files[wanted.path].fd, b"rotten", MIB + 500_000)
        with pytest.raises(PeerError, match="checksum"):
            await pair.fetch(wanted)
        part = FileRange(wanted.path, wanted.size_bytes, 1, '"etag"', MIB + 10, MIB + 20)
        with pytest.raises(HeadraceError, match="checksum"):
            await pair.fetch(part)
        with pytest.raises(PeerError, match="checksum"):
            await pair.fetch_small(wanted)
        ranges = sorted([(span.start, span.end) for span in (wanted, part, wanted)])
        await until(lambda: sorted((span.start, span.end) for span in pair.desk.doubted) == ranges)


# ---------------------------------------------------------------- TLS


async def test_tls(tmp_path: Path) -> None:
    mine = authority(tmp_path / "mine")
    server, client = mutual(mine, "b"), mutual(mine, "a")
    folder = tmp_path / "files"
    folder.mkdir()
    async with serving(folder, server_tls=server, client_tls=client) as pair:
        large = pair.desk.add("f", 9 * MIB + 3)
        files = [pair.desk.add(f"s{n}", 20_000 + n) for n in range(200)]
        slow = pair.desk.add("slow", 3 * MIB, landed=False)
        waiting = asyncio.ensure_future(pair.fetch(slow))
        bodies = await asyncio.gather(*map(pair.fetch_small, files), pair.fetch(large))
        assert bodies == [pair.desk.body(file) for file in [*files, large]]
        await until(lambda: pair.desk.files[slow.path].waits == 1)
        pair.desk.files[slow.path].land(0, 1, 2)
        assert await waiting == pair.desk.body(slow)


@pytest.mark.expected_warnings("its certificate is not taken", "why=no TLS connection")
async def test_without_the_right_certificate_nobody_is_served(tmp_path: Path) -> None:
    mine = authority(tmp_path / "mine")
    folder = tmp_path / "files"
    folder.mkdir()
    async with serving(folder, server_tls=mutual(mine, "b"), client_tls=mutual(mine, "a")) as pair:
        wanted = pair.desk.add("f", 1000)
        assert await pair.fetch(wanted) == pair.desk.body(wanted)
        for tls in (mutual(authority(tmp_path / "other"), "a"), None):
            peers = PeerClient("a", CLUSTER, tls=tls)
            with pytest.raises(PeerError):
                await peers.fetch(pair.node, wanted, cached_only=False, epoch=1, deadline=Deadline.after(4))
            peers.close()
        assert pair.desk.requests == [1]
        assert await pair.fetch(wanted) == pair.desk.body(wanted)


@pytest.mark.expected_warnings("its certificate is not taken", "why=no TLS connection")
async def test_tls_against_a_plain_node(tmp_path: Path) -> None:
    client = mutual(authority(tmp_path / "mine"), "a")
    folder = tmp_path / "files"
    folder.mkdir()
    async with serving(folder, client_tls=client) as pair:
        wanted = pair.desk.add("f", 1000)
        with pytest.raises(PeerError, match="node b at"):
            await pair.fetch(wanted)


def test_certificates_that_are_missing_or_wrong(tmp_path: Path) -> None:
    good = issued(authority(tmp_path / "mine"), "a").names()
    MutualTls(TlsFiles(*good))
    (tmp_path / "empty").write_text("")
    for index in range(3):
        for wrong in (str(tmp_path / "missing"), str(tmp_path / "empty")):
            with pytest.raises(UsageError, match="tls_"):
                MutualTls(TlsFiles(*(wrong if number == index else name for number, name in enumerate(good))))
