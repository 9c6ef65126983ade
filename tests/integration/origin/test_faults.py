"""These tests show what a spoilt answer comes out as, with the real client and the wrappers that every origin has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    DeadlineExceededError,
    HeadraceError,
    OriginDeniedError,
    OriginUnavailableError,
)
from headrace.base.model import ROOT_ID, ObjectInfo
from headrace.namespace.mounts import Mount
from headrace.origin.factory import build_origin, check_origin
from headrace.origin.hedge import LEAST_S
from headrace.origin.origin import Origin
from headrace.testing.servers import S3Server, free_ports
from headrace.testing.waiting import until
from tests.conformance.origin.origin_suite import listing_of, opened, soon
from tests.fault_proxy import FaultProxy
from tests.unit.namespace.tree_fixture import NamespaceFixture

SIZE = 600_000
DATA = bytes(range(250)) * (SIZE // 250)
SOON_S = 10.0
"""Well before soon(), on a machine that does other things."""
Call = Callable[[Origin, ObjectInfo, Deadline], Awaitable[object]]


async def _head(origin: Origin, info: ObjectInfo, deadline: Deadline) -> object:
    return await origin.head(info.key, deadline=deadline)


async def _read(origin: Origin, info: ObjectInfo, deadline: Deadline) -> object:
    arrived = await origin.read_range(info.key, 0, SIZE, version=info.version, deadline=deadline)
    assert bytes(arrived.body) == DATA
    return arrived.body


async def _list(origin: Origin, info: ObjectInfo, deadline: Deadline) -> object:
    names = [row.key async for page in origin.list_directory("", deadline=deadline) for row in page.objects]
    assert names == [info.key]
    return names


CALLS = {"head": _head, "read": _read, "list": _list}


def attach(proxy: FaultProxy) -> Origin:
    return build_origin(proxy.url("faults"), proxy.options())


@pytest.fixture(params=["head", "read", "list"])
def call(request: pytest.FixtureRequest) -> Call:
    return CALLS[request.param]


async def spoil(
    proxy: FaultProxy, mode: str, call: Call, within_s: float
) -> tuple[HeadraceError | None, float]:
    """The error of a call under that mode and how long it took; the origin works again after it."""
    proxy.server.put("faults/f", DATA)
    async with opened(attach(proxy)) as origin:
        info = await origin.head("f", deadline=soon())
        proxy.mode = mode
        begun_s, failure = time.monotonic(), None
        try:
            await call(origin, info, Deadline.after(within_s))
        except HeadraceError as error:
            failure = error
        took_s = time.monotonic() - begun_s
        proxy.mode = "pass"
        await call(origin, info, soon())
        return failure, took_s


@pytest.mark.parametrize("mode", ["500", "503", "429", "close"])
async def test_a_failing_server_is_unavailable_within_the_deadline(
    proxy: FaultProxy, mode: str, call: Call
) -> None:
    error, took_s = await spoil(proxy, mode, call, 0.4)
    assert isinstance(error, OriginUnavailableError | DeadlineExceededError), error
    assert error.retryable
    assert took_s < SOON_S


async def test_half_a_body_is_an_error_and_never_data(proxy: FaultProxy) -> None:
    error, took_s = await spoil(proxy, "half", _read, 0.4)
    assert isinstance(error, OriginUnavailableError | DeadlineExceededError), error
    assert took_s < SOON_S


async def test_half_a_listing_is_an_error_and_never_a_listing(proxy: FaultProxy) -> None:
    error, took_s = await spoil(proxy, "half", _list, 0.4)
    assert isinstance(error, OriginUnavailableError | DeadlineExceededError), error
    assert took_s < SOON_S


async def test_a_page_of_a_proxy_takes_no_name_away(seaweedfs_proxy: FaultProxy, tmp_path: Path) -> None:
    """Such a page has status 200, and a client of an object store finds an empty listing in it."""
    proxy, tree = seaweedfs_proxy, NamespaceFixture(tmp_path / "index")
    for name in ("f", "d/f", "e/g/f"):
        proxy.server.put(f"page/{name}", DATA)
    async with opened(build_origin(proxy.url("page"), proxy.options())) as origin:
        tree.namespace.mount_points.attach(Mount("/", origin.url, origin, 3600.0))
        files = [(await tree.namespace.resolver.resolve(path)).id for path in (b"/f", b"/d/f", b"/e/g/f")]
        proxy.mode = "page"
        try:
            for path in (b"/", b"/d", b"/e", b"/e/g"):
                directory = tree.namespace.tree.directory_at(path)
                assert directory is not None
                with pytest.raises(OriginUnavailableError):
                    await tree.namespace.listings.refresh(directory)
        finally:
            proxy.mode = "pass"
        assert [tree.index.path_of(file) for file in files] == [b"/f", b"/d/f", b"/e/g/f"]
        await tree.namespace.listings.refresh(ROOT_ID)
        assert await tree.names("/") == ["d", "e", "f"]
    tree.index.close(clean=False)


async def test_silence_ends_with_the_deadline(proxy: FaultProxy, call: Call) -> None:
    error, took_s = await spoil(proxy, "hang", call, 0.4)
    assert isinstance(error, DeadlineExceededError), error
    assert 0.35 < took_s < SOON_S


@pytest.mark.parametrize("mode", ["500", "503", "429", "half", "close"])
async def test_what_fails_twice_comes_the_third_time(proxy: FaultProxy, mode: str) -> None:
    proxy.server.put("faults/f", DATA)
    async with opened(attach(proxy)) as origin:
        info = await origin.head("f", deadline=soon())
        before = proxy.requests
        proxy.fail_next(mode, 2)
        await _read(origin, info, soon())
        assert proxy.requests - before == 3


async def test_a_cancelled_read_of_a_silent_server_ends_at_once(proxy: FaultProxy) -> None:
    proxy.server.put("faults/f", DATA)
    async with opened(attach(proxy)) as origin:
        info = await origin.head("f", deadline=soon())
        proxy.mode = "hang"
        before = proxy.requests
        task = asyncio.ensure_future(_read(origin, info, soon()))
        await until(lambda: proxy.requests != before)
        begun_s = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - begun_s < SOON_S
        proxy.mode = "pass"
        await _read(origin, info, soon())


@pytest.mark.parametrize("mode", ["hang", "stall"])
async def test_one_silent_connection_costs_its_read_seconds(proxy: FaultProxy, mode: str) -> None:
    """It is asked for again on another one, well before its time is over; and what comes is not asked for twice."""
    proxy.server.put("faults/f", DATA)
    async with opened(attach(proxy)) as origin:
        info = await origin.head("f", deadline=soon())
        before = proxy.requests
        for _ in range(10):
            await _read(origin, info, soon())
        proxy.fail_next(mode, 1)
        begun_s = time.monotonic()
        await _read(origin, info, Deadline.after(60))
        assert LEAST_S < time.monotonic() - begun_s < 30
        await _read(origin, info, soon())
        hedged = origin.statistics()["reads_hedged"]  # type: ignore[attr-defined]
        assert hedged >= 1
        assert proxy.requests - before == 12 + hedged


async def test_an_option_limits_each_request(proxy: FaultProxy) -> None:
    """timeout_s is per request: a silent one is given up and tried again, well before the deadline."""
    proxy.server.put("faults/f", DATA)
    async with opened(build_origin(proxy.url("faults"), {**proxy.options(), "timeout_s": "0.5"})) as origin:
        info = await origin.head("f", deadline=soon())
        proxy.fail_next("hang", 1)
        await _read(origin, info, Deadline.after(20))


@pytest.mark.parametrize(
    ("name", "value"), [("secret_access_key", "marker-wrong-secret"), ("access_key_id", "marker-wrong-id")]
)
async def test_wrong_credentials_are_denied_at_once(seaweedfs: S3Server, name: str, value: str) -> None:
    seaweedfs.put("denied/f", b"1234")
    async with opened(build_origin(seaweedfs.url("denied"), {**seaweedfs.options(), name: value})) as origin:
        begun_s = time.monotonic()
        with pytest.raises(OriginDeniedError) as listed:
            await check_origin(origin, soon())
        with pytest.raises(OriginDeniedError) as headed:
            await origin.head("f", deadline=soon())
        assert time.monotonic() - begun_s < SOON_S
        for error in (listed.value, headed.value):
            assert "marker-wrong" not in f"{error} {error!r} {error.__cause__!r} {error.__context__!r}"


@pytest.mark.parametrize("kind", ["s3", "gs", "az", "http"])
async def test_an_endpoint_where_nobody_listens_is_told_soon(kind: str) -> None:
    endpoint = f"http://127.0.0.1:{free_ports(1)[0]}"
    options = {
        "s3": {"endpoint": endpoint, "access_key_id": "a", "secret_access_key": "b"},
        "gs": {"endpoint": endpoint, "anonymous": "true"},
        "az": {"endpoint": f"{endpoint}/account", "account_name": "account", "account_key": "a2V5"},
        "http": {},
    }[kind]
    async with opened(
        build_origin(f"{kind}://bucket/p" if kind != "http" else f"{endpoint}/p", options)
    ) as origin:
        begun_s = time.monotonic()
        with pytest.raises(OriginUnavailableError):
            await check_origin(origin, Deadline.after(60, patience_s=0.5))
        with pytest.raises(OriginUnavailableError):
            await origin.head("f", deadline=Deadline.after(60, patience_s=0.5))
        assert time.monotonic() - begun_s < 20


async def test_a_host_that_is_not_there_is_told(seaweedfs: S3Server) -> None:
    options = {**seaweedfs.options(), "endpoint": "http://no-such-host.invalid:9000"}
    async with opened(build_origin("s3://data", options)) as origin:
        with pytest.raises((OriginUnavailableError, DeadlineExceededError)):
            await listing_of_within(origin, 5.0)


async def listing_of_within(origin: Origin, seconds: float) -> None:
    async for _ in origin.list_directory("", deadline=Deadline.after(seconds)):
        pass


async def test_a_listing_through_the_proxy_is_that_of_the_server(proxy: FaultProxy) -> None:
    """The proxy spoils nothing while it passes."""
    proxy.server.put("plain/a b", b"1")
    async with opened(build_origin(proxy.url("plain"), proxy.options())) as origin:
        assert set((await listing_of(origin, "")).objects) == {"a b"}
