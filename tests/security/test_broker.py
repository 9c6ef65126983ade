"""The door for other users (finding 5): who asks is what the kernel says, what is sent is bounded and checked, and what
may be read is what the kernel itself would let that user read."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ProtocolError, UsageError
from headrace.entry.broker import server
from headrace.entry.broker.access import ENTER, READ, Modes, User, may, user_of
from headrace.entry.broker.server import Broker
from headrace.entry.broker.service import BrokerService, Reply
from headrace.entry.broker.view import _fitting, short_token
from headrace.wire.broker_messages import (
    ANSWER_BYTES_MAX,
    FILES_MAX,
    NAMES_MAX,
    REQUEST_BYTES_MAX,
    ROWS_MAX,
    BrokerMessage,
    BrokerNames,
    BrokerRow,
    ListNames,
    LookAt,
    OpenedFile,
    OpenedFiles,
    OpenFiles,
    Request,
    decode_answer,
    decode_request,
    encode,
)
from tests.security.nobody import NOBODY, as_nobody

pytestmark = pytest.mark.expected_warnings("connections of other users can't be accepted now")


EXAMPLES = 300 * int(os.environ.get("HEADRACE_EXAMPLES", "1"))
GOOD = encode(OpenFiles([b"/a"], 0, 1))


class OneFileDesk:
    """Every path is one file. Paths of /wait wait for ever."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.users: list[User] = []
        self.waiting = 0
        self.cancelled = threading.Event()

    def answer_now(self, request: Request, user: User) -> Reply | None:
        self.users.append(user)
        if isinstance(request, OpenFiles) and request.paths[0].startswith(b"/wait"):
            return None
        files = len(request.paths) if isinstance(request, OpenFiles) else 0
        fds = [os.open(self.path, os.O_RDONLY) for _ in range(files)]
        return Reply(OpenedFiles([OpenedFile(7, 1, 0, "", whole=True)] * files), fds)

    async def answer(self, request: Request, user: User) -> Reply:
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting -= 1
            self.cancelled.set()
        raise AssertionError

    def close(self) -> None: ...


class Running:
    """A broker in a loop of its own."""

    def __init__(self, tmp_path: Path) -> None:
        self.desk = OneFileDesk(tmp_path / "file")
        self.desk.path.write_bytes(b"x")
        self.path = str(tmp_path / "public/node.sock")
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.broker = Broker(cast(BrokerService, self.desk))
        self.call(self._start())

    async def _start(self) -> None:
        self.broker.start(self.path)

    def call(self, work: object) -> object:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)  # type: ignore[arg-type]

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.settimeout(60)
        client.connect(self.path)
        return client

    def answers(self) -> bool:
        with self.connect() as client:
            client.sendall(GOOD)
            body, rights, _, _ = client.recvmsg(4096, socket.CMSG_SPACE(4))
            for _, _, data in rights:
                os.close(int.from_bytes(data, "little"))
            return isinstance(decode_answer(body), OpenedFiles) and len(rights) == 1

    def close(self) -> None:
        self.call(self.broker.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    running.close()


def is_dropped(client: socket.socket) -> bool:
    try:
        return client.recv(4096) == b""
    except ConnectionResetError:
        return True


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# ------------------------------------------------------------ what is sent


@pytest.mark.parametrize(
    "packet",
    [
        b"x",
        b"\xc1",
        b"\x81\xa4type",
        msgspec.msgpack.encode({"type": "Shutdown"}),
        msgspec.msgpack.encode({"type": "MountAdd", "path": "/x", "url": "file:///", "options": {}}),
        msgspec.msgpack.encode({"type": "OpenFiles", "paths": [b"/a"], "start": -1, "end": 1}),
        msgspec.msgpack.encode({"type": "OpenFiles", "paths": [b"/a"], "start": 0, "end": 1 << 40}),
        msgspec.msgpack.encode({"type": "OpenFiles", "paths": [b"/a"], "start": 5, "end": 4}),
        msgspec.msgpack.encode({"type": "OpenFiles", "paths": [], "start": 0, "end": 1}),
        msgspec.msgpack.encode(
            {"type": "OpenFiles", "paths": [b"/a"] * (FILES_MAX + 1), "start": 0, "end": 1}
        ),
        msgspec.msgpack.encode({"type": "OpenFiles", "paths": [b"/a" * NAMES_MAX] * 2, "start": 0, "end": 1}),
        *(
            msgspec.msgpack.encode({"type": kind, "path": path, "paths": [path], "start": 0, "end": 1})
            for kind in ("OpenFiles", "LookAt", "ListNames")
            for path in (
                b"",
                b"a",
                b"/..",
                b"/a/../../etc/shadow",
                b"/a//b",
                b"/a/",
                b"/./a",
                b"/a\0b",
                b"/" + b"a" * 256,
            )
        ),
        msgspec.msgpack.encode({"type": "ListNames", "path": b"/", "after": b"../x"}),
        b"\x91" * 60_000,
        b"z" * REQUEST_BYTES_MAX,
    ],
)
def test_what_is_no_request_is_not_answered(running: Running, packet: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_request(packet)
    with running.connect() as client:
        client.sendall(packet)
        assert is_dropped(client)
    assert running.answers()


def test_a_packet_that_is_too_long_is_dropped_whole(running: Running) -> None:
    with running.connect() as client:
        client.sendall(GOOD + b"\0" * REQUEST_BYTES_MAX)
        assert is_dropped(client)
    assert running.answers()


def test_descriptors_are_not_taken(running: Running) -> None:
    """Whoever sends the node descriptors takes its own away."""
    before = open_descriptors()
    with running.connect() as client:
        socket.send_fds(client, [GOOD], [0] * 100)
        assert is_dropped(client)
    assert running.answers()
    while open_descriptors() != before:  # the node closes its end by itself
        pass


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.one_of(st.binary(max_size=300), st.integers(0, 1 << 32).map(lambda seed: mutated(GOOD, seed))))
def test_no_packet_does_anything_but_be_refused(packet: bytes) -> None:
    try:
        request = decode_request(packet)
    except ProtocolError:
        return
    paths = request.paths if isinstance(request, OpenFiles) else [request.path]
    assert all(path.startswith(b"/") and b"/../" not in path + b"/" and b"\0" not in path for path in paths)
    assert decode_request(encode(cast(BrokerMessage, request))) == request


def mutated(packet: bytes, seed: int) -> bytes:
    chance, mutant = random.Random(seed), bytearray(packet)
    for _ in range(chance.randrange(1, 4)):
        mutant[chance.randrange(len(mutant))] = chance.randrange(256)
    return bytes(mutant)


# ------------------------------------------------------------ how much


def test_requests_before_the_answer_was_taken_end_a_connection(running: Running) -> None:
    """Else descriptors on their way, which count for nobody, are as many as the sockets hold."""
    before = open_descriptors()
    with running.connect() as client:
        for _ in range(2):
            client.send(encode(OpenFiles([b"/a"] * FILES_MAX, 0, 1)))
            while not running.desk.users:
                pass
            running.call(asyncio.sleep(0))
        for _ in range(200):
            try:
                client.send(GOOD)
            except OSError:
                break
        else:
            raise AssertionError("never dropped")
        assert open_descriptors() <= before + 2 * FILES_MAX + 2
    assert running.answers()


def test_whoever_leaves_is_not_worked_for(running: Running) -> None:
    with running.connect() as client:
        client.sendall(encode(OpenFiles([b"/wait"], 0, 1)))
        while not running.desk.waiting:
            pass
    assert running.desk.cancelled.wait(60)
    assert running.answers()


def test_a_user_has_so_many_connections_and_others_have_room(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_OF_A_USER_MAX", 4)
    kept = [running.connect() for _ in range(4)]
    for client in kept:
        client.sendall(GOOD)
        assert client.recv(4096)
    with running.connect() as fifth:
        assert is_dropped(fifth)
    if os.geteuid() == 0:
        _open_the_way(running.path)
        assert _asks_as_nobody(running.path) == "answered"
    for client in kept:
        client.close()
    while len(running.broker._connections) > 0:
        pass
    assert running.answers()


def test_requests_that_wait_are_bounded_for_each_user(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "WAITING_OF_A_USER_MAX", 3)
    kept = [running.connect() for _ in range(10)]
    for client in kept:
        client.sendall(encode(OpenFiles([b"/wait"], 0, 1)))
    while len(running.desk.users) < 10:
        pass
    running.call(asyncio.sleep(0))
    assert running.desk.waiting == 3
    assert running.answers()
    for client in kept:
        client.close()


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of who connects next; while it is empty, the user is the real one."""
    following: list[int] = []

    def user(connection: socket.socket) -> User:
        return User(following.pop(0), frozenset()) if following else user_of(connection)

    monkeypatch.setattr(server, "user_of", user)
    return following


def connect_as(running: Running, users: list[int], uid: int) -> socket.socket:
    users.append(uid)
    client = running.connect()
    while users:
        pass
    return client


@contextlib.contextmanager
def held_up(running: Running) -> Iterator[None]:
    """The loop does nothing meanwhile, so that all that is sent is there at once."""
    begun, over = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        over.wait(60)

    running.loop.call_soon_threadsafe(wait)
    assert begun.wait(60)
    yield
    over.set()


def test_who_asks_without_end_makes_other_users_wait_for_one_request(
    running: Running, users: list[int]
) -> None:
    heavy = [connect_as(running, users, 1001) for _ in range(50)]
    other = connect_as(running, users, 1002)
    with held_up(running):
        for client in (*heavy, other):
            client.sendall(GOOD)
    for client in (*heavy, other):
        assert client.recv(4096)
        client.close()
    assert [user.uid for user in running.desk.users].index(1002) <= 1


def test_the_nodes_own_work_goes_on_between_requests(
    running: Running, users: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that had come was answered before anything else was done."""
    monkeypatch.setattr(server, "SLICE_S", 0.0)
    heavy = [connect_as(running, users, 1001) for _ in range(50)]
    work, done = [0], []
    answer_now = running.desk.answer_now

    def answered(request: Request, user: User) -> Reply | None:
        done.append(work[0])
        return answer_now(request, user)

    async def go_on() -> None:
        while len(done) < len(heavy):
            work[0] += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(running.desk, "answer_now", answered)
    with held_up(running):
        for client in heavy:
            client.sendall(GOOD)
        going_on = asyncio.run_coroutine_threadsafe(go_on(), running.loop)
    going_on.result(60)
    assert len(set(done)) == len(heavy)
    for client in heavy:
        client.close()


def test_who_has_most_connections_makes_room_for_others(
    running: Running, users: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four users could keep everybody else out."""
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 4)
    heavy = [connect_as(running, users, uid) for uid in (1001, 1001, 1001, 1002)]
    with connect_as(running, users, 1003) as other:
        other.sendall(GOOD)
        assert other.recv(4096)
        assert is_dropped(heavy[0])
        with connect_as(running, users, 1001) as fourth:
            assert is_dropped(fourth)
    for client in heavy:
        client.close()


def _open_the_way(path: str) -> None:
    """Folders of tests are private."""
    for folder in Path(path).parents:
        if not folder.stat().st_mode & 0o001:
            folder.chmod(0o711)


def _asks_as_nobody(path: str) -> str:
    outcome: str = as_nobody(
        f"""
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
client.connect(path)
client.sendall(bytes.fromhex({GOOD.hex()!r}))
result = "answered" if client.recv(4096) else "dropped"
""",
        path=path,
    )
    return outcome


def test_without_descriptors_nobody_is_taken_for_a_while(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in a loop that does nothing else."""
    monkeypatch.setattr(server, "PAUSE_S", 0.05)
    listener = running.broker._listener
    assert listener is not None
    descriptor = listener.fileno()

    class Exhausted:
        calls = 0

        def accept(self) -> None:
            self.calls += 1
            raise OSError(errno.EMFILE, "Too many open files")

        def fileno(self) -> int:
            return descriptor

    exhausted = Exhausted()
    running.broker._listener = cast(socket.socket, exhausted)
    with running.connect() as client:
        while exhausted.calls < 2:
            pass
        running.broker._listener = listener
        client.sendall(GOOD)
        assert client.recv(4096)
    assert "connections of other users can't be accepted" in caplog.text


def test_a_page_of_names_fits_a_packet() -> None:
    """Names and versions are what others make them: a packet that is too long would end the connection."""
    rows = {
        f"{number:03}".encode() + b"\xff" * 252: BrokerRow(
            b"", 1 << 60, 1 << 20, 1 << 31, 1 << 31, 1 << 60, -1 << 60, "", written=True
        )
        for number in range(ROWS_MAX)
    }
    rows = {
        name: msgspec.structs.replace(row, name=name, token=short_token("x" * 256))
        for name, row in rows.items()
    }
    page = _fitting(sorted(rows), rows)
    assert 0 < len(page) < ROWS_MAX
    assert len(encode(BrokerNames([rows[name] for name in page], page[-1]))) < ANSWER_BYTES_MAX
    assert len(short_token("x" * 5000)) < 40


# ------------------------------------------------------------ who, and what


@pytest.mark.root
def test_who_asks_is_what_the_kernel_says(running: Running) -> None:
    _open_the_way(running.path)
    assert _asks_as_nobody(running.path) == "answered"
    assert running.desk.users == [User(NOBODY, frozenset([NOBODY]))]


@pytest.mark.root
@pytest.mark.parametrize("count", [3, 300, 5000])
def test_all_groups_of_a_user_are_known(count: int) -> None:
    """Those of the process, not those that a file of names tells. 256 fit what Python asks for."""
    groups = list(range(70_000, 70_000 + count))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("")
    listener.listen()
    child = os.fork()
    if child == 0:
        os.setgroups(groups)
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
            end.connect(listener.getsockname())
            theirs.recv(1)
        os._exit(0)
    accepted, _ = listener.accept()
    try:
        assert user_of(accepted) == User(NOBODY, frozenset([*groups, NOBODY]))
    finally:
        ours.send(b".")
        os.waitpid(child, 0)
        for end in (ours, theirs, listener, accepted):
            end.close()


@pytest.mark.root
def test_modes_mean_what_the_kernel_takes_them_for(tmp_path: Path) -> None:
    """Each of the 512, of a file and a directory, as owner, in the group and as anybody else."""
    owners = {(NOBODY, 0): "owner", (0, NOBODY): "group", (0, 4242): "second group", (0, 0): "others"}
    (tmp_path / "f").write_bytes(b"x")
    (tmp_path / "d").mkdir()
    _open_the_way(str(tmp_path / "f"))
    places = tmp_path / "f", tmp_path / "d"
    begin, begun = os.pipe()
    verdicts, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(begun)
        os.setgroups([4242])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        while os.read(begin, 1):
            reads = os.access(places[0], os.R_OK)
            enters = os.access(places[1], os.X_OK)
            lists = os.access(places[1], os.R_OK | os.X_OK)
            os.write(tell, bytes([reads, enters, lists]))
        os._exit(0)
    os.close(begin)
    user = User(NOBODY, frozenset([NOBODY, 4242]))
    try:
        for (uid, gid), who in owners.items():
            for place in places:
                os.chown(place, uid, gid)
            for mode in range(512):
                for place in places:
                    place.chmod(mode)
                os.write(begun, b".")
                kernel = [bool(verdict) for verdict in os.read(verdicts, 3)]
                modes = Modes(mode, uid, gid)
                ours = [may(user, modes, wanted) for wanted in (READ, ENTER, READ | ENTER)]
                assert ours == kernel, (who, oct(mode))
    finally:
        os.close(begun)
        os.waitpid(child, 0)
        for end in (verdicts, tell):
            os.close(end)


# ------------------------------------------------------------ where


@pytest.mark.root
def test_the_public_folder_is_nobody_else_s(tmp_path: Path) -> None:
    """A socket of the attacker's in root's place reads what programs ask for, and answers with bytes of its own."""
    (tmp_path / "public").mkdir()
    (tmp_path / "public").chmod(0o777)
    running = Running(tmp_path)
    assert (tmp_path / "public").stat().st_mode & 0o7777 == 0o755
    running.close()
    os.chown(tmp_path / "public", NOBODY, NOBODY)
    with pytest.raises(UsageError, match="belongs to user"):
        Broker(cast(BrokerService, running.desk)).start(running.path)


def test_every_message_has_a_check() -> None:
    for kind in (OpenFiles, LookAt, ListNames):
        assert hasattr(kind, "__post_init__"), kind
