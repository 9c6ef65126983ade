"""One suite over every implementation of `Vfs`: the same bytes, the same stats and the same classes of errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.errors import (
    DirectoryNotEmptyError,
    IsADirectoryPathError,
    NotADirectoryPathError,
    NotAllowedError,
    NotSupportedError,
    PathExistsError,
    PathNotFoundError,
    ReadOnlyError,
)
from headrace.vfs.file_stat import is_directory, stat_of
from headrace.vfs.local_vfs import LocalVfs
from headrace.vfs.vfs import Vfs
from headrace.wire.messages import JobStart, JobState
from tests.integration.door.rest.conftest import Api

from .conftest import local_vfs, remote_vfs

pytestmark = pytest.mark.timeout(60)
MIB = 1 << 20


def truth_of(folder: Path) -> dict[bytes, bytes]:
    return {
        b"/data/" + os.fsencode(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


class TestReading:
    def test_every_byte_before_and_after_it_is_cached(self, api: Api, vfs: Vfs) -> None:
        truth = truth_of(api.truth)
        api.host.ok("free", "/data")
        for _ in range(2):
            assert {path: vfs.read(path, 0, None) for path in truth} == truth

    def test_ranges(self, api: Api, vfs: Vfs) -> None:
        large = (api.truth / "large").read_bytes()
        for start, end in (
            (0, 10),
            (MIB - 3, MIB + 3),
            (5, 4 * MIB),
            (7, 7),
            (MIB, None),
            (len(large), None),
        ):
            assert vfs.read(b"/data/large", start, end) == large[start:end], (start, end)
        assert vfs.read(b"/data/large", len(large) - 3, len(large) + 9) == large[-3:]
        assert vfs.read(b"/data/empty", 0, None) == b""

    def test_a_content_gives_the_bytes_in_each_way(self, api: Api, vfs: Vfs, tmp_path: Path) -> None:
        for path, data in truth_of(api.truth).items():
            content = vfs.content(path)
            try:
                assert content.size_bytes == len(data)
                assert content.read(0, len(data)) == data
                target = bytearray(100)
                count = content.read_into(memoryview(target), 1)
                assert bytes(target[:count]) == data[1 : 1 + count]
                assert count > 0 or len(data) <= 1
                with (tmp_path / "copy").open("w+b") as copy:
                    content.copy_to(copy.fileno())
                    assert os.pread(copy.fileno(), len(data) + 1, 0) == data
                assert os.pread(content.wait_whole(), len(data) + 1, 0) == data
            finally:
                content.close()

    def test_a_stream_is_a_file(self, api: Api, vfs: Vfs) -> None:
        large = (api.truth / "large").read_bytes()
        with vfs.open(b"/data/large") as stream:
            assert stream.size == len(large)
            assert b"".join(iter(lambda: stream.read(300_000), b"")) == large
            stream.seek(-5, os.SEEK_END)
            assert stream.read() == large[-5:]

    def test_a_cached_content_is_the_file_or_none(self, api: Api, vfs: Vfs) -> None:
        data = (api.truth / "small").read_bytes()
        assert vfs.read(b"/data/small", 0, None) == data
        content = vfs.content_if_cached(b"/data/small")
        if content is not None:
            assert content.read(0, len(data)) == data
            content.close()

    def test_stats_are_those_of_the_origin(self, api: Api, vfs: Vfs) -> None:
        for path, data in truth_of(api.truth).items():
            real_path, entry = vfs.find(path)
            assert (real_path, entry) == vfs.get(path) == vfs.get(path, follow=False)
            assert entry is not None
            stat = stat_of(os.fsdecode(path), entry)
            origin_stat = (api.truth / os.fsdecode(path.removeprefix(b"/data/"))).stat()
            assert (stat.kind, stat.size_bytes, stat.mtime_ns) == ("file", len(data), origin_stat.st_mtime_ns)
        for path in (b"/", b"/data", b"/data/images"):
            assert is_directory(vfs.get(path)[1])
            assert vfs.exists(path)

    def test_versions_differ_as_the_bytes_do(self, vfs: Vfs) -> None:
        paths = (b"/data/small", b"/data/block", b"/data/more")
        versions = [stat_of("", vfs.get(path)[1]).version for path in paths]
        assert len(set(versions)) == len(paths)
        assert versions == [stat_of("", vfs.get(path)[1]).version for path in paths]

    def test_children_are_in_byte_order(self, api: Api, vfs: Vfs) -> None:
        names = sorted(map(os.fsencode, os.listdir(api.truth)))
        children = dict(vfs.children(b"/data"))
        assert list(children) == names
        assert [name for name, _ in vfs.children(b"/data", after=names[1])] == names[2:]
        assert list(vfs.children(b"/data", after=names[-1])) == []
        assert [name for name in names if is_directory(children[name])] == [b"images"]
        assert stat_of("", children[b"large"]) == stat_of("", vfs.get(b"/data/large")[1])

    def test_a_missing_path(self, vfs: Vfs) -> None:
        for path in (b"/data/nothing", b"/nothing", b"/data/images/nothing/below"):
            assert vfs.find(path)[1] is None
            assert not vfs.exists(path)
            for call in (vfs.get, vfs.content, vfs.open, lambda path: vfs.read(path, 0, 1)):
                with pytest.raises(PathNotFoundError):
                    call(path)
            with pytest.raises(PathNotFoundError):
                list(vfs.children(path))

    def test_files_and_directories_are_not_mixed_up(self, vfs: Vfs) -> None:
        for call in (vfs.content, vfs.open, lambda path: vfs.read(path, 0, 1)):
            with pytest.raises(IsADirectoryPathError):
                call(b"/data/images")
        with pytest.raises(NotADirectoryPathError):
            list(vfs.children(b"/data/small"))
        assert not vfs.exists(b"/data/small/below")

    def test_a_child_after_a_fork_reads(self, api: Api, vfs: Vfs) -> None:
        data = (api.truth / "more").read_bytes()
        assert vfs.read(b"/data/more", 0, None) == data
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = int(vfs.read(b"/data/more", 0, None) != data)
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert vfs.read(b"/data/more", 0, None) == data


def put(vfs: Vfs, path: bytes, data: bytes, *, replace: bool = True, parents: bool = False) -> None:
    with vfs.create(path, replace=replace, parents=parents) as stream:
        stream.write(data)


def run(vfs: Vfs, kind: str, path: str) -> JobState:
    *_, last = vfs.run_job(JobStart(kind=kind, path=path, options={}))
    assert last.done
    return last


@pytest.fixture
def top(writable: Vfs, request: pytest.FixtureRequest) -> bytes:
    """A directory of the test's own, below the origin that is written to."""
    path = b"/out/" + os.fsencode(request.node.name)
    writable.make_directories(path)
    return path


class TestChanging:
    def test_the_origin_gets_the_bytes(self, api: Api, writable: Vfs, top: bytes) -> None:
        files = {b"empty": b"", b"small": b"written", b"large": os.urandom(3 * MIB + 5)}
        for name, data in files.items():
            put(writable, top + b"/" + name, data)
            assert writable.read(top + b"/" + name, 0, None) == data
        run(writable, "persist", os.fsdecode(top))
        folder = api.origin / os.fsdecode(top.removeprefix(b"/out/"))
        assert {os.fsencode(path.name): path.read_bytes() for path in folder.iterdir()} == files

    def test_a_file_is_replaced_whole(self, writable: Vfs, top: bytes) -> None:
        path = top + b"/f"
        put(writable, path, b"first, and longer")
        stream = writable.create(path, replace=True)
        stream.write(b"second")
        assert writable.read(path, 0, None) == b"first, and longer"
        stream.close()
        assert writable.read(path, 0, None) == b"second"

    def test_a_discarded_file_is_never_seen(self, writable: Vfs, top: bytes) -> None:
        stream = writable.create(top + b"/f", replace=True)
        stream.write(b"dropped")
        stream.discard()
        with pytest.raises(ZeroDivisionError), writable.create(top + b"/g", replace=True) as other:
            other.write(b"%d" % (1 // 0))
        assert list(writable.children(top)) == []

    def test_what_create_refuses(self, writable: Vfs, top: bytes) -> None:
        put(writable, top + b"/f", b"kept", replace=False)
        with pytest.raises(PathExistsError):
            put(writable, top + b"/f", b"lost", replace=False)
        with pytest.raises(IsADirectoryPathError):
            put(writable, top, b"lost")
        with pytest.raises(PathNotFoundError):
            put(writable, top + b"/a/b", b"lost")
        with pytest.raises(NotADirectoryPathError):
            put(writable, top + b"/f/below", b"lost", parents=True)
        with pytest.raises(ReadOnlyError):
            put(writable, b"/data/new", b"lost")
        assert writable.read(top + b"/f", 0, None) == b"kept"
        assert not writable.exists(b"/data/new")

    def test_the_later_of_two_new_files_is_refused_at_its_close(self, writable: Vfs, top: bytes) -> None:
        first, second = (writable.create(top + b"/f", replace=False) for _ in range(2))
        first.write(b"first")
        second.write(b"second")
        first.close()
        with pytest.raises(PathExistsError):
            second.close()
        assert writable.read(top + b"/f", 0, None) == b"first"

    def test_parents_are_created(self, writable: Vfs, top: bytes) -> None:
        put(writable, top + b"/a/b/f", b"deep", parents=True)
        assert [name for name, _ in writable.children(top + b"/a")] == [b"b"]
        assert writable.read(top + b"/a/b/f", 0, None) == b"deep"

    def test_directories(self, writable: Vfs, top: bytes) -> None:
        writable.make_directory(top + b"/d")
        writable.make_directories(top + b"/d")
        with pytest.raises(PathExistsError):
            writable.make_directory(top + b"/d")
        with pytest.raises(PathNotFoundError):
            writable.make_directory(top + b"/a/b")
        writable.make_directories(top + b"/d/e/f")
        with pytest.raises(DirectoryNotEmptyError):
            writable.remove_directory(top + b"/d")
        writable.remove_directory(top + b"/d/e/f")
        assert list(writable.children(top + b"/d/e")) == []

    def test_removal(self, writable: Vfs, top: bytes) -> None:
        put(writable, top + b"/a/b/f", b"", parents=True)
        put(writable, top + b"/f", b"")
        with pytest.raises(IsADirectoryPathError):
            writable.remove(top + b"/a")
        writable.remove(top + b"/f")
        writable.remove_all(top + b"/a")
        assert list(writable.children(top)) == []
        for call in (writable.remove, writable.remove_directory, writable.remove_all):
            with pytest.raises(PathNotFoundError):
                call(top + b"/a")

    def test_renames(self, writable: Vfs, top: bytes) -> None:
        put(writable, top + b"/d/f", b"moved", parents=True)
        put(writable, top + b"/g", b"replaced")
        writable.rename(top + b"/d/f", top + b"/g")
        assert writable.read(top + b"/g", 0, None) == b"moved"
        writable.rename(top + b"/d", top + b"/e")
        assert [name for name, _ in writable.children(top)] == [b"e", b"g"]
        with pytest.raises(PathNotFoundError):
            writable.rename(top + b"/d", top + b"/h")

    def test_a_copy(self, api: Api, writable: Vfs, top: bytes) -> None:
        writable.copy(b"/data/large", top + b"/deep/copy", parents=True)
        assert writable.read(top + b"/deep/copy", 0, None) == (api.truth / "large").read_bytes()
        with pytest.raises(PathNotFoundError):
            writable.copy(b"/data/nothing", top + b"/none")
        assert not writable.exists(top + b"/none")

    def test_a_load_has_an_end(self, api: Api, writable: Vfs) -> None:
        api.host.ok("free", "/data")
        last = run(writable, "load", "/data")
        assert (last.files_done, last.failed_files) == (len(truth_of(api.truth)), 0)
        assert "cache" in writable.status()


def test_the_node_of_the_host_appends_and_sets_times(writable: Vfs, top: bytes) -> None:
    path = top + b"/f"
    put(writable, path, b"one")
    if not isinstance(writable, LocalVfs):
        for call in (writable.append, writable.touch):
            with pytest.raises(NotSupportedError):
                call(path)
        return
    with writable.append(path) as stream:
        stream.write(b", two")
    assert writable.read(path, 0, None) == b"one, two"
    before = stat_of("", writable.get(path)[1])
    writable.touch(path)
    assert stat_of("", writable.get(path)[1]).mtime_ns > before.mtime_ns


def test_each_sees_at_once_what_another_wrote(api: Api) -> None:
    local, remote = local_vfs(api), remote_vfs(api)
    for number, (writer, reader) in enumerate(((local, remote), (remote, local))):
        path = b"/out/seen/%d" % number
        assert not reader.exists(path)
        put(writer, path, b"written", parents=True)
        assert reader.read(path, 0, None) == b"written"
        writer.remove(path)
        assert not reader.exists(path)
    remote.close()


CHANGES: dict[str, Callable[[Vfs], object]] = {
    "create": lambda vfs: vfs.create(b"/out/f", replace=True),
    "append": lambda vfs: vfs.append(b"/out/f"),
    "touch": lambda vfs: vfs.touch(b"/data/small"),
    "copy": lambda vfs: vfs.copy(b"/data/small", b"/out/f"),
    "check_writable": lambda vfs: vfs.check_writable(b"/out/f"),
    "make_directory": lambda vfs: vfs.make_directory(b"/out/f"),
    "make_directories": lambda vfs: vfs.make_directories(b"/out/f"),
    "remove": lambda vfs: vfs.remove(b"/data/small"),
    "remove_directory": lambda vfs: vfs.remove_directory(b"/data/images"),
    "remove_all": lambda vfs: vfs.remove_all(b"/data/images"),
    "rename": lambda vfs: vfs.rename(b"/data/small", b"/out/f"),
    "run_job": lambda vfs: list(vfs.run_job(JobStart(kind="free", path="/data", options={}))),
    "status": lambda vfs: vfs.status(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_users_node_is_only_read(brokered: Vfs, name: str) -> None:
    with pytest.raises(NotAllowedError):
        CHANGES[name](brokered)
    assert brokered.exists(b"/data/small") and not brokered.exists(b"/out/f")
