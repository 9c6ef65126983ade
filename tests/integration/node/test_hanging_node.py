"""A node that is stopped: calls end with the patience of their client, and go on when the node does."""

from __future__ import annotations

import os
import signal

import pytest

from headrace.base.errors import NodeUnavailableError
from headrace.client.node_client import connect
from headrace.rest.readiness import Readiness
from headrace.testing.waiting import outcome_of
from tests.integration.node.node_process import NodeProcess, whole

LIMIT_S = 60.0


def test_a_stopped_node_ends_calls_and_goes_on(running: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect(running.config.socket_path)
    assert whole(client, b"/small") == (running.source / "small").read_bytes()
    readiness = Readiness(running.config.socket_path)
    readiness.check()
    with monkeypatch.context() as patch:
        patch.setattr("headrace.client.connection.SILENCE_S", 0.5)
        patch.setattr("headrace.client.connection.WELCOME_LIMIT_S", 0.5)
        os.kill(running.process.pid, signal.SIGSTOP)
        try:
            for call in (lambda: client.resolve(b"/large"), lambda: readiness.check(0.5)):
                (error,) = outcome_of(call)
                assert isinstance(error, NodeUnavailableError)
        finally:
            os.kill(running.process.pid, signal.SIGCONT)
    readiness.check(LIMIT_S)
    assert whole(client, b"/large") == (running.source / "large").read_bytes()
    client.close()
