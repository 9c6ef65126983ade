"""Puts to servers that lose answers, heed no conditions, or fail in the middle of an upload in parts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import obstore
import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import ConflictError, OriginUnavailableError
from headrace.base.model import Attributes, ObjectInfo
from headrace.origin import cloud, conditional_put
from headrace.origin.factory import build_origin
from headrace.origin.object_store import ObjectStoreOrigin
from headrace.origin.options import parse_options
from headrace.origin.origin import HIDDEN, Absent, Condition, Origin
from headrace.origin.retry import RetryOrigin
from headrace.origin.source import BytesPutSource
from headrace.origin.upload import Sizes
from headrace.testing import servers
from headrace.testing.servers import S3Server, ServerMissing
from tests import emulators
from tests.conformance.origin.origin_suite import listing_of, opened, soon
from tests.conformance.origin.origin_write_suite import WAIT_S, HeldSource, content, put
from tests.fault_proxy import FaultProxy, fault_proxy

DATA = random.Random(3).randbytes((12 << 20) + 1)
PARTS = Sizes(single_max_bytes=1 << 20, part_min_bytes=5 << 20, in_flight_max=2)


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Server]:
    try:
        servers.find_program("moto_server", hint="pip install 'moto[server]'")
    except ServerMissing as error:
        pytest.skip(f"server moto: {error}")
    with emulators.moto_s3() as server:
        yield server


@pytest.fixture
def proxy(moto: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(moto) as proxy:
        yield proxy


@pytest.fixture
def place() -> str:
    return f"p{random.SystemRandom().getrandbits(40):010x}"


def uploads(server: S3Server, prefix: str) -> list[str]:
    """Keys of uploads in parts that were begun and neither completed nor aborted."""
    boto3 = pytest.importorskip("boto3", reason="server s3: boto3 is not installed")
    client: Any = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )
    rows = client.list_multipart_uploads(Bucket=server.bucket).get("Uploads", [])
    return [row["Key"] for row in rows if row["Key"].startswith(prefix)]


def in_parts(proxy: FaultProxy, prefix: str) -> Origin:
    url = proxy.url(prefix)
    stores = cloud.s3_stores(url, proxy.server.bucket, parse_options(url, proxy.options()))
    return RetryOrigin(ObjectStoreOrigin(url, stores, prefix, sizes=PARTS))


@pytest.mark.parametrize("over", ["nothing", "a-version", "anything"])
async def test_a_put_whose_answer_is_lost_is_made_once(proxy: FaultProxy, place: str, over: str) -> None:
    async with opened(build_origin(proxy.url(place), proxy.options())) as origin:
        await put(origin, "warm", b"x", Absent())  # the trial of conditions is done
        condition: Condition = Absent() if over == "nothing" else None
        if over == "a-version":
            condition = (await put(origin, "f", b"old")).version
        before = len(proxy.asked)
        proxy.fail_next("lost", 1)
        info = await put(origin, "f", b"ours", condition)
        puts = [method for method, _ in proxy.asked[before:] if method == "PUT"]
        assert len(puts) == 1
        assert (await origin.head("f", deadline=soon())).version == info.version
        assert await content(origin, "f") == b"ours"


async def test_a_lost_put_that_never_happened_is_made_again(proxy: FaultProxy, place: str) -> None:
    async with opened(build_origin(proxy.url(place), proxy.options())) as origin:
        await put(origin, "warm", b"x", Absent())
        for mode in ("503", "close", "500"):
            proxy.fail_next(mode, 1)
            await put(origin, mode, mode.encode(), Absent())
            assert await content(origin, mode) == mode.encode()


@pytest.mark.expected_warnings("origin enforces no conditions")
async def test_a_server_that_heeds_no_conditions_is_found_out(
    proxy: FaultProxy, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.drops = frozenset({"if-match", "if-none-match"})
    proxy.server.put(f"{place}/theirs", b"theirs")
    caplog.set_level(logging.WARNING, logger="headrace.origin.conditional_put")
    async with opened(build_origin(proxy.url(place), proxy.options())) as origin:
        old = await origin.head("theirs", deadline=soon())
        with pytest.raises(ConflictError):
            await put(origin, "theirs", b"ours", Absent())
        await asyncio.to_thread(proxy.server.put, f"{place}/theirs", b"theirs again")
        with pytest.raises(ConflictError):
            await put(origin, "theirs", b"ours", old.version)
        assert await content(origin, "theirs") == b"theirs again"
        now = (await origin.head("theirs", deadline=soon())).version
        await put(origin, "theirs", b"ours", now)
        await put(origin, "new", b"ours", Absent())
        assert set((await listing_of(origin, "")).objects) == {"theirs", "new"}
        assert await content(origin, "theirs") == b"ours"
    assert [record for record in caplog.records if "enforces no conditions" in record.message]


async def test_the_trial_of_conditions_leaves_nothing_and_is_made_once(proxy: FaultProxy, place: str) -> None:
    async with opened(build_origin(proxy.url(place), proxy.options())) as origin:
        await asyncio.gather(*(put(origin, f"f{n}", b"x", Absent()) for n in range(10)))
        await put(origin, "g", b"x", Absent())
    assert proxy.server.store is not None
    trial = [(method, path) for method, path in proxy.asked if HIDDEN in path]
    assert [method for method, _ in trial] == ["PUT", "PUT", "PUT", "GET"]  # of what others left
    assert len({path for method, path in trial if method == "PUT"}) == 1
    kept = [meta["path"] for metas in obstore.list(proxy.server.store, prefix=place) for meta in metas]
    assert len(kept) == 11 and not [path for path in kept if HIDDEN in path]
    puts = [path for method, path in proxy.asked if method == "PUT" and HIDDEN not in path]
    assert len(puts) == 11
    assert not [method for method, _ in proxy.asked if method == "HEAD"]  # one request a put


async def test_what_killed_trials_left_is_removed_a_day_later(
    proxy: FaultProxy, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [f"{place}/{HIDDEN}{n}" for n in range(3)]
    stays = [f"{place}/.headrace-other", f"{place}/g", f"{place}/sub/{HIDDEN}x"]
    for path in (*left, *stays):
        proxy.server.put(path, b"trial")

    def kept() -> list[str]:
        assert proxy.server.store is not None
        paths = [meta["path"] for metas in obstore.list(proxy.server.store, prefix=place) for meta in metas]
        return sorted(path for path in paths if path != f"{place}/f")

    async with opened(build_origin(proxy.url(place), proxy.options())) as origin:
        await put(origin, "f", b"x", Absent())
    assert kept() == sorted([*left, *stays]), "they may be of a trial under way"
    monkeypatch.setattr(conditional_put, "STALE", timedelta(seconds=-1))  # stands for the day
    async with opened(build_origin(proxy.url(place), proxy.options())) as origin:
        await put(origin, "f", b"y", (await origin.head("f", deadline=soon())).version)
    assert kept() == sorted(stays)


# -- in parts


@pytest.mark.parametrize("part", ["first", "middle", "last"])
async def test_parts_that_fail_are_sent_again(proxy: FaultProxy, place: str, part: str) -> None:
    async with opened(in_parts(proxy, place)) as origin:
        source = HeldSource(DATA)
        if part != "last":
            proxy.fail_next("503", 1 if part == "first" else 3)
            source.released.set()
        call = asyncio.ensure_future(
            origin.put("f", source, condition=None, attributes=Attributes(), deadline=soon())
        )
        if part == "last":
            assert await asyncio.to_thread(source.asked.wait, WAIT_S)
            proxy.fail_next("503", 2)
            source.released.set()
        info = await call
        assert (await origin.head("f", deadline=soon())).version == info.version
        assert await content(origin, "f") == DATA
    assert not uploads(_moto(proxy), place)


async def test_an_upload_whose_completion_is_lost_is_found(proxy: FaultProxy, place: str) -> None:
    """Whatever the store's client makes of it, the object is whole and ours, and nothing is left."""
    async with opened(in_parts(proxy, place)) as origin:
        source = HeldSource(DATA)
        call = asyncio.ensure_future(
            origin.put("f", source, condition=Absent(), attributes=Attributes(), deadline=soon())
        )
        assert await asyncio.to_thread(source.asked.wait, WAIT_S)
        proxy.lose_next("POST")
        source.released.set()
        info = await call
        assert (await origin.head("f", deadline=soon())).version == info.version
        assert await content(origin, "f") == DATA
    assert not uploads(_moto(proxy), place)


@pytest.mark.parametrize("end", ["cancelled", "late", "conflict"])
async def test_an_upload_that_does_not_come_to_its_end_leaves_no_parts(
    proxy: FaultProxy, place: str, end: str
) -> None:
    server = _moto(proxy)
    async with opened(in_parts(proxy, place)) as origin:
        source = HeldSource(DATA)
        deadline = soon()
        call = asyncio.ensure_future(
            origin.put("f", source, condition=Absent(), attributes=Attributes(), deadline=deadline)
        )
        assert await asyncio.to_thread(source.asked.wait, WAIT_S)
        assert await asyncio.to_thread(uploads, server, place) == [f"{place}/f"]
        if end == "conflict":
            await asyncio.to_thread(server.put, f"{place}/f", b"theirs")
        elif end == "cancelled":
            call.cancel()
        else:
            deadline.at_s = 0.0  # it waits by its old deadline; what it asks next is too late
        asyncio.get_running_loop().call_soon(source.released.set)
        expected = {"cancelled": asyncio.CancelledError, "late": TimeoutError, "conflict": ConflictError}
        with pytest.raises(expected[end]):
            await call
        names = set((await listing_of(origin, "")).objects)
        assert names == ({"f"} if end == "conflict" else set())
        if end == "conflict":
            assert await content(origin, "f") == b"theirs"
    assert not uploads(server, place)


@pytest.mark.parametrize(
    ("kind", "over"),
    [
        ("moto", "nothing"),
        ("seaweedfs", "nothing"),
        ("seaweedfs", "a-version"),
    ],  # moto ignores If-Match there
)
async def test_the_store_decides_for_uploads_in_parts_too(
    request: pytest.FixtureRequest, place: str, kind: str, over: str
) -> None:
    """An object that is changed after our last look, and before the upload is completed, is not replaced."""
    server = request.getfixturevalue(kind)
    stores = cloud.s3_stores(
        server.url(place), server.bucket, parse_options(server.url(place), server.options())
    )
    async with opened(ObjectStoreOrigin(server.url(place), stores, place, sizes=PARTS)) as origin:
        condition: Condition = Absent()
        if over == "a-version":
            condition = (await put(origin, "f", b"old")).version
        heads = 0

        async def look_and_change(key: str, *, deadline: Deadline) -> ObjectInfo:
            nonlocal heads
            heads += 1
            try:
                return await original_head(key, deadline=deadline)
            finally:
                if heads == 2:
                    await asyncio.to_thread(server.put, f"{place}/f", b"theirs")

        assert isinstance(origin, ObjectStoreOrigin)
        original_head, origin._writer._head = origin.head, look_and_change
        with pytest.raises(ConflictError):
            await put(origin, "f", DATA, condition)
        assert heads == 2
        assert await content(origin, "f") == b"theirs"
    assert not uploads(server, place)


async def test_a_server_that_fails_for_good_is_unavailable(proxy: FaultProxy, place: str) -> None:
    async with opened(build_origin(proxy.url(place), proxy.options())) as origin:
        await put(origin, "f", b"old")
        proxy.mode = "503"
        with pytest.raises(OriginUnavailableError):
            await origin.put(
                "f", BytesPutSource(b"ours"), condition=None, attributes=Attributes(), deadline=soon()
            )
        proxy.mode = "pass"
        assert await content(origin, "f") == b"old"


async def test_gcs_keeps_no_parts_either() -> None:
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(emulators.fake_gcs())
        except ServerMissing as error:
            pytest.skip(f"server fake-gcs-server: {error}")
        assert server.front is not None
        url = server.url("p")
        stores = cloud.gcs_stores(url, server.bucket, parse_options(url, server.options()))
        async with opened(ObjectStoreOrigin(url, stores, "p", sizes=PARTS)) as origin:
            source = HeldSource(DATA)
            call = asyncio.ensure_future(
                origin.put("f", source, condition=None, attributes=Attributes(), deadline=soon())
            )
            assert await asyncio.to_thread(source.asked.wait, WAIT_S)
            assert server.front is not None and len(server.front.uploads) == 1
            call.cancel()
            asyncio.get_running_loop().call_soon(source.released.set)
            with pytest.raises(asyncio.CancelledError):
                await call
            assert not server.front.uploads
            await origin.put(
                "f", BytesPutSource(DATA), condition=None, attributes=Attributes(), deadline=soon()
            )
            assert await content(origin, "f") == DATA and not server.front.uploads


def _moto(proxy: FaultProxy) -> S3Server:
    assert isinstance(proxy.server, S3Server)
    return proxy.server
