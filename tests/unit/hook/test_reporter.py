"""The thread that reports: what the node forgets is sent again, and a forked process leaves the connection alone."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DistributedSampler

from headrace.hook import reporter as reporter_module
from headrace.hook.mounts import MountedPaths
from headrace.hook.reporter import ReportedStream, Reporter
from tests.unit.hook.answering_node import AnsweringNode


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AnsweringNode]:
    monkeypatch.setattr(reporter_module, "INTERVAL_S", 0.02)
    node = AnsweringNode(tmp_path / "node")
    yield node
    node.close()


def stream_of(**options: object) -> ReportedStream:
    fields = {"id": "a", "key": "k", "files": None, "samples": 3, "batch_size": 1, "rank": 0, "world": 1}
    stream = ReportedStream(**(fields | options), index_sampler=lambda: None)  # type: ignore[arg-type]
    stream.begin(array("I", [2, 0, 1]))
    return stream


def test_a_stream_that_the_node_has_forgotten_is_sent_again(
    node: AnsweringNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.refused["PlanProgress"] = 2
    reporter = Reporter(str(node.path), "job", MountedPaths([]))
    reporter.add(stream_of())
    node.wait_for("PlanProgress", 6)
    assert node.received.count("PlanStart") == node.received.count("PlanOrder") == 3
    assert capsys.readouterr().err == ""
    reporter.stop()
    node.wait_for("PlanEnd")


def test_a_node_that_refuses_each_time_is_left_alone(
    node: AnsweringNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.refused["PlanProgress"] = 1000
    reporter = Reporter(str(node.path), "job", MountedPaths([]))
    reporter.add(stream_of())
    node.wait_for("PlanProgress", 9)
    reporter.stop()
    assert node.received.count("PlanStart") <= 9
    assert "the node takes no plan" in capsys.readouterr().err


def test_a_data_set_outside_of_all_mounts_is_reported_rarely(
    node: AnsweringNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "IDLE_INTERVAL_S", 60.0)
    node.is_used = False
    reporter = Reporter(str(node.path), "job", MountedPaths([]))
    reporter.add(stream_of())
    for count in range(1, 5):
        node.wait_for("PlanProgress", count)
        reporter.wake()
    node.wait_for("PlanProgress", 5)
    node.is_used = True
    assert node.received.count("PlanProgress") == 5
    reporter.wake()
    node.wait_for("PlanProgress", 10)
    reporter.stop()
    node.wait_for("PlanEnd")


def test_a_data_set_that_fails_ends_its_own_stream_only(
    node: AnsweringNode, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(list[str]):
        def __getitem__(self, index: object) -> str:  # type: ignore[override]
            raise RuntimeError("of the program")

    reporter = Reporter(str(node.path), "job", MountedPaths([]))
    reporter.add(stream_of(id="b", files=Failing("abc")))
    reporter.add(stream_of())
    node.wait_for("PlanProgress", 2)
    reporter.stop()
    assert "of the program" in capsys.readouterr().err


def test_a_refused_greeting_ends_the_thread_quietly(
    node: AnsweringNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.refused["Hello"] = 1000
    reporter = Reporter(str(node.path), "job", MountedPaths([]))
    reporter.add(stream_of())
    node.wait_for("Hello")
    assert reporter._ended.wait(60)
    assert "the job runs without a plan" in capsys.readouterr().err


def test_a_forked_process_ends_no_stream_of_its_parent(node: AnsweringNode) -> None:
    reporter = Reporter(str(node.path), "job", MountedPaths([]))
    reporter.add(stream_of())
    node.wait_for("PlanProgress")
    child = os.fork()
    if child == 0:
        reporter.stop()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    node.wait_for("PlanProgress", node.received.count("PlanProgress") + 3)
    assert "PlanEnd" not in node.received
    reporter.stop()


def test_a_forked_process_has_no_connection_of_its_parent(node: AnsweringNode) -> None:
    """It may close all descriptors, and open files that then have their numbers."""
    reporter = Reporter(str(node.path), "job", MountedPaths([]))
    reporter.add(stream_of())
    node.wait_for("PlanProgress")
    assert reporter._connection is not None
    child = os.fork()
    if child == 0:
        os._exit(reporter._connection._socket.fileno() + 1)
    assert os.waitpid(child, 0)[1] == 0
    reporter.stop()


def test_a_program_may_close_the_connection(
    node: AnsweringNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its descriptor is that of another file then, which is left alone. The reporter connects again."""
    monkeypatch.setattr(reporter_module, "RETRY_S", 0.02)
    reporter = Reporter(str(node.path), "job", MountedPaths([]))
    reporter.add(stream_of())
    node.wait_for("PlanProgress")
    connection = reporter._connection
    assert connection is not None
    descriptor = connection._socket.fileno()
    with open(tmp_path / "own", "wb") as own:
        os.dup2(own.fileno(), descriptor)
        node.wait_for("Hello", 2)
        node.wait_for("PlanProgress", node.received.count("PlanProgress") + 1)
        assert os.path.sameopenfile(descriptor, own.fileno())
    os.close(descriptor)
    reporter.stop()
    assert (tmp_path / "own").read_bytes() == b""


def test_a_sampler_that_is_never_set_to_an_epoch_is_planned_with_the_order_that_it_repeats(
    node: AnsweringNode,
) -> None:
    """Many programs do not call `set_epoch`: then the next number of the epoch says nothing."""
    sampler: Any = DistributedSampler(range(40), num_replicas=2, rank=0)  # type: ignore[arg-type]
    order = array("I", sampler)
    stream = stream_of(samples=40)
    stream.index_sampler = lambda: sampler
    reporter = Reporter(str(node.path), "job", MountedPaths([]))
    reporter.add(stream)
    last: bytes = b""
    for epoch in (1, 2):
        stream.begin(order)
        stream.take(1)
        reporter.wake()
        last = node.wait_for_order(epoch + 1)
    reporter.stop()
    assert last == order.tobytes()
    assert node.orders_of(2) != [last]
