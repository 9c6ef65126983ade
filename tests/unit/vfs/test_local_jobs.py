"""A job waits for a node that restarts, as other calls do, and is never begun twice."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from headrace.base.errors import NodeUnavailableError
from headrace.vfs.local_vfs import LocalVfs
from headrace.wire.message import Message
from headrace.wire.messages import Answer, Done, JobStart, JobState
from tests.unit.client.scripted_node import ScriptedNode

OpenVfs = Callable[..., LocalVfs]
JOB = JobStart("load", "/")
STATES = [JobState(done, 1, 2, 3, 4, 0, [], False) for done in (False, True)]


def answers(request: Message) -> list[Answer]:
    return list(STATES) if isinstance(request, JobStart) else [Done()]


def test_a_job_waits_for_a_node_that_restarts(vfs: LocalVfs, nodes: list[ScriptedNode]) -> None:
    nodes[0].answer = answers
    nodes[0].stop()
    restart = threading.Timer(0.2, nodes[0].restart)
    restart.start()
    try:
        assert list(vfs.run_job(JOB)) == STATES
    finally:
        restart.join()
    assert nodes[0].asked(JobStart) == [JOB]


def test_a_job_that_may_have_begun_is_not_begun_again(vfs: LocalVfs, nodes: list[ScriptedNode]) -> None:
    nodes[0].raw = b""  # it ends without an answer
    with pytest.raises(NodeUnavailableError):
        list(vfs.run_job(JOB))
    assert nodes[0].asked(JobStart) == [JOB]
