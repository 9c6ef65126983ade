"""The thread that reports: what the node forgets is sent again, and a forked process leaves the connection alone."""

from __future__ import annotations

import os
import socket
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.hook import reporter as reporter_module
from headrace.hook.frames import encoded
from headrace.hook.mounts import MountedPaths
from headrace.hook.reporter import ReportedStream, Reporter
from headrace.wire.frame import decode_request


class Node:
    """Answers plans with Done. refused: kinds of messages that it refuses so often. is_used: what it says of data
    sets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.received: list[str] = []
        self.refused: dict[str, int] = {}
        self.is_used = True
        self.heard = threading.Condition()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def wait_for(self, kind: str, count: int = 1) -> None:
        with self.heard:
            assert self.heard.wait_for(lambda: self.received.count(kind) >= count, timeout=20), self.received

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        try:
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
        except OSError:
            pass

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while head := stream.read(4):
                kind = type(decode_request(stream.read(int.from_bytes(head, "little")))).__name__
                left = self.refused.get(kind, 0)
                self.refused[kind] = left - 1
                answer = (
                    encoded("PlanNoted", used=self.is_used) if kind == "PlanProgress" else encoded("Done")
                )
                if left > 0:
                    answer = encoded("Failure", what="it", why="is unknown")
                with self.heard:
                    self.received.append(kind)
                    self.heard.notify_all()
                connection.sendall(answer)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(reporter_module, "INTERVAL_S", 0.02)
    node = Node(tmp_path / "node")
    yield node
    node.close()


def stream_of(**options: object) -> ReportedStream:
    fields = {"id": "a", "key": "k", "files": None, "samples": 3, "batch_size": 1, "rank": 0, "world": 1}
    stream = ReportedStream(**(fields | options), index_sampler=lambda: None)  # type: ignore[arg-type]
    stream.begin(array("I", [2, 0, 1]))
    return stream


def test_a_stream_that_the_node_has_forgotten_is_sent_again(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.refused["PlanProgress"] = 2
    reporter = Reporter(str(node.path), "job", MountedPaths([]))
    reporter.add(stream_of())
    node.wait_for("PlanProgress", 6)
    assert node.received.count("PlanStart") == node.received.count("PlanOrder") == 3
    assert capsys.readouterr().err == ""
    reporter.stop()
    node.wait_for("PlanEnd")


def test_a_node_that_refuses_each_time_is_left_alone(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.refused["PlanProgress"] = 1000
    reporter = Reporter(str(node.path), "job", MountedPaths([]))
    reporter.add(stream_of())
    node.wait_for("PlanProgress", 9)
    reporter.stop()
    assert node.received.count("PlanStart") <= 9
    assert "the node takes no plan" in capsys.readouterr().err


def test_a_data_set_outside_of_all_mounts_is_reported_rarely(
    node: Node, monkeypatch: pytest.MonkeyPatch
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
    node: Node, capsys: pytest.CaptureFixture[str]
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


def test_a_refused_greeting_ends_the_thread_quietly(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.refused["Hello"] = 1000
    reporter = Reporter(str(node.path), "job", MountedPaths([]))
    reporter.add(stream_of())
    node.wait_for("Hello")
    reporter._thread.join(20)
    assert "the job runs without a plan" in capsys.readouterr().err


def test_a_forked_process_ends_no_stream_of_its_parent(node: Node) -> None:
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
