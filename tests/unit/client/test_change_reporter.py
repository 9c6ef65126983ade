"""Reports of changed paths arrive in order, once, and as soon as a node answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace.base.errors import HeadraceError
from headrace.client import change_reporter
from headrace.client.change_reporter import ChangeReporter
from headrace.client.connection import Connections
from headrace.wire import frame
from headrace.wire.message import Message
from headrace.wire.messages import Answer, Changed, Done
from tests.integration.cli.host import wait_until
from tests.unit.client.scripted_node import ScriptedNode


@pytest.fixture
def reporter(node: ScriptedNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChangeReporter]:
    monkeypatch.setattr(change_reporter, "PAUSE_S", 0.0)
    pool = Connections(node.path, role="sdk", patience_s=30, on_welcome=lambda welcome: None)
    changes = ChangeReporter(pool)
    yield changes
    changes.close(wait_s=30)
    pool.close()


def reported(node: ScriptedNode, field: Callable[[Changed], list[bytes]]) -> list[bytes]:
    return [path for change in node.asked(Changed) if isinstance(change, Changed) for path in field(change)]


def test_paths_arrive_in_order_with_their_source(node: ScriptedNode, reporter: ChangeReporter) -> None:
    paths = [b"/%d" % number for number in range(200)]
    for path in paths:
        reporter.add([path])
    reporter.add([b"/open"], begun=True)
    reporter.close(wait_s=30)
    assert reported(node, lambda change: change.paths) == paths
    assert reported(node, lambda change: change.begun) == [b"/open"]
    sources = {change.source for change in node.asked(Changed) if isinstance(change, Changed)}
    assert sources == {reporter.source} and reporter.source > 0


def test_a_path_that_changes_often_is_in_a_message_once(node: ScriptedNode, reporter: ChangeReporter) -> None:
    reporter.add([b"/a", b"/b", b"/a"])
    reporter.close(wait_s=30)
    assert reported(node, lambda change: change.paths) == [b"/a", b"/b"]


def test_a_report_is_repeated_until_the_node_takes_it(node: ScriptedNode, reporter: ChangeReporter) -> None:
    refusals = 3

    def answer(request: Message) -> list[Answer]:
        nonlocal refusals
        refusals -= 1
        return [Done()] if refusals < 0 else [frame.failure_of(HeadraceError("a"))]

    node.answer = answer
    reporter.add([b"/a"])
    reporter.add([b"/b"])
    reporter.close(wait_s=30)
    paths = reported(node, lambda change: change.paths)
    assert paths.count(b"/a") == 4 and paths.index(b"/b") > 0


def test_a_node_that_is_away_gets_the_reports_when_it_is_back(
    node: ScriptedNode, reporter: ChangeReporter
) -> None:
    node.stop()
    reporter.add([b"/a"])
    node.restart()
    wait_until(lambda: reported(node, lambda change: change.paths) == [b"/a"])
