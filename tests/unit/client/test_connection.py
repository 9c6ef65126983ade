"""A client's connections to its node: answers, failures, cancelled calls, and a node that is away."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.base.cancel import Cancel
from headrace.base.deadline import Deadline
from headrace.base.errors import (
    CancelledByUserError,
    DeadlineExceededError,
    HeadraceError,
    NodeUnavailableError,
    NotAllowedError,
    ProtocolError,
    error_classes,
)
from headrace.client.connection import Connection, Connections
from headrace.client.discovery import answers
from headrace.testing.waiting import outcome_of
from headrace.vfs.brokered.broker_connection import BrokerConnection
from headrace.wire import frame
from headrace.wire.message import Message
from headrace.wire.messages import (
    Answer,
    Done,
    Filled,
    FillRange,
    Hello,
    JobStart,
    JobState,
    Lookup,
    OpenMany,
    Welcome,
)
from tests.integration.cli.host import wait_until
from tests.unit.client.scripted_node import ScriptedNode

LIMIT_S = 60.0
ASK = Lookup(1, b"name")
StartNode = Callable[..., ScriptedNode]


@pytest.fixture
def connection(node: ScriptedNode) -> Iterator[Connection]:
    opened = Connection(node.path, role="sdk")
    yield opened
    opened.close()


@pytest.fixture
def welcomes() -> list[Welcome]:
    return []


@pytest.fixture
def pool(node: ScriptedNode, welcomes: list[Welcome]) -> Iterator[Connections]:
    """One that waits for a node that is away."""
    connections = Connections(node.path, role="sdk", patience_s=LIMIT_S, on_welcome=welcomes.append)
    yield connections
    connections.close()


@pytest.fixture
def cancelled() -> Iterator[Cancel]:
    cancel = Cancel()
    cancel.set()
    yield cancel
    cancel.close()


# ------------------------------------------------------------ one connection


def test_a_connection_introduces_itself(node: ScriptedNode, connection: Connection) -> None:
    assert node.requests == [Hello(2, os.getpid(), "sdk")]
    assert connection.welcome == node.welcome
    assert connection.usable


def test_the_answer_of_a_request_is_returned(node: ScriptedNode, connection: Connection) -> None:
    node.answer = lambda request: [Filled(complete=True)]
    assert connection.ask(FillRange(7, 0, 1)) == Filled(complete=True)
    assert node.requests[-1] == FillRange(7, 0, 1)


@pytest.mark.parametrize("code", error_classes())
def test_a_failure_is_raised_as_its_error_and_the_connection_stays(
    node: ScriptedNode, connection: Connection, code: str
) -> None:
    error = error_classes()[code]("/a", why="it broke", hint="mend it")
    node.answer = lambda request: [frame.failure_of(error)]
    with pytest.raises(HeadraceError) as raised:
        connection.ask(ASK)
    assert type(raised.value) is type(error)
    assert str(raised.value) == str(error)
    assert connection.usable
    node.answer = lambda request: [Done()]
    assert connection.ask(ASK) == Done()


def test_a_cancel_ends_a_call_that_waits(node: ScriptedNode, connection: Connection) -> None:
    """The node cancels the request when its connection is closed."""
    node.answer = lambda request: []
    cancel = Cancel()
    threading.Timer(0.05, cancel.set).start()
    with pytest.raises(CancelledByUserError):
        connection.ask(ASK, cancel=cancel)
    assert node.left.acquire(timeout=LIMIT_S)
    assert not connection.usable
    cancel.close()


def test_a_deadline_ends_a_call_that_waits(node: ScriptedNode, connection: Connection) -> None:
    node.answer = lambda request: []
    with pytest.raises(DeadlineExceededError):
        connection.ask(ASK, deadline=Deadline.after(0.05))
    assert node.left.acquire(timeout=LIMIT_S)
    assert not connection.usable


@pytest.mark.parametrize("raw", [b"", b"\1", b"\5\0\0\0", b"\5\0\0\0\x81\xa1"])
def test_a_node_that_ends_within_its_answer_is_away(
    node: ScriptedNode, connection: Connection, raw: bytes
) -> None:
    node.raw = raw
    with pytest.raises(NodeUnavailableError, match="it closed the connection"):
        connection.ask(ASK)
    assert not connection.usable


@pytest.mark.parametrize("raw", [b"\xff\xff\xff\xff", b"\2\0\0\0\xc1\xc1", frame.encode(ASK), b"\0\0\0\0"])
def test_an_answer_that_is_none_is_an_error_of_the_protocol(
    node: ScriptedNode, connection: Connection, raw: bytes
) -> None:
    node.raw = raw
    with pytest.raises(ProtocolError):
        connection.ask(ASK)
    assert not connection.usable


def test_a_node_that_does_not_welcome_is_refused(start_node: StartNode) -> None:
    node = start_node()
    node.welcome = Done()
    with pytest.raises(ProtocolError, match="did not accept"):
        Connection(node.path, role="sdk")


def test_a_node_that_is_not_there_says_how_to_start_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(NodeUnavailableError, match="headrace up"):
        Connection(str(tmp_path_factory.mktemp("none") / "sock"), role="sdk")


class FullQueue:
    """A socket that accepts no connection. Its queue of new ones is full."""

    def __init__(self, path: str, kind: int = socket.SOCK_STREAM) -> None:
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX, kind)
        self.listener.bind(path)
        self.listener.listen(0)
        self._waiting: list[socket.socket] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                self._waiting.append(socket.socket(socket.AF_UNIX, kind))
                self._waiting[-1].setblocking(False)
                self._waiting[-1].connect(path)

    def close(self) -> None:
        for waiting in [*self._waiting, self.listener]:
            waiting.close()


@pytest.fixture
def full(tmp_path: Path) -> Iterator[FullQueue]:
    queue = FullQueue(str(tmp_path / "full.sock"))
    yield queue
    queue.close()


def test_a_node_that_accepts_no_connection_is_away(full: FullQueue) -> None:
    (error,) = outcome_of(lambda: Connection(full.path, role="sdk", deadline=Deadline.after(0.2)))
    assert isinstance(error, NodeUnavailableError)
    assert "queue of new connections is full" in str(error)


def test_a_broker_that_accepts_no_connection_is_away(
    full: FullQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.vfs.brokered.broker_connection.CONNECT_LIMIT_S", 0.2)
    full.close()
    os.unlink(full.path)
    again = FullQueue(full.path, socket.SOCK_SEQPACKET)
    (error,) = outcome_of(lambda: BrokerConnection(full.path, patience_s=0, any_owner=True))
    again.close()
    assert isinstance(error, NodeUnavailableError)


def test_a_cancel_ends_a_call_that_waits_for_a_full_queue(full: FullQueue) -> None:
    cancel = Cancel()
    threading.Timer(0.1, cancel.set).start()
    (error,) = outcome_of(
        lambda: Connection(full.path, role="sdk", deadline=Deadline.after(600), cancel=cancel)
    )
    assert isinstance(error, CancelledByUserError)
    cancel.close()


def test_a_connection_waits_for_its_turn(full: FullQueue) -> None:
    """A node that was busy for a moment accepts it then."""
    welcome = Welcome(2, "/none", [], 1)
    accepted: list[socket.socket] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted.append(full.listener.accept()[0])
                accepted[-1].sendall(frame.encode(welcome))

    threading.Timer(0.2, accept).start()
    (opened,) = outcome_of(lambda: Connection(full.path, role="sdk", deadline=Deadline.after(600)))
    assert isinstance(opened, Connection)
    assert opened.welcome == welcome
    opened.close()
    full.listener.shutdown(socket.SHUT_RDWR)
    for connection in accepted:
        connection.close()


def test_a_process_with_a_full_queue_listens(full: FullQueue) -> None:
    assert answers(full.path)


def test_a_node_that_welcomes_nobody_is_away(node: ScriptedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.client.connection.WELCOME_LIMIT_S", 0.1)
    node.welcome = None
    (error,) = outcome_of(lambda: Connection(node.path, role="sdk"))
    assert isinstance(error, NodeUnavailableError)


def test_a_node_of_another_user_gets_nothing(node: ScriptedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.client.connection.is_trusted", lambda uid: uid != os.geteuid())
    with pytest.raises(NotAllowedError, match=f"user {os.geteuid()} runs it"):
        Connection(node.path, role="sdk")
    assert node.requests == []


def test_a_stream_ends_at_its_last_answer(node: ScriptedNode, connection: Connection) -> None:
    states: list[Answer] = [JobState(done, 1, 2, 3, 4, 0, [], False) for done in (False, False, True)]
    node.answer = lambda request: states if isinstance(request, JobStart) else [Done()]
    assert list(connection.stream(JobStart("load", "/"))) == states
    assert connection.usable
    assert connection.ask(ASK) == Done()


def test_a_stream_that_is_broken_off_leaves_no_connection_for_others(
    node: ScriptedNode, connection: Connection
) -> None:
    """The next call would get the rest of its answers."""
    node.answer = lambda request: [JobState(False, 1, 2, 3, 4, 0, [], False)] * 2
    next(connection.stream(JobStart("load", "/")))
    assert not connection.usable


# ------------------------------------------------------------ the pool


def test_calls_one_after_the_other_share_a_connection(
    node: ScriptedNode, pool: Connections, welcomes: list[Welcome]
) -> None:
    for _ in range(3):
        assert pool.ask(ASK) == Done()
    assert (node.connections, len(welcomes)) == (1, 1)


def test_calls_at_one_time_have_connections_of_their_own(node: ScriptedNode, pool: Connections) -> None:
    together = threading.Barrier(3)

    def answer(request: Message) -> list[Answer]:
        together.wait(LIMIT_S)
        return [Done()]

    node.answer = answer
    threads = [threading.Thread(target=pool.ask, args=(ASK,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert node.connections == 3
    assert len(node.asked(Lookup)) == 3


def test_a_failure_gives_the_connection_back(node: ScriptedNode, pool: Connections) -> None:
    node.answer = lambda request: [frame.failure_of(HeadraceError("a"))]
    for _ in range(3):
        with pytest.raises(HeadraceError):
            pool.ask(ASK)
    assert node.connections == 1


def test_a_cancelled_call_sends_nothing(node: ScriptedNode, pool: Connections, cancelled: Cancel) -> None:
    with pytest.raises(CancelledByUserError):
        pool.ask(ASK, cancel=cancelled)
    assert node.connections == 0


def test_a_cancelled_connection_is_used_by_nobody_else(node: ScriptedNode, pool: Connections) -> None:
    pool.ask(ASK)
    node.answer = lambda request: []
    cancel = Cancel()
    threading.Timer(0.05, cancel.set).start()
    with pytest.raises(CancelledByUserError):
        pool.ask(ASK, cancel=cancel)
    node.answer = lambda request: [Done()]
    assert pool.ask(ASK) == Done()
    assert node.connections == 2
    cancel.close()


def test_a_cancel_ends_a_call_that_waits_for_its_node_to_come_back(
    node: ScriptedNode, pool: Connections
) -> None:
    node.stop()
    cancel = Cancel()
    threading.Timer(0.1, cancel.set).start()
    began_s = time.monotonic()
    with pytest.raises(CancelledByUserError):
        pool.ask(ASK, cancel=cancel)
    assert time.monotonic() - began_s < LIMIT_S / 2
    cancel.close()


def test_a_call_waits_for_a_node_that_restarts(
    node: ScriptedNode, pool: Connections, welcomes: list[Welcome]
) -> None:
    pool.ask(ASK)
    node.stop()
    threading.Timer(0.2, node.restart, [Welcome(2, "/other", [], 9)]).start()
    assert pool.ask(ASK) == Done()
    assert [welcome.generation for welcome in welcomes] == [1, 9]


def test_a_call_without_patience_still_uses_the_next_node(node: ScriptedNode, pool: Connections) -> None:
    """Its connection is of the node before, which says nothing about the next one."""
    pool.ask(ASK)
    node.restart()
    assert pool.ask(ASK, patience_s=0) == Done()
    node.stop()
    with pytest.raises(NodeUnavailableError):
        pool.ask(ASK, patience_s=0)


def test_a_call_waits_for_a_node_that_welcomes_nobody_for_a_while(
    node: ScriptedNode, pool: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.client.connection.WELCOME_LIMIT_S", 0.1)
    welcome, node.welcome = node.welcome, None

    def wake() -> None:
        wait_until(lambda: node.connections >= 2)
        node.welcome = welcome

    threading.Thread(target=wake, daemon=True).start()
    assert outcome_of(lambda: pool.ask(ASK)) == [Done()]


def test_a_call_to_a_node_that_became_silent_ends(
    node: ScriptedNode, pool: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.client.connection.WELCOME_LIMIT_S", 0.1)
    monkeypatch.setattr("headrace.client.connection.SILENCE_S", 0.05)
    pool.ask(ASK)
    node.welcome, node.answer = None, lambda request: []
    (error,) = outcome_of(lambda: pool.ask(ASK, patience_s=0))
    assert isinstance(error, NodeUnavailableError)
    assert len(node.asked(Lookup)) == 2
    assert node.left.acquire(timeout=LIMIT_S), "no descriptor is left"


def test_a_call_of_one_connection_to_a_node_that_became_silent_ends(
    node: ScriptedNode, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.client.connection.WELCOME_LIMIT_S", 0.1)
    monkeypatch.setattr("headrace.client.connection.SILENCE_S", 0.05)
    node.welcome, node.answer = None, lambda request: []
    (error,) = outcome_of(lambda: connection.ask(ASK))
    assert isinstance(error, NodeUnavailableError)


def test_a_call_that_takes_long_at_a_live_node_goes_on(
    node: ScriptedNode, pool: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node may wait for a slow origin for minutes. Checks of it are connections of their own."""
    monkeypatch.setattr("headrace.client.connection.SILENCE_S", 0.05)

    def answer(request: Message) -> list[Answer]:
        wait_until(lambda: node.connections >= 4)
        return [Done()]

    node.answer = answer
    assert outcome_of(lambda: pool.ask(ASK)) == [Done()]
    assert len(node.asked(Lookup)) == 1


def test_a_process_without_a_free_descriptor_waits_on(
    node: ScriptedNode, pool: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can't check the node, which may be alive."""
    monkeypatch.setattr("headrace.client.connection.SILENCE_S", 0.05)
    pool.ask(ASK)
    checks = 0

    class NoSocket(socket.socket):
        def __init__(self, *_: object) -> None:
            nonlocal checks
            checks += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def answer(request: Message) -> list[Answer]:
        wait_until(lambda: checks >= 3)
        return [Done()]

    node.answer = answer
    monkeypatch.setattr("headrace.client.connection.socket.socket", NoSocket)
    assert outcome_of(lambda: pool.ask(ASK)) == [Done()]
    monkeypatch.undo()


def test_a_stream_of_a_node_that_became_silent_ends(
    node: ScriptedNode, pool: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.client.connection.WELCOME_LIMIT_S", 0.1)
    monkeypatch.setattr("headrace.client.connection.SILENCE_S", 0.05)
    connection = pool.acquire()
    node.welcome = None
    node.answer = lambda request: [JobState(False, 1, 2, 3, 4, 0, [], False)]
    (error,) = outcome_of(lambda: list(connection.stream(OpenMany(ids=[1]), is_alive=pool.is_alive)))
    assert isinstance(error, NodeUnavailableError)


def test_a_cancel_ends_the_check_of_a_silent_node(
    node: ScriptedNode, pool: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.client.connection.WELCOME_LIMIT_S", 600.0)
    monkeypatch.setattr("headrace.client.connection.SILENCE_S", 0.05)
    pool.ask(ASK)
    node.welcome, node.answer = None, lambda request: []
    cancel = Cancel()

    def stop() -> None:
        wait_until(lambda: node.connections == 2)
        cancel.set()

    threading.Thread(target=stop, daemon=True).start()
    (error,) = outcome_of(lambda: pool.ask(ASK, cancel=cancel))
    assert isinstance(error, CancelledByUserError)
    for _ in range(2):
        assert node.left.acquire(timeout=LIMIT_S)
    cancel.close()


def test_a_connection_that_comes_back_to_a_closed_pool_is_closed(
    node: ScriptedNode, pool: Connections
) -> None:
    """The reports of a client go on for a moment when it is closed."""
    pool.close()
    assert pool.ask(ASK) == Done()
    assert node.left.acquire(timeout=30)


def test_a_forked_child_uses_no_connection_of_its_parent(node: ScriptedNode, pool: Connections) -> None:
    pool.ask(ASK)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if pool.ask(ASK) == Done() else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    wait_until(lambda: node.connections == 2)
    assert pool.ask(ASK) == Done()
    assert node.connections == 2
