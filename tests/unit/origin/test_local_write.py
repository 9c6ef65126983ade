"""The suite can't bring about these in a folder: crashes, races within microseconds, file systems that can less."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.base import beneath
from headrace.base.beneath import Root, SafePath
from headrace.base.deadline import Deadline
from headrace.base.errors import BucketNotFoundError, ConflictError, OriginError
from headrace.base.model import Attributes, Version
from headrace.origin import local_write
from headrace.origin.commit_point import AbandonedError, CommitPoint
from headrace.origin.local import LocalOrigin, version_of
from headrace.origin.local_write import STALE_S, put_file, sweep
from headrace.origin.origin import HIDDEN, Absent, Condition
from headrace.origin.source import BytesPutSource, FilePutSource
from tests import fork_server
from tests.conformance.origin.origin_suite import listing_of, opened

NEVER = Deadline.never()
VersionOf = Callable[[os.stat_result], Version]


def below(folder: Path) -> SafePath:
    return Root(os.fsencode(folder)).at(b"/")


def put(
    path: Path,
    data: bytes,
    condition: Condition,
    *,
    version: VersionOf = version_of,
    attributes: Attributes = Attributes(),  # noqa: B008 - frozen
) -> os.stat_result:
    return put_file(
        below(path.parent) / os.fsencode(path.name),
        str(path),
        BytesPutSource(data),
        top=below(path.parent),
        condition=condition,
        attributes=attributes,
        commit=CommitPoint(),
        version_of=version,
    )


def old_file(folder: Path) -> tuple[Path, Version]:
    path = folder / "f"
    path.write_bytes(b"old")
    return path, version_of(path.stat())


def after_looks(count: int, then: Callable[[], object]) -> VersionOf:
    """version_of; after that many looks at a file, and before anything else, `then` happens."""
    looks = 0

    def look(status: os.stat_result) -> Version:
        nonlocal looks
        looks += 1
        if looks == count:
            then()
        return version_of(status)

    return look


def replace(path: Path) -> None:
    (path.parent / "other").write_bytes(b"theirs")
    os.replace(path.parent / "other", path)


def test_a_file_replaced_in_the_last_moment_is_put_back(tmp_path: Path) -> None:
    """Between the last comparison and the rename."""
    path, version = old_file(tmp_path)
    with pytest.raises(ConflictError):
        put(path, b"ours", version, version=after_looks(2, lambda: replace(path)))
    assert path.read_bytes() == b"theirs"
    assert os.listdir(tmp_path) == ["f"]


def test_a_file_replaced_again_while_the_first_is_put_back_stays(tmp_path: Path) -> None:
    path, version = old_file(tmp_path)
    looks = 0

    def look(status: os.stat_result) -> Version:
        nonlocal looks
        looks += 1
        answer = version_of(status)
        if looks in (2, 3):  # before the exchange, and between it and its undoing
            (tmp_path / "other").write_bytes(b"theirs %d" % looks)
            os.replace(tmp_path / "other", path)
        return answer

    with pytest.raises(ConflictError):
        put(path, b"ours", version, version=look)
    assert looks > 3
    assert path.read_bytes() == b"theirs 3"
    assert os.listdir(tmp_path) == ["f"]


def test_of_puts_in_threads_one_wins_and_its_bytes_stay(tmp_path: Path) -> None:
    def attempt(number: int) -> bytes | None:
        data = b"by %d" % number
        try:
            put(path, data, version)
        except ConflictError:
            return None
        return data

    with ThreadPoolExecutor(8) as pool:
        for _ in range(100):
            path, version = old_file(tmp_path)
            won = [data for data in pool.map(attempt, range(8)) if data is not None]
            assert len(won) == 1
            assert path.read_bytes() == won[0]


@pytest.mark.parametrize("name", ["put", "remove"])
def test_a_locked_directory_is_waited_for_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path, version = old_file(tmp_path)
    origin = LocalOrigin(str(tmp_path))

    def change() -> None:
        if name == "put":
            put(path, b"new", version)
        else:
            asyncio.run(origin.remove("f", condition=version, deadline=NEVER))

    lock = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    monkeypatch.setattr(local_write, "LOCK_S", 0)
    with pytest.raises(OriginError, match="another process has locked its directory"):
        change()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]
    os.close(lock)
    change()
    assert not path.exists() if name == "remove" else path.read_bytes() == b"new"
    asyncio.run(origin.close())


def test_a_file_removed_in_the_last_moment_stays_away(tmp_path: Path) -> None:
    path, version = old_file(tmp_path)
    with pytest.raises(ConflictError):
        put(path, b"ours", version, version=after_looks(2, path.unlink))
    assert os.listdir(tmp_path) == []


def test_a_file_made_in_the_last_moment_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    fill = local_write.fill

    def fill_and_race(*arguments: object) -> None:
        fill(*arguments)  # type: ignore[arg-type]
        path.write_bytes(b"theirs")

    monkeypatch.setattr(local_write, "fill", fill_and_race)
    with pytest.raises(ConflictError):
        put(path, b"ours", Absent())
    assert path.read_bytes() == b"theirs"
    assert os.listdir(tmp_path) == ["f"]


@pytest.fixture
def without_renameat2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take renameat2 away, as on NFS."""

    rename_at = beneath.rename_at

    def refuse(folder: int, name: bytes, target: int, new_name: bytes, flags: int) -> None:
        if flags:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        rename_at(folder, name, target, new_name, flags)

    monkeypatch.setattr(beneath, "rename_at", refuse)


@pytest.mark.usefixtures("without_renameat2")
def test_a_file_system_without_renameat2(tmp_path: Path) -> None:
    path, version = old_file(tmp_path)
    with pytest.raises(ConflictError):
        put(path, b"ours", Absent())
    status = put(path, b"ours", version)
    assert path.read_bytes() == b"ours" and version_of(path.stat()) == version_of(status)
    with pytest.raises(ConflictError):
        put(path, b"again", version)
    new = put(tmp_path / "new", b"new", Absent())
    assert (tmp_path / "new").read_bytes() == b"new" and new.st_nlink <= 2
    assert version_of(new) == version_of((tmp_path / "new").stat())
    assert sorted(os.listdir(tmp_path)) == ["f", "new"]


@pytest.mark.parametrize("missing", ["copy_file_range", "copy_file_range and sendfile"])
def test_every_way_to_copy_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    for name in missing.split(" and "):
        monkeypatch.setattr(os, name, refuse)
    data = os.urandom((2 << 20) + 77)
    (tmp_path / "source").write_bytes(data)
    monkeypatch.setattr(local_write, "CHUNK_BYTES", 1 << 20)
    with (tmp_path / "source").open("rb") as source, (tmp_path / "copy").open("w+b") as copy:
        local_write.fill(copy.fileno(), FilePutSource(source.fileno()), CommitPoint())
    assert (tmp_path / "copy").read_bytes() == data


def test_what_is_not_said_stays_as_it_was(tmp_path: Path) -> None:
    path, version = old_file(tmp_path)
    path.chmod(0o604)
    put(path, b"ours", version)
    assert path.stat().st_mode & 0o7777 == 0o604
    put(path, b"ours", None, attributes=Attributes(mode=0o4755, mtime_ns=10**18 + 1))
    assert path.stat().st_mode & 0o7777 == 0o4755 and path.stat().st_mtime_ns == 10**18 + 1


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("d/target")
    put(tmp_path / "link", b"ours", version_of((tmp_path / "link").stat()))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "d" / "target").read_bytes() == b"ours"


async def test_a_root_that_is_away_is_not_made(tmp_path: Path) -> None:
    """Else we wrote beneath the mountpoint of a disk that is away."""
    root = tmp_path / "mnt" / "nas"
    origin = LocalOrigin(str(root))
    for key in ("f", "a/b/f"):
        with pytest.raises(BucketNotFoundError):
            await origin.put(
                key, BytesPutSource(b"x"), condition=None, attributes=Attributes(), deadline=NEVER
            )
        with pytest.raises(BucketNotFoundError):
            await origin.make_directory(key, deadline=NEVER)
    await origin.close()
    assert os.listdir(tmp_path) == []


def test_who_comes_first_decides() -> None:
    abandoned = CommitPoint()
    abandoned.abandon()
    with pytest.raises(AbandonedError):
        abandoned.begin()
    taken = CommitPoint()
    taken.begin()
    taken.abandon()
    taken.check()  # goes on


_PUT = """
import asyncio, sys
from headrace.base.deadline import Deadline
from headrace.base.model import Attributes
from headrace.origin.local import LocalOrigin
from headrace.origin.source import BytesPutSource

origin = LocalOrigin(sys.argv[1])
ours = BytesPutSource(b"ours")
asyncio.run(origin.put("f", ours, condition=None, attributes=Attributes(), deadline=Deadline.never()))
"""


@pytest.mark.parametrize(("step", "expected"), [("origin.filled", b"old"), ("origin.named", b"ours")])
async def test_a_killed_put_leaves_the_old_or_the_new(tmp_path: Path, step: str, expected: bytes) -> None:
    path, _ = old_file(tmp_path)
    died = fork_server.run(
        [sys.executable, "-c", _PUT, str(tmp_path)],
        env={**os.environ, "HEADRACE_FAILPOINT": step},
        timeout=100,
    )
    assert died.returncode == -signal.SIGKILL
    assert path.read_bytes() == expected
    left = [name for name in os.listdir(tmp_path) if name.startswith(HIDDEN)]
    assert len(left) == (step == "origin.filled")
    async with opened(LocalOrigin(str(tmp_path))) as origin:
        assert set((await listing_of(origin, "")).objects) == {"f"}
        await origin.remove("f", condition=None, deadline=NEVER)


def test_what_crashes_left_is_swept_when_it_is_old(tmp_path: Path) -> None:
    left = tmp_path / f"{HIDDEN}1"
    left.write_bytes(b"half")
    (tmp_path / "stays").write_bytes(b"x")
    now_s = left.stat().st_ctime
    sweep(below(tmp_path), now_s + STALE_S - 60)
    assert left.exists()
    sweep(below(tmp_path), now_s + STALE_S + 60)
    assert os.listdir(tmp_path) == ["stays"]


class Settled(FilePutSource):
    """Notes what a folder has when its own file is synced."""

    def __init__(self, file: int, target: Path) -> None:
        super().__init__(file, sync=True)
        self.target = target
        self.settled = list[bool]()

    def settle(self) -> None:
        super().settle()
        self.settled.append(self.target.exists())


def test_what_is_put_is_on_its_own_disk_before_it_has_its_name(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(bytes(range(256)) * 100)
    with open(tmp_path / "source", "rb") as file:
        source = Settled(file.fileno(), tmp_path / "f")
        put_file(
            *(below(tmp_path) / b"f", "f", source),
            top=below(tmp_path),
            condition=Absent(),
            attributes=Attributes(),
            commit=CommitPoint(),
            version_of=version_of,
        )
    assert source.settled == [False]
    assert (tmp_path / "f").read_bytes() == bytes(range(256)) * 100


def test_the_last_bytes_are_not_given_away_before_they_are_on_the_own_disk(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x" * 1000)
    with open(tmp_path / "source", "rb") as file:
        source = Settled(file.fileno(), tmp_path / "f")
        source.pread(0, 900)
        assert source.settled == []
        source.pread(900, 1000)
        assert source.settled == [False]
