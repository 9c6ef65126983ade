"""Accesses that were noted before the end of a process's reports reach the node."""

from __future__ import annotations

import threading

import pytest

from headrace.client import access_reporter
from headrace.client.access_reporter import AccessReporter
from headrace.client.connection import Connections
from headrace.testing.waiting import LIMIT_S
from headrace.wire.messages import Touch


class _SlowConnections(Connections):
    """Keeps what is sent. A message arrives once the test lets it."""

    def __init__(self) -> None:
        self.sent: list[Touch] = []
        self.is_sending, self.may_arrive = threading.Semaphore(0), threading.Event()

    def ask(self, request: object, **_: object) -> object:  # type: ignore[override]
        assert isinstance(request, Touch)
        self.sent.append(request)
        self.is_sending.release()
        assert self.may_arrive.wait(LIMIT_S)
        return None


def test_what_is_noted_while_a_message_is_sent_is_sent_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_reporter, "INTERVAL_S", 0.001)
    connections = _SlowConnections()
    reporter = AccessReporter(connections)
    reporter.touch(5)
    assert connections.is_sending.acquire(timeout=LIMIT_S)
    reporter.touch(6)
    reporter.close()
    connections.may_arrive.set()
    assert connections.is_sending.acquire(timeout=LIMIT_S)
    assert [touch.ids for touch in connections.sent] == [[5], [6]]
