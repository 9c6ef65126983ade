"""Folder markers, as consoles of object stores make them: an empty object whose key ends in a slash. Put by boto3,
since obstore can't express them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.base.errors import PathNotFoundError
from headrace.origin.factory import build_origin
from headrace.origin.object_store import EMPTY_MAX, PAGE, WASTE_MAX
from headrace.origin.origin import Origin
from headrace.testing import servers
from headrace.testing.servers import S3Server, ServerMissing
from tests import emulators
from tests.conformance.origin.origin_suite import listing_of, opened, soon


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Server]:
    try:
        servers.find_program("moto_server", hint="pip install 'moto[server]'")
    except ServerMissing as error:
        pytest.skip(f"server moto: {error}")
    with emulators.moto_s3() as server:
        yield server


@pytest.fixture(params=["moto", "seaweedfs"])
def server(request: pytest.FixtureRequest) -> S3Server:
    server = request.getfixturevalue(request.param)
    assert isinstance(server, S3Server)
    return server


def client(server: S3Server) -> Any:
    boto3 = pytest.importorskip("boto3", reason="server s3: boto3 is not installed")
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )


def attach(server: S3Server, prefix: str) -> Origin:
    return build_origin(server.url(prefix), server.options())


async def test_markers_are_folders_and_no_files(server: S3Server) -> None:
    s3 = client(server)
    for key in ("", "empty-folder/", "full-folder/"):
        s3.put_object(Bucket=server.bucket, Key=f"markers/{key}", Body=b"")
    for key in ("full-folder/f", "f"):
        server.put(f"markers/{key}", b"x")
    server.put("markers/empty", b"")
    async with opened(attach(server, "markers")) as origin:
        listing = await listing_of(origin, "")
        assert set(listing.objects) == {"f", "empty"}
        assert listing.directories == {"empty-folder", "full-folder"}
        assert set((await listing_of(origin, "full-folder")).objects) == {"full-folder/f"}
        empty = await listing_of(origin, "empty-folder")
        assert not empty.objects and not empty.directories
        with pytest.raises(PathNotFoundError):
            await origin.head("empty-folder", deadline=soon())


async def test_a_marker_beside_a_file_of_its_name(moto: S3Server) -> None:
    """SeaweedFS refuses this one."""
    s3 = client(moto)
    for key in ("a", "b"):
        s3.put_object(Bucket=moto.bucket, Key=f"beside/{key}/", Body=b"")
    moto.put("beside/a", b"full")
    moto.put("beside/b", b"")
    async with opened(attach(moto, "beside")) as origin:
        listing = await listing_of(origin, "")
        assert set(listing.objects) == {"a", "b"}
        assert listing.directories == {"a", "b"}


@pytest.mark.parametrize("empty", [EMPTY_MAX - 1, EMPTY_MAX * 3])
async def test_empty_files_and_markers_few_and_many(server: S3Server, empty: int) -> None:
    s3, place = client(server), f"empties{empty}"
    for n in range(empty):
        server.put(f"{place}/e{n:03d}", b"")
        s3.put_object(Bucket=server.bucket, Key=f"{place}/m{n:03d}/", Body=b"")
    server.put(f"{place}/f", b"x")
    async with opened(attach(server, place)) as origin:
        listing = await listing_of(origin, "")
        assert set(listing.objects) == {"f"} | {f"e{n:03d}" for n in range(empty)}
        assert listing.directories == {f"m{n:03d}" for n in range(empty)}


async def test_the_walk_gives_up_in_the_middle_and_tells_nothing_twice(seaweedfs: S3Server) -> None:
    """Files, then folders with more in them than the walk will drop, then files again."""
    deep = PAGE + WASTE_MAX + 100
    names = [f"a{n:05d}" for n in range(PAGE + 50)] + [f"c/{n:05d}" for n in range(deep)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: seaweedfs.put(f"walk/{name}", b"x"), [*names, "b/first", "d"]))
    async with opened(attach(seaweedfs, "walk")) as origin:
        listing = await listing_of(origin, "")
        assert set(listing.objects) == {f"a{n:05d}" for n in range(PAGE + 50)} | {"d"}
        assert listing.directories == {"b", "c"}
