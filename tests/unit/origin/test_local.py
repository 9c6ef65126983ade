from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path

import pytest

from headrace.base.beneath import SafePath
from headrace.base.deadline import Deadline
from headrace.base.errors import (
    BucketNotFoundError,
    DeadlineExceededError,
    IsADirectoryPathError,
    NotADirectoryPathError,
    OriginUnavailableError,
    PathExistsError,
    PathNotFoundError,
)
from headrace.base.file_times import TIME_NS_MAX
from headrace.base.model import Attributes
from headrace.origin.file_ticks import tick_left_s
from headrace.origin.local import LocalOrigin
from headrace.origin.origin import Origin
from headrace.origin.source import BytesPutSource
from headrace.origin.threads import Threads
from tests.conformance.origin.origin_suite import listing_of, opened, read, soon

NEVER = Deadline.never()


def at(folder: Path) -> AbstractAsyncContextManager[Origin]:
    return opened(LocalOrigin(str(folder)))


async def test_a_time_that_no_index_can_store_is_the_nearest_one(tmp_path: Path) -> None:
    far_ns = 10_413_792_000 * 10**9  # the year 2300
    (tmp_path / "far").write_bytes(b"bytes")
    (tmp_path / "other").write_bytes(b"bytes")
    os.utime(tmp_path / "far", ns=(far_ns, far_ns))
    if (tmp_path / "far").stat().st_mtime_ns != far_ns:
        pytest.skip("the file system has no such time")
    async with at(tmp_path) as origin:
        listing = await listing_of(origin, "")
        assert set(listing.objects) == {"far", "other"}
        assert listing.objects["far"].mtime_ns == TIME_NS_MAX
        info = await origin.head("far", deadline=soon())
        assert info.version == listing.objects["far"]
        assert await read(origin, info, 0, 5) == b"bytes"


async def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    name = b"caf\xe9-\xff"
    with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
        file.write(b"latin")
    async with at(tmp_path) as origin:
        key = os.fsdecode(name)
        listing = await listing_of(origin, "")
        info = await origin.head(key, deadline=soon())
        assert listing.objects == {key: info.version}
        assert await read(origin, info, 0, 5) == b"latin"
        with pytest.raises(PathNotFoundError) as caught:
            await origin.head(key + "x", deadline=soon())
        str(caught.value).encode()  # can be printed


FINE_NS, COARSE_NS = 1_700_000_000_123_456_789, 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    ("mtime_ns", "age_ns", "left_s"),
    [
        (FINE_NS, 1_000_000, 0.019),
        (FINE_NS, -5_000_000, 0.025),  # the clock of a file server is ahead
        (FINE_NS, 20_000_000, 0.0),
        (FINE_NS, -100_000_000, 0.0),
        (COARSE_NS, 1_100_000_000, 0.9),
        (COARSE_NS, 2_000_000_000, 0.0),
    ],
)
def test_a_file_is_read_when_another_write_would_change_its_time(
    mtime_ns: int, age_ns: int, left_s: float
) -> None:
    assert tick_left_s(mtime_ns, mtime_ns + age_ns) == pytest.approx(left_s)


async def test_of_two_writes_in_one_tick_the_second_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both leave the same time and size, so nothing else tells their bytes apart."""
    path, waited_s = tmp_path / "f", list[float]()

    def write(data: bytes) -> None:
        path.write_bytes(data)
        os.utime(path, ns=(FINE_NS, FINE_NS))

    def write_again(seconds: float) -> None:
        waited_s.append(seconds)
        write(b"second")

    write(b"first.")
    monkeypatch.setattr("headrace.origin.local.tick_left_s", lambda *_: 0.01)
    async with at(tmp_path) as origin:
        info = await origin.head("f", deadline=soon())
        with monkeypatch.context() as patch:
            patch.setattr("headrace.origin.local.time.sleep", write_again)
            assert await read(origin, info, 0, 6) == b"second"
    assert waited_s == [0.01]


class BrokenEntry:
    """An entry of a directory whose file answers with an error."""

    def __init__(self, entry: os.DirEntry[bytes], error: int) -> None:
        self.name, self.is_symlink, self.is_dir = entry.name, entry.is_symlink, entry.is_dir
        self._error = error

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        raise OSError(self._error, os.strerror(self._error))


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN])
async def test_a_file_that_fails_for_a_moment_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """A listing without its name would take the file from all readers, as if it were removed."""
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"1234")
    real = SafePath.entries

    @contextmanager
    def entries(path: SafePath) -> Iterator[Iterator[object]]:
        with real(path) as sound:
            yield (BrokenEntry(entry, error) if entry.name == b"b" else entry for entry in sound)

    async with at(tmp_path) as origin:
        with monkeypatch.context() as patch:
            patch.setattr(SafePath, "entries", entries)
            with pytest.raises(OriginUnavailableError):
                await listing_of(origin, "")
        assert set((await listing_of(origin, "")).objects) == {"a", "b", "c"}


async def test_links_are_followed_and_odd_things_left_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    (tmp_path / "folder").mkdir()
    (tmp_path / "to-file").symlink_to("file")
    (tmp_path / "to-folder").symlink_to("folder")
    (tmp_path / "to-nothing").symlink_to("none")
    (tmp_path / "to-itself").symlink_to("to-itself")
    os.mkfifo(tmp_path / "pipe")
    async with at(tmp_path) as origin:
        listing = await listing_of(origin, "")
        assert set(listing.objects) == {"file", "to-file"}
        assert listing.directories == {"folder", "to-folder"}
        for key in ("pipe", "to-nothing", "to-itself", "folder"):
            with pytest.raises(PathNotFoundError):
                await origin.head(key, deadline=soon())


async def test_a_file_changed_in_place_is_noticed_by_the_listing_too(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1234")
    async with at(tmp_path) as origin:
        before = (await listing_of(origin, "")).objects["f"]
        with (tmp_path / "f").open("r+b") as file:
            file.write(b"5")
        os.utime(tmp_path / "f", ns=(1, 1))
        assert (await listing_of(origin, "")).objects["f"] != before


async def test_an_attached_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    async with at(tmp_path / "none") as origin:
        with pytest.raises(BucketNotFoundError):
            await listing_of(origin, "")


async def test_the_systems_timeout_is_not_our_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lstat(path: SafePath) -> os.stat_result:
        raise OSError(errno.ETIMEDOUT, "nfs")

    monkeypatch.setattr(SafePath, "lstat", lstat)
    async with at(tmp_path) as origin:
        with pytest.raises(OriginUnavailableError):
            await origin.head("f", deadline=soon())


async def test_a_thread_that_hangs_keeps_no_one_from_the_deadline_or_from_other_origins() -> None:
    hung, free = Threads(), Threads()
    go_on = threading.Event()
    try:
        calls = [hung.call(go_on.wait, "nas", Deadline.after(0.05)) for _ in range(100)]
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, DeadlineExceededError)
        assert await free.call(lambda: 5, "disk", Deadline.after(5)) == 5
        hung.close()
        hung.close()
        with pytest.raises(OriginUnavailableError):
            await hung.call(lambda: 5, "nas", Deadline.after(5))
        free.close()
    finally:
        go_on.set()


async def test_names_below_a_link_to_a_directory_are_removed_and_made(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/file").write_bytes(b"bytes")
    (tmp_path / "set/link").symlink_to("../blobs")
    async with at(tmp_path) as origin:
        await origin.make_directory("set/link/new", deadline=NEVER)
        assert (tmp_path / "blobs/new").is_dir()
        info = await origin.head("set/link/file", deadline=NEVER)
        await origin.remove("set/link/file", condition=info.version, deadline=NEVER)
        await origin.remove_directory("set/link/new", deadline=NEVER)
        assert os.listdir(tmp_path / "blobs") == []


async def test_the_removal_of_a_link_to_a_directory_leaves_the_directory(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/others").write_bytes(b"bytes")
    (tmp_path / "link").symlink_to("blobs")
    (tmp_path / "link of a file").symlink_to("blobs/others")
    async with at(tmp_path) as origin:
        await origin.remove_directory("link", deadline=NEVER)
        with pytest.raises(NotADirectoryPathError):
            await origin.remove_directory("link of a file", deadline=NEVER)
    assert sorted(os.listdir(tmp_path)) == ["blobs", "link of a file"]
    assert os.listdir(tmp_path / "blobs") == ["others"]


@pytest.mark.expected_warnings("a symbolic link leads back")
@pytest.mark.parametrize("unsafe_links", [False, True])
async def test_links_that_lead_back_are_neither_listed_nor_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, unsafe_links: bool
) -> None:
    for name in ("a/b", "c"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "c/file").write_bytes(b"bytes")
    back: dict[str, str | Path] = {"a/dot": ".", "a/b/parent": "..", "a/b/top": tmp_path, "c/self": "../c"}
    for name, target in {**back, "a/b/beside": "../../c", "c/other": "../a/b"}.items():
        (tmp_path / name).symlink_to(target)
    async with opened(LocalOrigin(str(tmp_path), unsafe_links=unsafe_links)) as origin:
        listed = {
            key: (await listing_of(origin, key)).directories
            for key in ("", "a", "a/b", "a/b/beside", "c", "c/other", *back, "a/dot/b", "a/b/beside/other")
        }
        assert {key: set(names) for key, names in listed.items() if names} == {
            "": {"a", "c"},
            "a": {"b"},
            "a/b": {"beside"},
            "c": {"other"},
        }
        info = await origin.head("a/b/beside/file", deadline=NEVER)
        assert await read(origin, info, 0, 5) == b"bytes"
        for key in ("c/self/file", "a/b/beside/self/file", "a/b/top/c/file"):
            with pytest.raises(PathNotFoundError):
                await origin.head(key, deadline=NEVER)
    assert caplog.text.count("leads back") == 1


async def test_nothing_is_written_over_a_link_that_leads_back(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(".")
    (tmp_path / "file").write_bytes(b"bytes")
    async with at(tmp_path) as origin:
        for key in ("link", "link/new", "link/folder/new"):
            with pytest.raises((IsADirectoryPathError, NotADirectoryPathError)):
                await origin.put(
                    *(key, BytesPutSource(b"x")), condition=None, attributes=Attributes(), deadline=NEVER
                )
        with pytest.raises(PathExistsError):
            await origin.make_directory("link", deadline=NEVER)
        with pytest.raises(NotADirectoryPathError):
            await origin.make_directory("link/folder", deadline=NEVER)
        with pytest.raises(NotADirectoryPathError):
            await origin.remove_directory("link", deadline=NEVER)
        with pytest.raises(PathNotFoundError):
            await origin.remove("link/file", condition=None, deadline=NEVER)
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]
