"""Counts of a gateway's requests, as `headrace status` shows them."""

from __future__ import annotations

from collections.abc import Callable

from headrace.client.request_stats import CountedBody, RequestStats, StatsReporter
from headrace.wire.messages import GatewayCounts, OperationRow
from tests.integration.cli.host import wait_until
from tests.unit.client.scripted_node import ScriptedNode


def test_each_operation_has_its_counts() -> None:
    stats = RequestStats()
    for status, size_bytes in ((200, 10), (206, 5), (399, 0), (400, 1), (499, 1), (500, 2), (503, 2)):
        stats.add("get", status, size_bytes)
    stats.received("put", 7)
    stats.received("put", 8)
    assert stats.rows() == [OperationRow("get", 7, 2, 2, 0, 21), OperationRow("put", 0, 0, 0, 15, 0)]


def test_a_body_is_counted_as_far_as_it_is_read() -> None:
    body = CountedBody(iter([b"abc", b"", b"defg"]))
    assert next(body) == b"abc"
    assert body.count == 3
    assert list(body) == [b"", b"defg"]
    assert body.count == 7


def test_the_node_gets_the_counts_also_when_it_comes_later(start_node: Callable[[], ScriptedNode]) -> None:
    stats = RequestStats()
    stats.add("get", 200, 10)
    node = start_node()
    reporter = StatsReporter("s3", stats, node.path, address="127.0.0.1:1")
    wait_until(lambda: node.asked(GatewayCounts))
    stats.add("get", 200, 10)
    node.restart()
    wait_until(lambda: GatewayCounts in map(type, node.requests[-1:]) and len(node.asked(GatewayCounts)) > 1)
    reporter.stop()
    last = node.asked(GatewayCounts)[-1]
    assert isinstance(last, GatewayCounts)
    assert (last.kind, last.address, last.rows) == (
        "s3",
        "127.0.0.1:1",
        [OperationRow("get", 2, 0, 0, 0, 20)],
    )
