"""fsspec's own suites over the door, by the calls that wait and by its coroutines. For mv fsspec has none that a file
system could be put into: what its tests of mv say of local files is said here of the door."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from fsspec.asyn import get_loop, sync
from fsspec.tests import abstract

from tests.integration.door.conftest import forget, start

pytestmark = pytest.mark.timeout(60)


class ByCoroutines:
    """A file system whose calls are the coroutines of fs, on fsspec's loop in a thread, where there is one."""

    def __init__(self, fs: Any) -> None:
        self.fs = fs

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.fs, f"_{name}", None)
        if inspect.iscoroutinefunction(call):
            return functools.partial(sync, get_loop(), call)
        return getattr(self.fs, name)


@pytest.fixture(scope="module")
def door(needs_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The file system of a node that persists in the background."""
    with pytest.MonkeyPatch.context() as patch:
        host = start(tmp_path_factory.mktemp("door"), patch, write="back")
        yield fsspec.filesystem("headrace")
        forget()
        host.close()


class Fixtures(abstract.AbstractFixtures):  # type: ignore[misc]
    @pytest.fixture(params=["waiting", "coroutines"])
    def fs(self, door: Any, request: pytest.FixtureRequest) -> Any:
        if request.param == "waiting":
            return door
        return ByCoroutines(fsspec.filesystem("headrace", asynchronous=True))

    @pytest.fixture
    def fs_path(self, door: Any) -> Iterator[str]:
        door.makedirs("/suite", exist_ok=True)
        yield "/suite"
        if door.exists("/suite"):
            door.rm("/suite", recursive=True)

    @pytest.fixture
    def fs_join(self) -> Any:
        return os.path.join


class TestCopy(abstract.AbstractCopyTests, Fixtures):  # type: ignore[misc]
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):  # type: ignore[misc]
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):  # type: ignore[misc]
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):  # type: ignore[misc]
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):  # type: ignore[misc]
    pass


class TestMove(Fixtures):
    def test_a_file_gets_its_new_name_in_one_step(self, fs: Any, fs_path: str) -> None:
        fs.pipe(f"{fs_path}/source", b"content")
        fs.mv(f"{fs_path}/source", f"{fs_path}/target")
        assert (fs.exists(f"{fs_path}/source"), fs.cat(f"{fs_path}/target")) == (False, b"content")
        fs.pipe(f"{fs_path}/other", b"other")
        fs.mv(f"{fs_path}/other", f"{fs_path}/target")
        assert fs.find(fs_path) == [f"{fs_path}/target"]
        assert fs.cat(f"{fs_path}/target") == b"other"

    @pytest.mark.parametrize("recursive", [True, False])
    def test_a_folder_goes_with_all_below_it(self, fs: Any, fs_path: str, recursive: bool) -> None:
        fs.pipe({f"{fs_path}/from/a": b"a", f"{fs_path}/from/deep/b": b"b"})
        fs.mv(f"{fs_path}/from", f"{fs_path}/to", recursive=recursive)
        assert fs.find(fs_path) == [f"{fs_path}/to/a", f"{fs_path}/to/deep/b"]
        fs.mkdir(f"{fs_path}/into")
        fs.mv(f"{fs_path}/to", f"{fs_path}/into", recursive=recursive)
        assert fs.cat(f"{fs_path}/into/to/deep/b") == b"b"

    def test_lists_and_patterns(self, fs: Any, fs_path: str) -> None:
        fs.pipe({f"{fs_path}/{name}": name.encode() for name in ("a.txt", "b.txt", "c.bin")})
        fs.mv(f"{fs_path}/*.txt", f"{fs_path}/texts/")
        assert fs.find(f"{fs_path}/texts") == [f"{fs_path}/texts/a.txt", f"{fs_path}/texts/b.txt"]
        fs.mv([f"{fs_path}/texts/a.txt", f"{fs_path}/c.bin"], [f"{fs_path}/x", f"{fs_path}/y"])
        assert (fs.cat(f"{fs_path}/x"), fs.cat(f"{fs_path}/y")) == (b"a.txt", b"c.bin")

    def test_what_is_not_there_and_where_it_can_not_go(self, fs: Any, fs_path: str) -> None:
        with pytest.raises(FileNotFoundError):
            fs.mv(f"{fs_path}/nothing", f"{fs_path}/target")
        fs.pipe(f"{fs_path}/source", b"content")
        strict = fsspec.filesystem("headrace", auto_mkdir=False)
        with pytest.raises(FileNotFoundError):
            strict.mv(f"{fs_path}/source", f"{fs_path}/missing/target")
        fs.pipe(f"{fs_path}/file", b"in the way")
        with pytest.raises((NotADirectoryError, FileExistsError, FileNotFoundError)):
            fs.mv(f"{fs_path}/source", f"{fs_path}/file/target")
        assert fs.cat(f"{fs_path}/source") == b"content"
        assert fs.cat(f"{fs_path}/file") == b"in the way"
