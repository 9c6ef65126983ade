"""The origin suite over every kind of origin (conftest.py), and over the synthetic one what applies to it."""

from __future__ import annotations

import asyncio

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import DeadlineExceededError, OriginError, PathNotFoundError, VersionChangedError
from headrace.base.model import Version
from headrace.origin.factory import build_origin
from headrace.origin.origin import Origin
from tests.conformance.origin.origin_suite import OriginSuite, listing_of, opened, read, soon
from tests.conformance.origin.origin_write_suite import OriginWriteSuite


class TestOrigin(OriginSuite):
    pass


class TestWriting(OriginWriteSuite):
    pass


def synthetic() -> Origin:
    return build_origin("synthetic://2500/3MiB?directories=2", {})


class TestSynthetic:
    """Nothing can be put there, so the suite can't run over it."""

    async def test_listings_agree_with_heads(self) -> None:
        async with opened(synthetic()) as origin:
            root = await listing_of(origin, "")
            assert root.directories == {"d000000", "d000001"} and not root.objects
            listings = [await listing_of(origin, name) for name in sorted(root.directories)]
            assert sum(len(listing.objects) for listing in listings) == 2500
            assert all(listing.pages >= 2 for listing in listings)
            key, version = next(iter(listings[1].objects.items()))
            assert (await origin.head(key, deadline=soon())).version == version
            assert not (await listing_of(origin, "none")).objects

    async def test_ranges_agree_with_the_whole(self) -> None:
        async with opened(synthetic()) as origin:
            key = next(iter((await listing_of(origin, "d000000")).objects))
            info = await origin.head(key, deadline=soon())
            whole = await read(origin, info, 0, 3 << 20)
            assert len(whole) == 3 << 20
            for start, end in ((0, 1), (5, 1 << 20), ((3 << 20) - 1, 3 << 20), (1000, (2 << 20) + 7)):
                assert await read(origin, info, start, end) == whole[start:end]

    async def test_refusals(self) -> None:
        async with opened(synthetic()) as origin:
            key = next(iter((await listing_of(origin, "d000000")).objects))
            info = await origin.head(key, deadline=soon())
            for absent in ("", "none", "d000000", f"{key}/", f"/{key}", key.replace("d000000", "d000001")):
                with pytest.raises(PathNotFoundError):
                    await origin.head(absent, deadline=soon())
            with pytest.raises(OriginError):
                await read(origin, info, 0, (3 << 20) + 1)
            with pytest.raises(VersionChangedError):
                await origin.read_range(key, 0, 1, version=Version(3 << 20, 1, "x"), deadline=soon())
            with pytest.raises(DeadlineExceededError):
                await origin.head(key, deadline=Deadline.after(-1))
            call = asyncio.ensure_future(read(origin, info, 0, 1))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await origin.close()
