"""A cache disk below a gateway that fails, or is full: no defect of the gateway, and its log says what to do."""

from __future__ import annotations

import errno
import logging
import os
from collections import defaultdict
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.http.disk_errors import LOG_INTERVAL_S, DiskErrors
from headrace.http.messages import Response, parse_head
from headrace.rest.gateway import RestGateway
from headrace.s3.gateway import Access, S3Gateway
from headrace.webhdfs.gateway import WebHdfsGateway

PRIVATE = "/var/cache/private/file"


class FailingPaths:
    """A namespace whose disk fails. number: the error."""

    client = SimpleNamespace(upper="/none", local=SimpleNamespace(durable_puts=False), status=dict)

    def __init__(self, number: int) -> None:
        self._number = number

    def __getattr__(self, name: str) -> Any:
        return self._fail

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise OSError(self._number, os.strerror(self._number), PRIVATE)


def answers(interface: str, number: int) -> list[Response | None]:
    """Return what a gateway answers at first without waiting, and then."""
    paths = cast(Any, FailingPaths(number))
    gateway: Any
    if interface == "s3":
        gateway, target = S3Gateway(paths, Access(None, ())), "/bucket/key"
    elif interface == "webhdfs":
        gateway, target = WebHdfsGateway(paths, None, replicas=1, loopback=True), "/webhdfs/v1/f?op=OPEN"
    else:
        handlers = SimpleNamespace(table=defaultdict(lambda: paths.fail))
        gateway, target = RestGateway(cast(Any, handlers), None), "/v1/status"
    request = parse_head(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:9000\r\n\r\n".encode())
    return [gateway.cached(request), gateway.answer(request, iter(()))]


@pytest.mark.expected_warnings("gateway")
@pytest.mark.parametrize(
    ("interface", "number", "status"),
    [
        ("s3", errno.EIO, 503),
        ("s3", errno.ENOSPC, 503),
        ("webhdfs", errno.EIO, 403),
        ("webhdfs", errno.ENOSPC, 403),
        ("rest", errno.EIO, 503),
        ("rest", errno.ENOSPC, 507),
    ],
)
def test_an_error_of_the_disk_is_no_defect(
    interface: str, number: int, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The log had a trace, and the client heard of a defect."""
    at_once, response = answers(interface, number)
    assert at_once is None and response is not None and response.status == status
    assert b"defect" not in response.body and PRIVATE.encode() not in response.body
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.exc_info is None
    hint = "free some space" if number == errno.ENOSPC else "replace it"
    assert hint in record.getMessage() and PRIVATE in record.getMessage()


@pytest.mark.parametrize("interface", ["s3", "webhdfs", "rest"])
@pytest.mark.expected_warnings("gateway")
def test_another_error_is_a_defect(interface: str, caplog: pytest.LogCaptureFixture) -> None:
    response = answers(interface, errno.EBADF)[1]
    assert response is not None and response.status == 500
    assert all(record.exc_info for record in caplog.records if record.levelno >= logging.WARNING)


@pytest.mark.expected_warnings("disks")
def test_the_log_has_one_line_a_minute_for_each_number(caplog: pytest.LogCaptureFixture) -> None:
    times_s = [0.0]
    errors = DiskErrors(logging.getLogger("disks"), "s3", clock=lambda: times_s[-1])
    for time_s in (0.0, LOG_INTERVAL_S - 1, LOG_INTERVAL_S, LOG_INTERVAL_S + 1):
        times_s.append(time_s)
        for number in (errno.EIO, errno.EDQUOT):
            for _ in range(3):
                assert errors.answered(OSError(number, ""), b"/b/k") is not None
    assert len(caplog.records) == 4
    assert errors.answered(ValueError("a defect"), b"/b/k") is None


@pytest.mark.expected_warnings("disks")
@pytest.mark.parametrize(
    ("name", "shown"), [("/a/b", "/a/b"), (b"/a/\xff", "/a/\udcff"), (18, "-"), (b"a", "-"), (None, "-")]
)
def test_the_log_names_a_file_by_its_path(name: object, shown: str, caplog: pytest.LogCaptureFixture) -> None:
    DiskErrors(logging.getLogger("disks"), "s3").answered(OSError(errno.EIO, "", name), b"/b/k")
    assert f"file={shown} error=" in caplog.text
