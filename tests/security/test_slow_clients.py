"""A client that is slow, silent or refused holds no thread, no memory and no place of others (finding 10)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.fair_queue import FairPool, FairQueue
from headrace.entry.peer import server as peer_server
from headrace.http import admission as admission_module
from headrace.http import deadlines, pace, request_handler
from headrace.http import server as http_server
from headrace.http.admission import Admission, Buffered, Memory, count_address
from headrace.http.body import GATHER_BYTES
from headrace.http.connection import ConnectionPhase
from headrace.http.errors import BadRequestError
from headrace.http.messages import Request, Response
from headrace.http.pace import TransferPace
from headrace.http.server import HttpServer
from headrace.http.tls import ServerTls, server_tls
from headrace.testing.hostile import Hostile, client_hello, kinds_for_peers, kinds_of
from headrace.wire.peer_frame import encode
from headrace.wire.peer_messages import PEER_PROTOCOL, PeerHello
from tests.integration.cli.host import wait_until
from tests.integration.door.certificates import make_certificate
from tests.integration.peer_desk import CLUSTER, serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.expected_warnings("refused interface")]
BODY = b"what is read " * 1000
LIMIT_S = 20.0


@pytest.fixture(autouse=True)
def _descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


class Whole:
    """Content of a descriptor."""

    is_versioned = False

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def check_unchanged(self) -> None: ...

    def wait(self, start: int, end: int) -> int:
        return self.fd

    def is_in_memory(self) -> bool:
        return False

    def read_now(self, start: int, end: int) -> bytearray | None:
        return None

    def close(self) -> None:
        os.close(self.fd)


class Application:
    """Lets in who shows the key; answers a GET with BODY, /large with a file, a PUT with how much came."""

    def __init__(self) -> None:
        self.large: Path | None = None
        self.bodies: list[int] = []

    def cached(self, request: Request) -> Response | None:
        return None

    def admit(self, request: Request) -> Response | None:
        if request.header("x-key") != "right":
            return Response(403, body=b"refused")
        request.authenticate("right")
        return None

    def answer(self, request: Request, pieces: Iterator[bytes]) -> Response:
        if (refusal := self.admit(request)) is not None:
            return refusal
        if request.path == b"/large" and self.large is not None:
            fd = os.open(self.large, os.O_RDONLY)
            return Response(200, content=Whole(fd), end=os.fstat(fd).st_size)
        if request.method == "PUT":
            self.bodies.append(sum(map(len, pieces)))
            return Response(201)
        return Response(200, body=BODY)

    def refuse(self, error: BadRequestError) -> Response:
        return Response(400, body=error.message.encode())

    def marks(self, response: Response) -> list[tuple[str, str]]:
        return []

    def clean(self) -> None:
        pass


class Served:
    def __init__(self, tls: ServerTls | None = None) -> None:
        self.application = Application()
        listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        listening.setblocking(False)
        self.address: tuple[str, int] = listening.getsockname()
        self.server = HttpServer(self.application, listening, name="test", tls=tls)
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(self.address, timeout=LIMIT_S, source_address=(source, 0))

    def close(self) -> None:
        self.server.stop()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    server = Served()
    yield server
    server.close()


def head(method: str = "GET", path: str = "/", *lines: str, key: str = "right") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: h", f"X-Key: {key}", *lines, "", ""]).encode()


def read_answer(sock: socket.socket) -> tuple[int, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        assert piece, data
        data += piece
    top, _, body = data.partition(b"\r\n\r\n")
    length = int(top.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    rest = bytearray(body)
    while len(rest) < length:
        rest += sock.recv(1 << 20)
    return int(top.split(b" ")[1]), bytes(rest)


def ended(sock: socket.socket) -> bool:
    """Return whether the server has ended the connection; what it sent before is read."""
    with contextlib.suppress(ConnectionResetError):
        while sock.recv(65536):
            pass
    return True


def count_ended(socks: list[socket.socket]) -> int:
    """Return how many the server has ended, whatever is still to be read of them."""
    poll = select.poll()
    for sock in socks:
        poll.register(sock, select.POLLRDHUP)
    return len(poll.poll(0))


def crowd_of(address: tuple[str, int], count: int) -> list[socket.socket]:
    """Connections from another address, which the server may have ended already."""
    socks = [socket.socket() for _ in range(count)]
    for sock in socks:
        sock.setblocking(False)
        sock.bind(("127.0.0.2", 0))
        assert sock.connect_ex(address) in (0, errno.EINPROGRESS)
    return socks


@contextlib.contextmanager
def attacked(address: tuple[str, int], kinds: list[Any], count: int, source: str) -> Iterator[Hostile]:
    hostile = Hostile(address, kinds, count, [source])
    until_s = time.monotonic() + LIMIT_S
    while not hostile.opened_once and time.monotonic() < until_s:
        hostile.turn()
    assert hostile.opened_once
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(0.05):
            hostile.turn()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield hostile
    finally:
        over.set()
        thread.join()
        hostile.close()


# ---------------------------------------------------------------- the gateways


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_honest_clients_are_answered_beside_hostile_ones(served: Served, source: str) -> None:
    """256 refused uploads that sent one byte stopped a gateway for a minute."""
    kinds = list(kinds_of("/upload").values())
    with served.connect() as kept:
        kept.sendall(head())
        assert read_answer(kept) == (200, BODY)
        with attacked(served.address, kinds, 1500, source):
            for _ in range(5):
                kept.sendall(head())
                assert read_answer(kept) == (200, BODY)
                with served.connect() as new:
                    new.sendall(head("PUT", "/", "Content-Length: 100000"))
                    new.sendall(bytes(100_000))
                    assert read_answer(new) == (201, b"")
    assert served.application.bodies == [100_000] * 5


def test_a_refused_upload_is_answered_and_ended_at_once(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(head("PUT", "/", f"Content-Length: {1 << 40}", key="wrong") + b"x")
        begun_s = time.monotonic()
        assert read_answer(sock) == (403, b"refused")
        assert ended(sock)
        assert time.monotonic() - begun_s < deadlines.BODY_S / 4
    assert served.application.bodies == []


def test_a_refused_upload_of_some_size_hears_why(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(head("PUT", "/", f"Content-Length: {4 << 20}", key="wrong"))
        sock.sendall(bytes(4 << 20))
        assert read_answer(sock) == (403, b"refused")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines of half a second."""
    for name in ("HELLO_S", "HEAD_S", "BODY_S"):
        monkeypatch.setattr(deadlines, name, 0.5)
    monkeypatch.setattr(http_server, "TICK_S", 0.1)
    monkeypatch.setattr(pace, "WINDOW_S", 0.5)


def drip(sock: socket.socket, data: bytes = b"x") -> None:
    """A byte ever so often, until the server ends it."""
    until_s = time.monotonic() + LIMIT_S
    sock.settimeout(0.05)
    while time.monotonic() < until_s:
        try:
            sock.sendall(data)
            if not sock.recv(65536):
                return
        except TimeoutError:
            continue
        except OSError:
            return
    raise AssertionError("the connection goes on for ever")


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"GET / HTTP/1.1\r\nX: ",
        head() + b"GET / HTTP/1.1\r\nX: ",
        head("PUT", "/", "Content-Length: 1000"),
        head("PUT", "/", "Content-Length: 1000000000") + bytes(GATHER_BYTES),
        head("PUT", "/", "Transfer-Encoding: chunked") + b"fffffff\r\n",
        head("PUT", "/", "Transfer-Encoding: chunked") + b"fffffff\r\n" + bytes(GATHER_BYTES),
        head("PUT", "/", "Content-Length: 1000000000", "Expect: 100-continue"),
    ],
    ids=["head", "name", "second head", "body", "rest", "chunks", "rest of chunks", "continued"],
)
def test_a_byte_now_and_then_begins_no_new_limit(served: Served, first: bytes) -> None:
    with served.connect() as sock:
        sock.sendall(first)
        drip(sock)


def test_a_transfer_of_the_least_rate_goes_on_for_ever() -> None:
    transfer = TransferPace()
    for _ in range(10_000):
        transfer.waited(pace.WINDOW_S / 10)
        assert transfer.left_s
        transfer.moved(pace.WINDOW_BYTES // 8)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 20_000)), max_size=60))
def test_a_pace_lets_no_transfer_wait_longer_than_its_bytes_allow(steps: list[tuple[float, int]]) -> None:
    transfer, waited_s, moved = TransferPace(), 0.0, 0
    for wait_s, count in steps:
        step_s = min(wait_s, transfer.left_s)
        if not transfer.left_s:
            break
        transfer.waited(step_s)
        waited_s, moved = waited_s + step_s, moved + count
        transfer.moved(count)
        assert waited_s <= pace.WINDOW_S * (1 + moved / pace.WINDOW_BYTES) + 1e-6


def test_who_reads_slowly_holds_no_thread(served: Served, tmp_path: Path) -> None:
    """More of them than there are threads."""
    large = served.application.large = tmp_path / "large"
    large.touch()
    os.truncate(large, 32 << 20)
    socks = [served.connect() for _ in range(request_handler.THREADS + 20)]
    try:
        for sock in socks:
            sock.sendall(head("GET", "/large"))
        with served.connect() as sock:
            sock.sendall(head())
            assert read_answer(sock) == (200, BODY)
        status, body = read_answer(socks[0])  # it goes on for who reads again
        assert (status, len(body)) == (200, 32 << 20)
    finally:
        for sock in socks:
            sock.close()


@pytest.mark.usefixtures("short")
def test_who_reads_nothing_is_cut_off(served: Served, tmp_path: Path) -> None:
    large = served.application.large = tmp_path / "large"
    large.touch()
    os.truncate(large, 256 << 20)
    with served.connect() as sock:
        sock.sendall(head("GET", "/large"))
        wait_until(lambda: count_ended([sock]) == 1)


def test_slow_heads_together_have_little_memory(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.server._table, "_buffered", (Buffered(1 << 20), Buffered(1 << 20)))
    part = b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 50_000
    socks = [served.connect("127.0.0.2") for _ in range(60)]
    try:
        for sock in socks:
            sock.sendall(part)
        wait_until(lambda: count_ended(socks) >= len(socks) - (1 << 20) // 50_000)
        with served.connect() as sock:
            sock.sendall(head("GET", "/", "X-Long: " + "x" * 40_000))
            assert read_answer(sock) == (200, BODY)
    finally:
        for sock in socks:
            sock.close()


def test_slow_heads_of_strangers_end_no_body_of_a_client(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client began to send before all of them."""
    table = served.server._table
    monkeypatch.setattr(table, "_buffered", (Buffered(1 << 20), Buffered(1 << 20)))
    part = b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 50_000
    with served.connect() as sock:
        sock.sendall(head("PUT", "/", "Content-Length: 100000") + bytes(1000))
        wait_until(lambda: any(waiting.phase is ConnectionPhase.BODY for waiting in table.all_waiting()))
        sock.sendall(bytes(1000))
        wait_until(lambda: any(waiting.is_buffered for waiting in table.all_waiting()))
        strangers = [served.connect("127.0.0.2") for _ in range(60)]
        try:
            for stranger in strangers:
                stranger.sendall(part)
            wait_until(lambda: count_ended(strangers) >= len(strangers) - (1 << 20) // 50_000)
            sock.sendall(bytes(98_000))
            assert read_answer(sock)[0] == 201
        finally:
            for stranger in strangers:
                stranger.close()
    assert served.application.bodies == [100_000]


def test_a_stop_waits_for_an_answer_under_way(served: Served, tmp_path: Path) -> None:
    large = served.application.large = tmp_path / "large"
    large.write_bytes(os.urandom(1 << 20) * 16)
    with served.connect() as sock:
        sock.sendall(head("GET", "/large"))
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        served.server.stop()
        count = 100
        while piece := sock.recv(1 << 20):
            count += len(piece)
        assert count > 16 << 20


# ---------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pem")
    make_certificate(folder, "test")
    return folder


@pytest.fixture
def served_by_tls(pem: Path) -> Iterator[Served]:
    server = Served(server_tls(str(pem / "certificate.pem"), str(pem / "key.pem"), "x"))
    yield server
    server.close()


def ask_by_tls(served: Served, pem: Path) -> None:
    context = ssl.create_default_context(cafile=str(pem / "certificate.pem"))
    with served.connect() as plain, context.wrap_socket(plain, server_hostname="localhost") as sock:
        sock.sendall(head())
        assert read_answer(sock) == (200, BODY)


def test_half_handshakes_hold_nobody_up(served_by_tls: Served, pem: Path) -> None:
    """256 silent connections made the next answer take ten seconds."""
    kinds = [kinds_of("/")[name] for name in ("silent", "half-handshake")]
    with attacked(served_by_tls.address, kinds, 1200, "127.0.0.2"):
        for _ in range(3):
            ask_by_tls(served_by_tls, pem)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "first", [b"", client_hello()[:20], client_hello()], ids=["nothing", "a beginning", "a hello"]
)
def test_a_handshake_has_a_deadline_as_a_whole(served_by_tls: Served, first: bytes) -> None:
    with served_by_tls.connect() as sock:
        sock.sendall(first)
        drip(sock, b"" if first == client_hello() else b"\x16" if not first else b"x")


# ---------------------------------------------------------------- who is kept


class Visitor:
    def __init__(self, address: str) -> None:
        self.address = address


def admission(**bounds: int) -> tuple[Admission[Visitor], list[Visitor]]:
    displaced: list[Visitor] = []
    return Admission(displaced.append, **bounds), displaced


def test_the_heaviest_address_makes_room_by_its_oldest() -> None:
    kept, displaced = admission(unauthenticated_max=10)
    heavy = [Visitor("10.0.0.9") for _ in range(10)]
    for visitor in heavy:
        assert kept.enter(visitor)
    honest = [Visitor("10.0.0.1") for _ in range(3)]
    for visitor in honest:
        assert kept.enter(visitor)
    assert displaced == heavy[:3]
    assert len(kept) == 10


def test_who_was_let_in_makes_room_for_nobody() -> None:
    kept, displaced = admission(address_max=5, connections_max=8, unauthenticated_max=8)
    proven = [Visitor("a") for _ in range(5)]
    for visitor in proven:
        assert kept.enter(visitor)
        kept.mark_authenticated(visitor)
    assert not kept.enter(Visitor("a"))
    others = [Visitor(str(number)) for number in range(3)]
    assert all(kept.enter(visitor) for visitor in others)
    last = Visitor("z")
    assert kept.enter(last)
    assert displaced == others[:1]
    for visitor in (*proven, *others, last, last):
        kept.leave(visitor)
    assert len(kept) == 0
    assert kept.enter(Visitor("a"))


def test_a_network_of_ipv6_is_one_address() -> None:
    assert (
        count_address("2001:db8::1") == count_address("2001:db8::ffff:1") != count_address("2001:db8:0:1::1")
    )
    assert count_address("::ffff:10.0.0.1") == count_address("10.0.0.1")
    assert count_address("fe80::1%eth0") == count_address("fe80::2")
    assert count_address("") == ""


def test_what_is_held_longest_goes_first() -> None:
    held: Buffered[Visitor] = Buffered(100)
    a, b, c, d = (Visitor(name) for name in "abcd")
    assert [held.hold(visitor, 40) for visitor in (a, b, c)] == [[], [], [a]]
    assert held.hold(b, 0) == []
    assert held.hold(d, 61) == [c]
    assert held.hold(d, 101) == [d]
    memory = Memory(100)
    assert [memory.reserve(60), memory.reserve(60)] == [True, False]
    memory.release(60)
    assert memory.reserve(100)


def test_work_of_one_address_leaves_threads_to_others() -> None:
    done: list[str] = []
    over = threading.Event()

    def wait() -> None:
        over.wait(LIMIT_S)
        done.append("heavy")

    turns: FairPool[str] = FairPool(ThreadPoolExecutor(4), share=2)
    for _ in range(6):
        turns.submit("heavy", wait)
    turns.submit("other", lambda: done.append("other"))
    wait_until(lambda: done == ["other"])
    over.set()
    wait_until(lambda: len(done) == 7)
    turns.shutdown(wait=True)
    assert not turns._running
    assert not turns._queued


def test_who_comes_last_waits_for_one_of_each_address_only() -> None:
    order: list[str] = []
    over = threading.Event()

    def first() -> None:
        over.wait(LIMIT_S)

    turns: FairPool[str] = FairPool(ThreadPoolExecutor(1), share=1)
    turns.submit("first", first)
    for _ in range(1000):
        turns.submit("heavy", lambda: order.append("heavy"))
    turns.submit("other", lambda: order.append("other"))
    over.set()
    wait_until(lambda: len(order) == 1001)
    turns.shutdown(wait=True)
    assert order.index("other") <= 1

    queue: FairQueue[str, int] = FairQueue()
    for number in range(1000):
        queue.add("heavy", number)
    queue.add("other", -1)
    assert [queue.next() for _ in range(3)] == [0, -1, 1]
    assert [queue.next() for _ in range(998)] == list(range(2, 1000))
    assert not queue


def limit(
    monkeypatch: pytest.MonkeyPatch, server: HttpServer | peer_server.PeerServer, limited: Admission[Any]
) -> None:
    """Give a server another admission, which its acceptor has too."""
    holder, name = (server._table, "admission") if isinstance(server, HttpServer) else (server, "_admission")
    monkeypatch.setattr(holder, name, limited)
    monkeypatch.setattr(server._acceptor, "_admission", limited)


def test_a_crowd_of_one_address_is_ended_and_others_are_answered(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_module, "WINDOW_S", 3600.0)
    limit(monkeypatch, served.server, Admission(served.server._table.displace, arrivals_max=50))
    socks = crowd_of(served.address, 200)
    try:
        wait_until(lambda: count_ended(socks) == 150)
        for _ in range(60):  # who is let in does not count
            with served.connect() as sock:
                sock.sendall(head())
                assert read_answer(sock) == (200, BODY)
        assert count_ended(socks) == 150
    finally:
        for sock in socks:
            sock.close()


def test_an_address_that_only_connects_is_ended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that was let in by a credential does not count, and others are not concerned."""
    monkeypatch.setattr(admission_module, "WINDOW_S", 3600.0)
    kept, _ = admission(arrivals_max=3)
    assert [kept.arrive("10.0.0.9") for _ in range(4)] == [True, True, True, False]
    for _ in range(10):
        assert kept.arrive("10.0.0.1")
        honest = Visitor("10.0.0.1")
        assert kept.enter(honest)
        kept.mark_authenticated(honest)
    monkeypatch.setattr(kept, "_window_until_s", 0.0)
    assert kept.arrive("10.0.0.9")


# ---------------------------------------------------------------- peers


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
async def test_peers_are_answered_beside_hostile_connections(tmp_path: Path, source: str) -> None:
    async with serving(tmp_path) as pair:
        host, _, port = pair.node.address.rpartition(":")
        wanted = pair.desk.add("f", 100_000)
        assert await pair.fetch(wanted) == pair.desk.body(wanted)
        kinds = list(kinds_for_peers().values())
        with attacked((host, int(port)), kinds, 1500, source):
            for _ in range(5):
                assert await pair.fetch(wanted) == pair.desk.body(wanted)
            assert pair.server.connections() <= 1200


async def test_a_crowd_of_one_address_is_ended_and_peers_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_module, "WINDOW_S", 3600.0)
    async with serving(tmp_path) as pair:
        limited = Admission(pair.server._displace, unauthenticated_max=20, arrivals_max=50)
        limit(monkeypatch, pair.server, limited)
        host, _, port = pair.node.address.rpartition(":")
        socks = crowd_of((host, int(port)), 200)
        await asyncio.to_thread(wait_until, lambda: count_ended(socks) == 180)
        wanted = pair.desk.add("f", 1000)
        assert await pair.fetch(wanted) == pair.desk.body(wanted)
        for sock in socks:
            sock.close()


def greeting(cluster: str = CLUSTER) -> bytes:
    return encode(PeerHello((PEER_PROTOCOL, PEER_PROTOCOL), cluster, "slow"))


@pytest.mark.parametrize(
    "first",
    [b"", greeting()[:9], greeting(), greeting() + b"\0\0\x10\0"],
    ids=["nothing", "a beginning", "a hello", "a length"],
)
async def test_a_peers_hello_and_request_have_deadlines_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(peer_server, "GREETING_S", 0.5)
    monkeypatch.setattr(peer_server, "REQUEST_S", 0.5)
    monkeypatch.setattr(peer_server, "TICK_S", 0.1)
    async with serving(tmp_path) as pair:
        host, _, port = pair.node.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=LIMIT_S) as sock:
            sock.sendall(first)
            await asyncio.to_thread(drip, sock, b"\0")


async def test_requests_of_peers_together_have_little_memory(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        pair.server._buffered = Buffered(1 << 20)
        host, _, port = pair.node.address.rpartition(":")
        socks = [socket.create_connection((host, int(port)), timeout=LIMIT_S) for _ in range(10)]
        for sock in socks:
            sock.sendall(greeting() + (4 << 20).to_bytes(4, "little") + bytes(300_000))
        await asyncio.to_thread(wait_until, lambda: count_ended(socks) >= 7)
        wanted = pair.desk.add("f", 1000)
        assert await pair.fetch(wanted) == pair.desk.body(wanted)
        for sock in socks:
            sock.close()
