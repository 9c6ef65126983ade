"""^C during a seal tells whether the seal was made."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.base.errors import CancelledByUserError, NodeUnavailableError
from headrace.cli import request
from headrace.cli.job_progress import watch
from headrace.client.connection import Connection
from headrace.wire.message import Message
from headrace.wire.messages import JobStart, JobState


class Interrupted(Connection):
    """A connection to a node; ^C comes during its job. last: the state that the node still sends."""

    def __init__(self, last: JobState | None, *, times: int = 1) -> None:
        self._last, self._times = last, times
        self.is_ended = False

    def stream(self, request: Message, **_: Any) -> Iterator[Any]:
        for _time in range(self._times):
            os.kill(os.getpid(), signal.SIGINT)
        assert self.is_ended
        if self._last is None:
            raise NodeUnavailableError("no node answers", why="it closed the connection")
        yield self._last

    def end_request(self) -> None:
        self.is_ended = True

    def close(self) -> None:
        return None


def interrupt(monkeypatch: pytest.MonkeyPatch, kind: str, connection: Interrupted) -> str:
    monkeypatch.setattr(request, "connection_to", lambda _: connection)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(CancelledByUserError) as raised:
        watch(JobStart(kind, "/d", {"seal": "a@2"}), "socket", (kind, "/d"), is_shown=False)
    assert signal.getsignal(signal.SIGINT) is before
    return str(raised.value)


def test_a_job_that_was_cancelled_in_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cancelled; finished files" in interrupt(monkeypatch, "seal", Interrupted(None))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("seal", "seal a@2 was made before"),
        ("pull-seal", "seal a@2 was made before"),
        ("complete-seal", "seal a@2 was complete before"),
        ("unseal", "seal a@2 was removed before"),
    ],
)
def test_a_job_that_was_cancelled_too_late_says_what_holds(
    monkeypatch: pytest.MonkeyPatch, kind: str, words: str
) -> None:
    data = {"a@2": "id"} if kind == "seal" else {}
    last = JobState(True, 3, 3, 0, 0, 0, [], False, data=data)
    assert words in interrupt(monkeypatch, kind, Interrupted(last))


def test_a_second_interrupt_does_not_wait_for_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "has not said yet" in interrupt(monkeypatch, "seal", Interrupted(None, times=2))
