"""The warnings of services that fail a test: each line counts once, and for the test during which it was logged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import service_logs


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(service_logs, "_followed", {})  # hosts of other tests may still run
    service_logs.drop()
    path = tmp_path / "host/run/node.log"
    path.parent.mkdir(parents=True)
    path.touch()
    yield path
    service_logs.end(tmp_path)
    service_logs.drop()


def write(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def test_warnings_errors_and_traces_are_collected_once(log: Path) -> None:
    write(
        log,
        "2026 INFO a.b all is well\n2026 WARNING a.b full\n2026 ERROR a.b worse\nTraceback (most recent call\n",
    )
    service_logs.collect([log])
    service_logs.collect([log])
    lines = service_logs.take()
    assert lines == [
        "host/run/node.log: 2026 WARNING a.b full",
        "host/run/node.log: 2026 ERROR a.b worse",
        "host/run/node.log: Traceback (most recent call",
    ]
    assert service_logs.take() == []


def test_a_log_that_was_emptied_is_read_from_its_beginning(log: Path) -> None:
    """A lab empties the log when it starts a node again."""
    write(log, "INFO one line\nWARNING first\n")
    service_logs.collect([log])
    log.write_text("WARNING second\n")
    service_logs.collect([log])
    assert service_logs.take() == [
        "host/run/node.log: WARNING first",
        "host/run/node.log: WARNING second",
    ]


class FakeLab:
    """Logs something to a node's log when it ends."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def down(self) -> None:
        write(self._log, "WARNING a process was ended\n")


def test_the_nodes_of_a_lab_are_followed_until_it_ends(tmp_path: Path) -> None:
    service_logs.drop()
    logs = [tmp_path / f"lab/node-{number}/up.log" for number in (1, 2)]
    lab: Any = FakeLab(logs[0])
    with service_logs.following(lab, tmp_path / "lab"):
        assert service_logs.take() == []
        for log in logs:
            log.parent.mkdir(parents=True)
            log.write_text("WARNING first\n")
        assert len(service_logs.take()) == 2
        write(logs[1], "WARNING second\n")
    assert service_logs.take() == ["lab/node-2/up.log: WARNING second"]


def test_the_logs_of_a_shared_host_are_read_after_each_test(log: Path, tmp_path: Path) -> None:
    service_logs.follow(tmp_path, lambda: [log])
    write(log, "WARNING first\nWARNING sec")
    assert service_logs.take() == ["host/run/node.log: WARNING first"]
    write(log, "ond\n")
    assert service_logs.take() == ["host/run/node.log: WARNING second"]


def test_what_services_log_while_they_are_ended_counts_for_no_test(log: Path, tmp_path: Path) -> None:
    """Also where the same host is started again."""
    service_logs.follow(tmp_path, lambda: [log])
    write(log, "WARNING first\n")
    service_logs.collect([log])
    write(log, "WARNING another process died\n")
    service_logs.end(tmp_path)
    assert service_logs.take() == ["host/run/node.log: WARNING first"]
    service_logs.follow(tmp_path, lambda: [log])
    write(log, "WARNING second\n")
    assert service_logs.take() == ["host/run/node.log: WARNING second"]
