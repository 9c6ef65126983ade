"""The tables of the REST API are whole."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from headrace.base.errors import error_classes
from headrace.config.schema import CacheVolume, Config
from headrace.http.messages import Request
from headrace.node.member import api_url
from headrace.rest import metrics, openapi
from headrace.rest.files import path_of
from headrace.rest.gateway import route
from headrace.rest.problems import STATUS, RefusedError, problem_of
from headrace.wire import messages
from headrace.wire.api import OPERATIONS, etag_of

BY_OPERATION = {
    "MountAdd": "addMount",
    "MountRemove": "removeMount",
    "MountList": "listMounts",
    "StatusAsk": "status",
    "JobStart": "startJob",
    "JobList": "listJobs",
    "JobCancel": "cancelJob",
    "JobRetry": "retryJob",
    "SealList": "listSeals",
    "PlanList": "listPlans",
    "PolicyAsk": "getPolicy",
    "PolicySet": "setPolicy",
    "PolicyRollBack": "rollBackPolicy",
    "PolicyTry": "tryPolicy",
    "PolicyExplain": "explainPolicy",
    "ReportChanges": "receiveEvents",
    "TraceMount": "traceMount",
    "LocationAsk": "explainLocation",
    "PolicyAdvise": "advisePolicy",
    "Resolve": "getEntry",
    "List": "listEntries",
}
"""Requests to a node that the CLI sends, and what does the same by HTTP."""
OF_THE_HOST = {
    *(
        "Hello",
        "Lookup",
        "Open",
        "OpenMany",
        "FillRange",
        "Touch",
        "Forgot",
        "Subscribe",
        "Changed",
        "Secure",
        "AcquireLease",
        "BreakClaim",
        "Describe",
        "SealOpen",
        "LookupVersion",
        *("PlanStart", "PlanNames", "PlanExtents", "PlanSamples", "PlanOrder", "PlanProgress"),
        *("PlanLearn", "PlanEnd"),
    ),
    "GatewayCounts",
    "Shutdown",
}
"""They mean nothing without the host's index and cache files; a node is ended by its service manager."""


def request(method: str, path: str) -> Request:
    return Request(method, path.encode(), path.encode(), [], {}, keep_alive=True)


def test_every_error_has_a_status_and_is_told_as_a_problem() -> None:
    assert set(STATUS) == set(error_classes())
    for code, kind in error_classes().items():
        problem = problem_of(kind("what", why="why", hint="hint"))
        assert (problem.code, problem.status, problem.retryable) == (code, STATUS[code], kind.retryable)
        assert 400 <= problem.status < 600


def test_every_request_to_a_node_is_an_operation_or_of_the_host() -> None:
    asked = {kind.__name__ for kind in get_args(messages.Request)}
    assert asked == set(BY_OPERATION) | OF_THE_HOST
    assert set(BY_OPERATION.values()) <= {operation.name for operation in OPERATIONS}


def test_every_operation_is_routed_to_and_is_in_the_document() -> None:
    document = openapi.document()
    for operation in OPERATIONS:
        assert route(request(operation.method, operation.path.replace("{id}", "7")))[0] is operation
        assert document["paths"][operation.path][operation.method.lower()]["operationId"] == operation.name
    assert sum(len(methods) for methods in document["paths"].values()) == len(OPERATIONS)


def test_what_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(FileNotFoundError):
        route(request("GET", "/v2/status"))
    with pytest.raises(RefusedError) as refusal:
        route(request("PATCH", "/v1/content"))
    assert (refusal.value.status, refusal.value.headers) == (405, (("Allow", "GET, PUT"),))


@pytest.mark.parametrize("text", ["/a\0b", "/..", "/a/./b", "/" + "x" * 256, "/\ud800"])
def test_paths_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="path"):
        path_of(text)


def test_paths() -> None:
    assert [path_of(text) for text in ("/", "//a///b/", "/\udcff")] == [b"/", b"/a/b", b"/\xff"]


def test_versions_as_http_writes_them() -> None:
    assert [etag_of(text) for text in ('"e"', 'W/"e"', "1-2")] == ['"e"', 'W/"e"', '"1-2"']


def test_the_page_of_metrics() -> None:
    page = metrics.page(
        {"cache": {"used_bytes": 5}, "origin": {"mounts": {'/a"b\n': {"requests": 2}}}, "write": {}}
    )
    assert "headrace_cache_used_bytes 5\n" in page
    assert 'headrace_origin_requests_total{mount="/a\\"b\\n"} 2\n' in page
    assert "unpersisted" not in page
    assert len({metric.name for metric in metrics.METRICS}) == len(metrics.METRICS)


@pytest.mark.parametrize(
    ("address", "tls", "url"),
    [
        ("", "", ""),
        ("unix", "", ""),
        ("10.0.0.1:7480", "", "http://10.0.0.1:7480"),
        ("0.0.0.0:7480", "cert", "https://10.1.1.1:7480"),
        ("127.0.0.1:0", "", ""),
    ],
)
def test_where_other_hosts_find_it(tmp_path: Path, address: str, tls: str, url: str) -> None:
    config = Config(
        cache=[CacheVolume(str(tmp_path), 1 << 30)],
        run_folder=str(tmp_path),
        rest_address=address,
        tls_certificate=tls,
        tls_key=tls,
        tls_authority=tls,
    )
    assert api_url(config, "10.1.1.1") == url
