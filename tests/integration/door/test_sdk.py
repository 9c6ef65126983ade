"""`headrace.connect()`: every byte is the origin's; in order or as it comes; in forked and spawned workers; async."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.base.errors import (
    IsADirectoryPathError,
    NotADirectoryPathError,
    PathExistsError,
    PathNotFoundError,
    ReadOnlyError,
    UsageError,
)
from headrace.sdk.bulk_read import Wanted
from headrace.sdk.cache import Cache
from headrace.vfs.local_vfs import LocalVfs
from headrace.wire.messages import JobState
from tests.integration.door.conftest import Host, forget, start

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One node for all tests of the module, that persists; each test has a folder of its own to write to."""
    with pytest.MonkeyPatch.context() as patch:
        host = start(tmp_path_factory.mktemp("sdk"), patch, write="back", persist_delay_s="0.1")
        yield host
        forget()
        host.close()


@pytest.fixture
def cache(host: Host) -> Iterator[Cache]:
    with headrace.connect() as cache:
        yield cache


def truth_of(host: Host) -> dict[str, bytes]:
    return {
        f"/{name}": (host.truth / name).read_bytes() for name in host.names() if not name.startswith("out")
    }


def test_every_byte_by_every_way(host: Host, cache: Cache) -> None:
    truth = truth_of(host)
    for _ in range(2):
        host.ok("free", "/")
        for ordered in (True, False):
            parts = list(cache.read_many(truth, ordered=ordered))
            assert {part.path: part.data for part in parts} == truth
            numbers = [part.number for part in parts]
            assert numbers == list(range(len(truth))) or (
                not ordered and sorted(numbers) == list(range(len(truth)))
            )
        for path, data in truth.items():
            assert cache.read(path) == data
            assert bytes(cache.map(path)) == data
            with cache.open(path) as stream:
                into = bytearray(len(data))
                assert stream.readinto(into) == len(data)  # type: ignore[attr-defined]
                assert bytes(into) == data
            assert cache.stat(path).size_bytes == len(data)


def test_ranges_of_many_files(host: Host, cache: Cache) -> None:
    truth, chance = truth_of(host), random.Random(7)
    host.ok("free", "/")
    wanted: list[Wanted] = []
    expected = []
    for path in chance.choices(sorted(truth), k=300):
        first = chance.randrange(len(truth[path]) + 10)
        end = chance.choice([None, first + chance.randrange(200_000)])
        wanted.append((path, first, end))
        expected.append(truth[path][first:end])
    assert [part.data for part in cache.read_many(wanted)] == expected


def test_an_endless_request_is_read_only_a_little_ahead(cache: Cache) -> None:
    asked = itertools.count()
    wanted = ("/small" for _ in asked)
    for ordered in (True, False):
        parts = cache.read_many(wanted, ordered=ordered)
        assert len(list(itertools.islice(parts, 500))) == 500
        parts.close()  # type: ignore[attr-defined]
        assert next(asked) < 2000


def test_what_can_not_be_read(cache: Cache) -> None:
    wanted = ["/small", "/nothing", "/folder", "/one"]
    parts = list(cache.read_many(wanted, on_error="return"))
    assert [type(part.error) for part in parts] == [
        type(None),
        PathNotFoundError,
        IsADirectoryPathError,
        type(None),
    ]
    with pytest.raises(PathNotFoundError, match=r"^/nothing: "):
        list(cache.read_many(wanted))
    with pytest.raises(FileNotFoundError):
        cache.stat("/nothing")
    with pytest.raises(UsageError, match="must be r, w, x or a"):
        cache.open("/small", "r+b")
    with pytest.raises(NotADirectoryPathError):
        list(cache.list("/small"))
    with pytest.raises(IsADirectoryPathError, match="recursive"):
        cache.remove("/folder")


def test_names(host: Host, cache: Cache) -> None:
    walked = {path: (sorted(folders), sorted(files)) for path, folders, files in cache.walk("/folder")}
    assert walked == {
        "/" + os.path.relpath(path, host.truth): (sorted(folders), sorted(files))
        for path, folders, files in os.walk(host.truth / "folder")
    }
    assert [entry.path for entry in cache.list("/folder/deeper")] == ["/folder/deeper/still"]
    assert sorted(cache.glob("/*e")) == ["/more", "/one"]
    assert sorted(cache.glob("/folder/[mo]*")) == ["/folder/more", "/folder/one"]
    files = {f"/{name}" for name in host.names() if name.startswith("folder/")}
    assert {path for path in cache.glob("/folder/**") if cache.stat(path).kind == "file"} == files
    assert list(cache.glob("/**/file")) == ["/folder/deeper/still/file"]
    assert list(cache.glob("/folder/none/*")) == []
    assert cache.exists("/small")
    assert not cache.exists("/folder/none")
    assert not cache.exists("/small/below")
    about = cache.stat("/folder")
    assert (about.kind, about.name, about.is_directory) == ("directory", "folder", True)


def test_what_is_written_is_at_the_origin(host: Host, cache: Cache, tmp_path: Path) -> None:
    data = random.Random(3).randbytes(3 << 20)
    (tmp_path / "source").write_bytes(data)
    cache.put("/out/a/bytes", data)
    with (tmp_path / "source").open("rb") as source:
        cache.put("/out/a/file", source)
    with cache.open("/out/text", "w") as text:
        text.write("line\n")
    with cache.open("/out/text", "a") as text:
        text.write("more\n")
    with pytest.raises(PathExistsError), cache.open("/out/text", "xb"):
        pass
    with pytest.raises(ZeroDivisionError), cache.open("/out/never", "wb") as never:
        never.write(b"half" + bytes([1 // 0]))
    cache.make_directory("/out/made/below")
    cache.rename("/out/a/file", "/out/made/below/moved")
    cache.remove("/out/a/bytes")
    with cache.open("/out/text", "r") as text:
        assert text.read() == "line\nmore\n"
    assert cache.persist().failed_files == 0
    assert (host.truth / "out/made/below/moved").read_bytes() == data
    assert (host.truth / "out/text").read_text() == "line\nmore\n"
    assert not (host.truth / "out/a/bytes").exists()
    assert not (host.truth / "out/never").exists()
    cache.remove("/out", recursive=True)
    cache.persist()
    assert not (host.truth / "out/text").exists()


def test_a_text_that_an_exception_ends_leaves_nothing(host: Host, cache: Cache) -> None:
    with cache.open("/out-text/kept", "w", encoding="utf-16") as text:
        text.write("kept\n")
    for path, mode in (("/out-text/never", "w"), ("/out-text/never", "x"), ("/out-text/kept", "a")):
        with pytest.raises(KeyboardInterrupt), cache.open(path, mode, encoding="utf-16") as text:
            text.write("half")
            text.flush()
            raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), cache.open("/out-text/kept", "w") as text:
        text.write("half")
        raise KeyboardInterrupt
    assert [stat.name for stat in cache.list("/out-text")] == ["kept"]
    assert cache.read("/out-text/kept").decode("utf-16") == "kept\n"
    cache.remove("/out-text", recursive=True)
    cache.persist()


def test_what_is_cached_hides_nothing_that_was_written(host: Host, cache: Cache) -> None:
    """The short way to a cached file is not taken beside the upper layer."""
    first = {name: host.put(name, 5000) for name in ("out-seen/a/f", "out-seen/a/g", "out-top")}
    host.ok("sync", "/")
    for _ in range(3):
        assert [cache.read(f"/{name}") for name in first] == list(first.values())
    cache.put("/out-seen/a/f", b"written")
    cache.put("/out-top", b"too")
    names = ["/out-seen/a/f", "/out-seen/a/g", "/out-top"]
    now = [b"written", first["out-seen/a/g"], b"too"]
    assert [cache.read(name) for name in names] == now
    assert [part.data for part in cache.read_many(names)] == now
    cache.remove("/out-seen/a/g")
    cache.rename("/out-seen/a", "/out-seen/b")
    for name in ("/out-seen/a/f", "/out-seen/a/g", "/out-seen/b/g"):
        with pytest.raises(PathNotFoundError):
            cache.read(name)
    assert cache.read("/out-seen/b/f") == b"written"
    cache.remove("/out-seen", recursive=True)
    cache.remove("/out-top")
    cache.persist()


def test_beside_what_can_be_written_a_file_is_found_the_short_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = start(tmp_path, monkeypatch, write="off,/folder/out=local")
    try:
        with headrace.connect() as cache:
            for path in ("/one", "/folder/small", "/folder/deeper/still/file"):
                truth = (host.truth / path[1:]).read_bytes()
                assert cache.read(path) == truth
                assert _read_the_short_way(cache, path) == truth
            cache.put("/folder/out/small", b"written")
            assert cache.read("/folder/out/small") == b"written"
            assert cache.read("/folder/small") == (host.truth / "folder/small").read_bytes()
            assert _local_vfs(cache).open_whole(b"/folder/out/small") is None
    finally:
        forget()
        host.close()


def _local_vfs(cache: Cache) -> LocalVfs:
    assert isinstance(cache._vfs, LocalVfs)
    return cache._vfs


def _read_the_short_way(cache: Cache, path: str) -> bytes:
    """Until it can: the short way is for a second after the long one."""
    while (whole := _local_vfs(cache).open_whole(os.fsencode(path))) is None:
        cache.exists(path)
    with open(whole[0], "rb") as file:
        return file.read()


def test_load_and_status(host: Host, cache: Cache) -> None:
    cache.free("/")
    states: list[JobState] = []
    done = cache.load("/folder", on_progress=states.append)
    files = [name for name in host.names() if name.startswith("folder/")]
    assert (done.files_done, done.failed_files, states[-1]) == (len(files), 0, done)
    cached = cache.status()["cache"]
    assert isinstance(cached, dict)
    assert cached["used_bytes"] >= sum((host.truth / name).stat().st_size for name in files)
    assert cache.pin("/folder/small").failed_files == 0
    assert cache.unpin("/folder/small").failed_files == 0


@pytest.mark.parametrize("job", ["free", "load", "persist", "pin", "seal", "unpin"])
def test_an_empty_path_is_not_the_whole_namespace(cache: Cache, job: str) -> None:
    with pytest.raises(UsageError, match="it is empty"):
        getattr(cache, job)("")


def _in_a_child(cache: Cache | None, answer: Connection) -> None:
    reader = headrace.connect() if cache is None else cache
    answer.send({part.path: part.data for part in reader.read_many(["/small", "/large.tar", "/folder/more"])})


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_too(host: Host, cache: Cache, method: str) -> None:
    truth = truth_of(host)
    list(cache.read_many(["/small"]))  # threads and descriptors of the parent are there
    context: Any = multiprocessing.get_context(method)
    mine, theirs = context.Pipe()
    worker = context.Process(target=_in_a_child, args=(cache if method == "fork" else None, theirs))
    worker.start()
    theirs.close()
    try:
        assert mine.poll(60)
        bodies = mine.recv()
    finally:
        worker.join(60)
        worker.kill()
    assert bodies == {path: truth[path] for path in ("/small", "/large.tar", "/folder/more")}


async def test_async(host: Host) -> None:
    truth = truth_of(host)
    async with await headrace.connect_async() as cache:
        bodies = {part.path: part.data async for part in cache.read_many(truth, ordered=False)}
        assert bodies == truth
        assert await asyncio.gather(*map(cache.read, truth)) == list(truth.values())
        assert {entry.path async for entry in cache.list("/folder/deeper")} == {"/folder/deeper/still"}
        await cache.put("/out-async/x", b"written")
        assert (await cache.stat("/out-async/x")).size_bytes == 7
        await cache.remove("/out-async", recursive=True)
        async for part in cache.read_many(["/small"] * 500):
            assert part.data == truth["/small"]
            break  # left early: nothing hangs
        assert (await cache.load("/")).failed_files == 0


def test_read_only_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget()
    host = start(tmp_path, monkeypatch)
    try:
        with headrace.connect(cache=str(host.cache)) as cache, pytest.raises(ReadOnlyError, match="write"):
            cache.put("/x", b"")
    finally:
        forget()
        host.close()


def test_to_import_it_costs_little() -> None:
    """Nothing that a program which reads does not need: import and connect together are limited in milliseconds
    (docs/decisions/0015-what-bounds-the-doors.md), and each of these is several."""
    code = "import sys; before = set(sys.modules); import headrace; headrace.connect; "
    code += "print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = set(done.stdout.split())
    roots = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    assert roots <= {"headrace", "msgspec", "lmdb", "xxhash", "typing_extensions", "org"}
    dear = {"asyncio", "ssl", "ctypes", "dataclasses", "tomllib", "urllib.parse", "shutil", "random", "json"}
    assert not names & dear
    assert "headrace.vfs.local_vfs" in names  # else `connect` would have to import it
