"""Jobs over the REST API: requests that wait for a job leave threads to others."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.base.errors import NodeUnavailableError, PathNotFoundError, UsageError
from headrace.rest import waiters
from headrace.rest.jobs import JobOperations
from headrace.testing.waiting import wait_for
from headrace.wire.api import ApiJob, NewJob
from headrace.wire.messages import JobList, JobRow, JobRows, Welcome
from tests.unit.client.scripted_node import ScriptedNode

WAIT_S = 600.0
JOIN_S = 60.0
pytestmark = pytest.mark.timeout(300)


class FakeNode:
    """Has one job of the cluster, which runs until `ended` is set, or until so many requests came."""

    def __init__(self, requests_max: int = 1 << 30) -> None:
        self.requests_max = requests_max
        self.ended = threading.Event()
        self.requests: list[object] = []

    def ask(self, request: object) -> JobRows:
        self.requests.append(request)
        if len(self.requests) >= self.requests_max:
            self.ended.set()
        if request not in (JobList(), JobList(id="job-1")):
            raise UsageError("job", why="there is no such job")
        return JobRows([row("done" if self.ended.is_set() else "running")])


def row(state: str) -> JobRow:
    return JobRow(
        id="job-1",
        kind="load",
        path="/d",
        options={},
        node="a",
        state=state,
        attempt=1,
        files_done=0,
        files_total=0,
        bytes_done=0,
        bytes_total=0,
        failed_files=0,
        failed=[],
        listing=True,
        bytes_s=0.0,
        eta_s=None,
        took_s=0.0,
        files_by_node={},
    )


def own_job(operations: JobOperations) -> threading.Event:
    """Add a job of this node, which runs until the event that is returned is set."""
    ended = threading.Event()
    running = SimpleNamespace(ended=ended, cancel=threading.Event(), job=SimpleNamespace(state="running"))
    operations._own["node-1"] = cast(Any, running)
    return ended


def test_a_request_for_one_job_asks_the_node_for_no_other_one() -> None:
    """All jobs together have megabytes of failures, and requests that wait ask four times a second."""
    node = FakeNode(requests_max=3)
    operations = JobOperations(cast(Any, node))
    assert operations.get("job-1", WAIT_S).state == "done"
    assert node.requests == [JobList(id="job-1")] * 3
    with pytest.raises(PathNotFoundError):
        operations.get("job-2", 0.0)
    assert [job.id for job in operations.all()] == ["job-1"]


def test_a_job_of_a_node_that_hangs_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request for one held a thread for as long as the node hung."""
    monkeypatch.setattr("headrace.client.connection.SILENCE_S", 0.05)
    monkeypatch.setattr("headrace.client.connection.WELCOME_LIMIT_S", 0.5)
    node = ScriptedNode(str(tmp_path / "node.sock"), Welcome(2, "/none", [], 1))
    node.start()

    def hang(request: object) -> list[Any]:
        node.welcome = None
        return []

    node.answer = hang
    operations = JobOperations(cast(Any, SimpleNamespace(socket=node.path)))
    errors: list[NodeUnavailableError] = []

    def start() -> None:
        try:
            operations.start(NewJob("fsck", "/"))
        except NodeUnavailableError as error:
            errors.append(error)

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    thread.join(JOIN_S)
    assert len(errors) == 1
    assert node.left.acquire(timeout=JOIN_S), "its connection is closed"
    node.stop()


@pytest.mark.parametrize("id", ["job-1", "node-1"])
def test_requests_that_wait_for_a_job_leave_threads_to_others(
    id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "WAITING_MAX", 3)
    node = FakeNode()
    operations = JobOperations(cast(Any, node))
    own_ended = own_job(operations)
    answers: list[ApiJob] = []
    threads = [
        threading.Thread(target=lambda: answers.append(operations.get(id, WAIT_S)), daemon=True)
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    wait_for(lambda: operations._waiters.count == 3, limit_s=JOIN_S)
    beyond = threading.Thread(target=lambda: answers.append(operations.get(id, WAIT_S)), daemon=True)
    beyond.start()
    beyond.join(JOIN_S)
    assert [job.state for job in answers] == ["running"], "it is answered at once, with the state"
    assert operations.get(id, 0.0).state == "running"
    assert operations._waiters.count == 3
    node.ended.set()
    own_ended.set()
    for thread in threads:
        thread.join(JOIN_S)
    assert len(answers) == 4
    assert operations._waiters.count == 0


def test_requests_that_cancel_a_job_leave_threads_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "WAITING_MAX", 1)
    monkeypatch.setattr("headrace.rest.jobs.CANCEL_S", WAIT_S)
    operations = JobOperations(cast(Any, FakeNode()))
    ended = own_job(operations)
    threads = [threading.Thread(target=operations.cancel, args=("node-1",), daemon=True) for _ in range(2)]
    threads[0].start()
    wait_for(lambda: operations._waiters.count == 1, limit_s=JOIN_S)
    threads[1].start()
    threads[1].join(JOIN_S)
    assert not threads[1].is_alive()
    assert threads[0].is_alive()
    ended.set()
    threads[0].join(JOIN_S)
    assert not threads[0].is_alive()
