"""Reading by `headrace://`: every byte is the origin's, from where it lies."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from headrace.base.errors import NodeUnavailableError, NotSupportedError, ReadOnlyError, UsageError
from headrace.integrations.fsspec import HeadraceFileSystem
from tests.integration.door.conftest import Host, MakeDoor, wait_until

pytestmark = pytest.mark.timeout(90)


def truth_of(host: Host) -> dict[str, bytes]:
    return {f"/{name}": (host.truth / name).read_bytes() for name in host.names()}


def test_every_byte_is_the_origins_cold_and_warm(make_door: MakeDoor) -> None:
    host, fs = make_door()
    truth = truth_of(host)
    for _ in range(2):
        assert fs.cat(list(truth)) == truth
        for path, data in truth.items():
            assert fs.cat_file(f"headrace://{path}") == data
            with fs.open(path) as stream:
                assert stream.read() == data
                assert (stream.size, stream.name) == (len(data), path)
        assert fs.cat("/", recursive=True) == truth


def test_ranges_and_seeks_of_a_file_that_is_not_cached(make_door: MakeDoor) -> None:
    host, fs = make_door()
    data = (host.truth / "large.tar").read_bytes()
    chance = random.Random(5)
    with fs.open("/large.tar") as stream:
        for _ in range(40):
            position, count = chance.randrange(len(data) + 100), chance.randrange(1, 3 << 20)
            assert stream.seek(position) == position
            assert stream.read(count) == data[position : position + count]
        stream.seek(-1000, os.SEEK_END)
        assert stream.read() == data[-1000:]
    starts = [chance.randrange(len(data)) for _ in range(30)]
    ends = [start + chance.randrange(1, 200_000) for start in starts]
    pieces = fs.cat_ranges(["/large.tar"] * 30, starts, ends)
    assert pieces == [data[start:end] for start, end in zip(starts, ends, strict=True)]
    for start, end in ((None, 10), (-10, None), (5, -5), (-7, -3), (0, 0), (9, 3), (len(data), None)):
        assert fs.cat_file("/large.tar", start, end) == data[start:end]
    assert fs.head("/large.tar", 100) == data[:100]
    assert fs.read_block("/large.tar", 7, 50) == data[7:57]


def test_what_can_not_be_read_does_not_spoil_the_rest(make_door: MakeDoor) -> None:
    host, fs = make_door()
    small = (host.truth / "small").read_bytes()
    paths = ["/small", "/nothing", "/folder"]
    assert fs.cat(paths, on_error="omit") == {"/small": small}
    contents = fs.cat(paths, on_error="return")
    assert contents["/small"] == small
    assert isinstance(contents["/nothing"], FileNotFoundError)
    assert isinstance(contents["/folder"], IsADirectoryError)
    with pytest.raises(FileNotFoundError, match=r"^/nothing: "):
        fs.cat(paths)
    (data, error) = fs.cat_ranges(["/small", "/nothing"], 3, [9, 9])
    assert data == small[3:9]
    assert isinstance(error, FileNotFoundError)
    with pytest.raises(FileNotFoundError, match=r"^/small/below: "):
        fs.ls("/small/below")


def test_names_are_as_a_walk_of_the_origin_has_them(make_door: MakeDoor) -> None:
    host, fs = make_door()
    truth = truth_of(host)
    assert fs.find("/") == sorted(truth)
    assert fs.du("/") == sum(map(len, truth.values()))
    walked = {path: (sorted(folders), sorted(files)) for path, folders, files in fs.walk("/")}
    expected = {
        "/" + os.path.relpath(path, host.truth).lstrip("."): (sorted(folders), sorted(files))
        for path, folders, files in os.walk(host.truth)
    }
    assert walked == expected
    assert [name for name in fs.glob("/folder/**") if fs.isfile(name)] == fs.find("/folder")
    assert fs.glob("headrace:///*e") == ["/one", "/more"][::-1]
    assert fs.isdir("folder/deeper")
    assert fs.isfile("headrace://folder/small")
    assert not fs.exists("/folder/none")
    assert not fs.exists("/small/none")
    about = fs.info("/small")
    stat = (host.truth / "small").stat()
    assert (about["size"], about["type"], about["name"]) == (110_000, "file", "/small")
    assert about["mtime"] == pytest.approx(stat.st_mtime)
    assert fs.modified("/small").timestamp() == pytest.approx(stat.st_mtime)
    before = fs.checksum("/small"), fs.checksum("/one")
    host.put("small", 110_000, seed=9)
    host.ok("sync", "/")
    assert (fs.checksum("/small") != before[0], fs.checksum("/one")) == (True, before[1])
    assert fs.cat("/small") == (host.truth / "small").read_bytes()


def test_a_cached_file_is_read_from_its_cache_file_also_without_a_node(make_door: MakeDoor) -> None:
    host, fs = make_door()
    truth = truth_of(host)
    fs.cat(list(truth))
    for name in truth:
        with fs.open(name) as stream:
            assert os.readlink(f"/proc/self/fd/{stream.fileno()}").startswith(f"{host.cache}/files/")
    os.kill(host.pid_of("node") or next(iter(host.processes())), signal.SIGKILL)
    wait_until(lambda: not host.processes())
    assert fs.cat(list(truth)) == truth


def test_what_is_fetched_for_the_door_is_cached_for_all(make_door: MakeDoor, tmp_path: Path) -> None:
    host, fs = make_door()
    fs.get("/folder", str(tmp_path / "got"), recursive=True)
    for name in ("empty", "one", "small", "block", "more", "deeper/still/file"):
        assert (tmp_path / "got" / name).read_bytes() == (host.truth / "folder" / name).read_bytes()
    fs.get_file("/large.tar", str(tmp_path / "new/large.tar"))
    assert (tmp_path / "new/large.tar").read_bytes() == (host.truth / "large.tar").read_bytes()
    assert host.json("stat", "/folder/small")["cached"] == "yes"


def test_forked_children_and_copies_by_pickle_read(make_door: MakeDoor) -> None:
    host, fs = make_door()
    truth = truth_of(host)
    assert fs.cat("/small") == truth["/small"]
    again = pickle.loads(pickle.dumps(fs))
    assert again.cat("/one") == truth["/one"]

    def child(results: Any) -> None:
        results.put(fs.cat(list(truth)) == truth)

    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    children = [context.Process(target=child, args=(results,)) for _ in range(2)]
    for process in children:
        process.start()
    assert [results.get() for _ in children] == [True, True]
    for process in children:
        process.join()
    assert fs.cat("/more") == truth["/more"]


def test_without_a_node_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_RUN_FOLDER", str(tmp_path))
    HeadraceFileSystem.clear_instance_cache()
    fs = fsspec.filesystem("headrace")
    calls: list[Callable[[], object]] = [
        lambda: fs.cat("/x"),
        lambda: fs.exists("/x"),
        lambda: fs.isdir("/x"),
        lambda: fs.ls("/"),
    ]
    for call in calls:
        with pytest.raises(NodeUnavailableError, match=r"^no node runs on this host: .* `headrace up`"):
            call()
    with pytest.raises(NodeUnavailableError, match=r"^no node answers at "):
        fsspec.filesystem("headrace", cache=str(tmp_path / "none")).ls("/")
    HeadraceFileSystem.clear_instance_cache()


def test_of_two_nodes_the_one_that_is_named(make_door: MakeDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    host, _ = make_door()
    config = host.base / "other.toml"
    (host.base / "other").mkdir()
    (host.base / "other/only").write_bytes(b"here")
    config.write_text(f'[mounts."/"]\nurl = "{host.base}/other"\n')
    second = host.base / "cache2"
    host.start("node", "run", "--config", config, "--cache", f"{second}:1GiB").wait_ready()
    HeadraceFileSystem.clear_instance_cache()
    with pytest.raises(UsageError, match=r"^2 nodes run on this host: .*cache=DIR"):
        fsspec.filesystem("headrace").ls("/")
    assert fsspec.filesystem("headrace", cache=str(second)).cat("/only") == b"here"
    assert not fsspec.filesystem("headrace", cache=f"{host.cache}:1GiB").exists("/only")
    monkeypatch.setenv("HEADRACE_CACHE", f"{second}:1GiB")
    with fsspec.open("headrace:///only", skip_instance_cache=True) as stream:
        assert stream.read() == b"here"


def test_where_nothing_can_be_written_it_is_said(make_door: MakeDoor, tmp_path: Path) -> None:
    host, fs = make_door()
    before = truth_of(host)
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: fs.open("/new", "wb"),
        "open again": lambda: fs.open("/small", "wb"),
        "append": lambda: fs.open("/small", "ab"),
        "text": lambda: fs.open("/new/deep", "w"),
        "pipe": lambda: fs.pipe("/new", b"x"),
        "put": lambda: fs.put(str(host.base / "config.toml"), "/new"),
        "touch": lambda: fs.touch("/small", truncate=False),
        "mkdir": lambda: fs.mkdir("/new"),
        "makedirs": lambda: fs.makedirs("/new/folder"),
        "rm": lambda: fs.rm("/small"),
        "rm all": lambda: fs.rm("/folder", recursive=True),
        "rmdir": lambda: fs.rmdir("/folder"),
        "mv": lambda: fs.mv("/small", "/new"),
        "cp": lambda: fs.cp_file("/small", "/new"),
    }
    for name, call in calls.items():
        with pytest.raises(ReadOnlyError, match=r"write mode is off .*--write back") as caught:
            call()
        assert "\n" not in str(caught.value), name
    assert truth_of(host) == before
    assert fs.find("/") == sorted(before)
    with pytest.raises(NotSupportedError, match="mode 'r\\+b'"):
        fs.open("/small", "r+b")
