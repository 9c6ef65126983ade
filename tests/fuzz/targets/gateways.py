"""Requests to WebHDFS and to REST, and what a remote library reads of REST's answers."""

from __future__ import annotations

import json

import msgspec

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.namespace_path import check_path
from headrace.http.errors import BadRequestError
from headrace.http.messages import HEAD_END, Request, parse_head
from headrace.rest import files, gateway
from headrace.rest.problems import RefusedError, problem_of
from headrace.webhdfs import routes
from headrace.webhdfs.errors import RemoteError
from headrace.wire import api
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.mutations import mutate_text, mutate_tree
from tests.fuzz.targets.http import HEAD_WORDS

_SIZE_BYTES = 1000


def _webhdfs(data: bytes) -> None:
    request = parse_head(data + HEAD_END)
    call = routes.route(request)
    check_names(call.path)
    assert isinstance(call.user, str)
    where = call.url_of_data()
    assert "\r" not in where and "\n" not in where
    for look in (
        lambda: call.flag("noredirect"),
        lambda: 0 <= call.at_least_zero("offset", 0) < 10**18,
        lambda: abs(call.number("modificationtime", -1)) < 10**18,
        lambda: 0 <= call.permission(0o755) <= 0o1777,
        lambda: check_names(call.path_of("destination")),
    ):
        try:
            assert look() is not False or look() is False
        except RemoteError:
            continue


def check_names(path: bytes) -> None:
    """It stays below the directory that it is joined to."""
    if len(path) <= 4095:
        check_path(path)
    assert path == b"/" or not {b"", b".", b".."} & set(path[1:].split(b"/"))


def _rest(data: bytes) -> None:
    """A head, an empty line, and the body."""
    head, _, body = data.partition(HEAD_END)
    request = parse_head(head + HEAD_END)
    try:
        operation, captures = gateway.route(request)
        query = gateway._query_of(request, operation, captures)
        value = gateway._body_of(request, operation, iter([body]))
    except RefusedError as refusal:
        gateway.encode(problem_of(refusal.error, refusal.status))
        return
    except HeadraceError as error:
        gateway.encode(problem_of(error))
        return
    for asked in (query, value):
        for name in ("path", "source", "target"):
            text = getattr(asked, name, None)
            if text is not None:
                _path(text)
    _range(request)


def _path(text: str) -> None:
    try:
        path = files.path_of(text)
    except UsageError:
        return
    assert path.startswith(b"/") and not {b"", b".", b".."} & set(path[1:].split(b"/")) - {path[1:]}
    check_names(path)


def _range(request: Request) -> None:
    try:
        asked = files._requested_range(request.header("range"), _SIZE_BYTES, "/x")
    except RefusedError:
        return
    assert asked is None or 0 <= asked[0] < asked[1] <= _SIZE_BYTES


def _answer(data: bytes) -> None:
    """Decode it as vfs/remote/cluster_client.py takes it, of every kind."""
    for kind in (
        api.ApiEntries,
        api.ApiJob,
        api.ApiJobs,
        api.Cluster,
        api.ApiMounts,
        api.ApiStatus,
        api.ApiEntry,
        api.Problem,
    ):
        try:
            value = msgspec.convert(json.loads(data), kind)
        except (ValueError, RecursionError):
            continue
        gateway.encode(value)


_HEADS = [
    b"GET /webhdfs/v1/a%20b/c?op=OPEN&user.name=u&offset=5&length=10&noredirect=true HTTP/1.1\r\nHost: h:9870\r\n",
    b"PUT /webhdfs/v1/a?op=CREATE&overwrite=true&permission=644&createflag=A,B&data=true HTTP/1.1\r\nHost: h\r\n",
    b"PUT /webhdfs/v1/a?op=RENAME&destination=%2Fb%2Fc&renameoptions=OVERWRITE HTTP/1.1\r\nHost: h\r\n",
    b"PUT /webhdfs/v1/?op=SETTIMES&modificationtime=5&accesstime=-1&doas=x HTTP/1.1\r\nHost: h\r\n"
    b"X-Forwarded-Proto: https\r\n",
    b"DELETE http://h/webhdfs/v1/a?op=DELETE&recursive=true&delegation=x HTTP/1.1\r\nHost: h\r\n",
    b"GET /webhdfs/v1/a?op=LISTSTATUS_BATCH&startAfter=b HTTP/1.1\r\nHost: h\r\n",
]
_JSON = b"Host: h\r\nContent-Type: application/json\r\n\r\n"
_ASKED = [
    b"GET /v1/entries?path=/a%2Fb&after=x&limit=10 HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /v1/content?path=%2Fa HTTP/1.1\r\nHost: h\r\nRange: bytes=5-10\r\nHeadrace-Checksums: xxh3-64\r\n\r\n",
    b"GET /v1/jobs/abc?wait_s=1.5 HTTP/1.1\r\nHost: h\r\n\r\n",
    b"POST /v1/jobs/a%2Fb/retry HTTP/1.1\r\nHost: h\r\n\r\n",
    b"POST /v1/mounts HTTP/1.1\r\n"
    + _JSON
    + b'{"path": "/data", "url": "s3://b", "options": {"region": "x"}}',
    b"POST /v1/jobs HTTP/1.1\r\n" + _JSON + b'{"kind": "load", "path": "/", "options": {"replicas": "2"}}',
    b"POST /v1/rename HTTP/1.1\r\n" + _JSON + b'{"source": "/a/../b", "target": "/\\udc80"}',
]
_ROW = {"path": "/a", "kind": "file", "size_bytes": 3, "mtime_ns": 5, "version": '"e"'}
_MEMBER = {"id": "n", "api": "http://h:1", "zone": "z", "capacity_bytes": 5, "draining": False}
_JOB = {
    "id": "j", "kind": "load", "path": "/", "state": "running", "scope": "node", "options": {}, "files_done": 1,
    "files_total": 2, "bytes_done": 3, "bytes_total": 4, "failed_files": 1, "listing": True,
    "failed": [{"path": "/a", "reason": "x"}],
}  # fmt: skip
_PROBLEM = {"type": "t", "title": "t", "status": 404, "detail": "d", "code": "path.not_found"}
_TOLD = [
    {"entries": [_ROW], "next": "b"},
    _JOB,
    {"jobs": [_JOB]},
    {"node": "n", "replicas": 2, "members": [_MEMBER]},
    {"mounts": [{"path": "/a", "url": "s3://b", "sync_interval_s": 1.5}]},
    {"status": {"a": [1, {"b": None}]}},
    _PROBLEM,
]

FUZZERS = [
    Fuzzer(
        "webhdfs-requests",
        "heads of WebHDFS requests: paths and parameters (webhdfs/routes.py)",
        _webhdfs,
        (BadRequestError, RemoteError),
        _HEADS,
        words=[
            *HEAD_WORDS,
            b"op=",
            b"OPEN",
            b"/webhdfs/v1/",
            b"destination=",
            b"permission=1777",
            b"offset=-1",
        ],
        mutate=mutate_text,
        input_bytes_max=20_000,
    ),
    Fuzzer(
        "rest-requests",
        "REST requests: operations, parameters, bodies, paths, ranges (rest/)",
        _rest,
        (BadRequestError,),
        _ASKED,
        words=[
            *HEAD_WORDS,
            b"/v1/",
            b"path=",
            b"limit=10000",
            b'"options"',
            b"\\udc80",
            b"\\ud800",
            b"[[[[",
            b"1e999",
        ],
        mutate=mutate_text,
        input_bytes_max=20_000,
    ),
    Fuzzer(
        "rest-answers",
        "JSON that a node answers to the library of another host (vfs/remote/)",
        _answer,
        (),
        [json.dumps(answer).encode() for answer in _TOLD],
        words=[b'"path"', b"\\ud800", b"NaN", b"Infinity", b"1e999"],
        mutate=mutate_tree(json.loads, lambda tree: json.dumps(tree).encode()),
    ),
]
