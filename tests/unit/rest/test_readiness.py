"""Requests that ask whether the node is ready need no token: they take few threads from others."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import NodeUnavailableError
from headrace.rest import openapi, waiters
from headrace.rest.readiness import Readiness
from headrace.testing.waiting import wait_for
from headrace.wire.messages import Welcome
from tests.unit.client.scripted_node import ScriptedNode

JOIN_S = 60.0
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ScriptedNode]:
    scripted = ScriptedNode(str(tmp_path / "node.sock"), Welcome(2, "/none", [], 1))
    scripted.start()
    yield scripted
    scripted.stop()


class Checks:
    """Runs checks in threads, and keeps their outcomes."""

    def __init__(self, readiness: Readiness) -> None:
        self.readiness = readiness
        self.outcomes: list[str] = []
        self.threads: list[threading.Thread] = []

    def start(self, limit_s: float) -> threading.Thread:
        self.threads.append(threading.Thread(target=self._run, args=(limit_s,), daemon=True))
        self.threads[-1].start()
        return self.threads[-1]

    def _run(self, limit_s: float) -> None:
        try:
            self.readiness.check(limit_s)
            self.outcomes.append("")
        except NodeUnavailableError as error:
            self.outcomes.append(str(error))


def test_a_node_that_answers_is_ready(node: ScriptedNode) -> None:
    readiness = Readiness(node.path)
    readiness.check()
    node.stop()
    with pytest.raises(NodeUnavailableError):
        readiness.check()
    node.restart()
    readiness.check()
    assert readiness._waiters.count == 0


def test_a_node_that_welcomes_nobody_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit holds for the connection, too."""
    monkeypatch.setattr("headrace.client.connection.WELCOME_LIMIT_S", 600.0)
    path = str(tmp_path / "socket")
    checks = Checks(Readiness(path))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        checks.start(0.05).join(JOIN_S)
        assert len(checks.outcomes) == 1
        assert checks.outcomes[0]


def test_a_node_whose_queue_is_full_is_not_ready(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    checks = Checks(Readiness(path))
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(path)
        listener.listen(0)
        waiting.connect(path)
        checks.start(0.05).join(JOIN_S)
        assert len(checks.outcomes) == 1
        assert checks.outcomes[0]


def test_requests_at_one_time_share_a_check(node: ScriptedNode) -> None:
    checks = Checks(Readiness(node.path))
    checks.readiness.check()
    node.welcome = None
    for _ in range(5):
        checks.start(600.0)
    wait_for(lambda: checks.readiness._waiters.count == 5, limit_s=JOIN_S)
    wait_for(lambda: node.connections == 2, limit_s=JOIN_S)
    node.stop()
    for thread in checks.threads:
        thread.join(JOIN_S)
    assert len(checks.outcomes) == 5
    assert all(checks.outcomes)
    assert node.connections == 2


def test_few_requests_wait_for_a_node_that_hangs(node: ScriptedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "WAITING_MAX", 3)
    checks = Checks(Readiness(node.path))
    checks.readiness.check()
    node.welcome = None
    for _ in range(3):
        checks.start(600.0)
    wait_for(lambda: checks.readiness._waiters.count == 3, limit_s=JOIN_S)
    wait_for(lambda: node.connections == 2, limit_s=JOIN_S)
    checks.start(600.0).join(JOIN_S)
    assert checks.outcomes == [""], "it has the outcome of the last check at once"
    node.stop()
    for thread in checks.threads:
        thread.join(JOIN_S)
    assert len(checks.outcomes) == 4


def test_the_document_is_made_once() -> None:
    """It costs 30 ms, and strangers may request it."""
    assert openapi.text() is openapi.text()
