"""Finding 32: links in a folder that is an origin lead nowhere outside of it, unless its option says so."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, OriginDeniedError, UsageError
from headrace.base.model import Attributes, Version
from headrace.origin.factory import build_origin
from headrace.origin.origin import Absent, Origin
from headrace.origin.source import BytesPutSource
from tests.conformance.origin.origin_suite import listing_of, opened

pytestmark = pytest.mark.expected_warnings("a symbolic link leads out")


NEVER = Deadline.never()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With links that lead out, and others that stay."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_bytes(b"secret")
    origin = tmp_path / "origin"
    (origin / "blobs").mkdir(parents=True)
    (origin / "blobs/1").write_bytes(b"data")
    (origin / "set").mkdir()
    (origin / "set/relative").symlink_to("../blobs/1")
    (origin / "set/absolute").symlink_to(origin / "blobs/1")
    (origin / "set/folder").symlink_to("../blobs")
    (origin / "out").symlink_to(secret)
    (origin / "set/up").symlink_to("../../secret/key")
    (origin / "key").symlink_to(secret / "key")
    return origin


def at(folder: Path, **options: str) -> AbstractAsyncContextManager[Origin]:
    return opened(build_origin(str(folder), options))


def version_at(path: Path) -> Version:
    status = path.stat()
    return Version(
        status.st_size, status.st_mtime_ns, f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    )


async def read(origin: Origin, key: str, path: Path) -> bytes:
    version = version_at(path)
    return bytes((await origin.read_range(key, 0, version.size_bytes, version=version, deadline=NEVER)).body)


async def put(origin: Origin, key: str) -> None:
    await origin.put(
        key, BytesPutSource(b"ours"), condition=Absent(), attributes=Attributes(mode=0o777), deadline=NEVER
    )


async def test_links_that_stay_are_followed(folder: Path) -> None:
    async with at(folder) as origin:
        for key in ("set/relative", "set/absolute", "set/folder/1"):
            assert (await origin.head(key, deadline=NEVER)).version == version_at(folder / "blobs/1")
            assert await read(origin, key, folder / "blobs/1") == b"data"
        assert set((await listing_of(origin, "set/folder")).objects) == {"set/folder/1"}
        await put(origin, "set/folder/new")
        assert (folder / "blobs/new").read_bytes() == b"ours"


async def test_links_that_lead_out_are_not_listed_and_told_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with at(folder) as origin:
        top, inner = await listing_of(origin, ""), await listing_of(origin, "set")
        assert (set(top.directories), top.objects) == ({"blobs", "set"}, {})
        assert set(inner.objects) == {"set/relative", "set/absolute"}
    assert caplog.text.count("leads out") == 1
    assert "unsafe_links=true" in caplog.text


async def test_nothing_is_read_or_written_over_a_link_that_leads_out(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    before = secret.stat()
    async with at(folder) as origin:
        for key in ("out/key", "key", "set/up"):
            with pytest.raises(OriginDeniedError, match="unsafe_links"):
                await origin.head(key, deadline=NEVER)
            with pytest.raises(OriginDeniedError, match="unsafe_links"):
                await read(origin, key, secret / "key")
        writes: list[Callable[[], Awaitable[object]]] = [
            lambda: put(origin, "out/new"),
            lambda: put(origin, "out/deeper/new"),
            lambda: put(origin, "key"),
            lambda: origin.remove("out/key", condition=version_at(secret / "key"), deadline=NEVER),
            lambda: origin.make_directory("out/folder", deadline=NEVER),
            lambda: origin.remove_directory("out/key", deadline=NEVER),
        ]
        for write in writes:
            with pytest.raises(HeadraceError):
                await write()
        with pytest.raises(HeadraceError):
            await listing_of(origin, "out")
    assert secret.stat() == before
    assert os.listdir(secret) == ["key"]
    assert (secret / "key").read_bytes() == b"secret"


async def test_the_option_follows_them(folder: Path, tmp_path: Path) -> None:
    async with at(folder, unsafe_links="true") as origin:
        for key in ("out/key", "key", "set/up"):
            assert await read(origin, key, tmp_path / "secret/key") == b"secret"
        assert "out" in (await listing_of(origin, "")).directories
        await put(origin, "out/deeper/new")
        await put(origin, "set/folder/new")
        assert await read(origin, "set/absolute", folder / "blobs/1") == b"data"
    assert (tmp_path / "secret/deeper/new").read_bytes() == b"ours"
    assert (folder / "blobs/new").read_bytes() == b"ours"


def test_the_option_is_a_word_of_yes_or_no(folder: Path) -> None:
    with pytest.raises(UsageError, match="true or false"):
        build_origin(str(folder), {"unsafe_links": "perhaps"})
