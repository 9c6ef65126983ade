"""Bits that turn over on the way to a store: it refuses what does not match the checksum that goes with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import obstore
import pytest

from headrace.base.errors import OriginUnavailableError
from headrace.base.model import Attributes
from headrace.origin import cloud
from headrace.origin.object_store import ObjectStoreOrigin
from headrace.origin.options import parse_options
from headrace.origin.origin import Origin
from headrace.origin.retry import RetryOrigin
from headrace.origin.source import BytesPutSource
from headrace.origin.upload import Sizes
from headrace.testing.servers import S3Server
from tests.conformance.origin.origin_suite import opened, soon
from tests.fault_proxy import FaultProxy, fault_proxy

PARTS = Sizes(single_max_bytes=1 << 20, part_min_bytes=5 << 20, in_flight_max=2)
SIZES = {"single": 70_000, "parts": (6 << 20) + 1}


@pytest.fixture
def proxy(seaweedfs: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(seaweedfs) as proxy:
        yield proxy


def origin_of(proxy: FaultProxy, **options: str) -> Origin:
    url = proxy.url("puts")
    stores = cloud.s3_stores(url, proxy.server.bucket, parse_options(url, proxy.options() | options))
    return RetryOrigin(ObjectStoreOrigin(url, stores, "puts", sizes=PARTS))


async def put(origin: Origin, key: str, body: bytes) -> None:
    await origin.put(key, BytesPutSource(body), condition=None, attributes=Attributes(), deadline=soon())


@pytest.mark.parametrize("kind", SIZES)
async def test_a_spoilt_body_is_refused_and_put_again(proxy: FaultProxy, kind: str) -> None:
    body, key, store = os.urandom(SIZES[kind]), f"refused-{kind}", proxy.server.store
    assert store is not None
    async with opened(origin_of(proxy)) as origin:
        proxy.put_flip_share = 1.0
        with pytest.raises(OriginUnavailableError, match="BadDigest"):
            await put(origin, key, body)
        with pytest.raises(FileNotFoundError):
            await obstore.head_async(store, f"puts/{key}")
        proxy.put_flip_share = 0.0
        await put(origin, key, body)
        answer: Any = await obstore.get_async(store, f"puts/{key}")
        assert bytes(await answer.bytes_async()) == body


async def test_a_store_that_refuses_checksums_can_do_without(proxy: FaultProxy) -> None:
    async with opened(origin_of(proxy, put_checksums="false")) as origin:
        proxy.put_flip_share = 1.0
        await put(origin, "unguarded", os.urandom(1000))
    assert proxy.flipped == 1
