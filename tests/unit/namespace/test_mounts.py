"""The mount table: longest prefix wins, whatever the order of attaching."""

from __future__ import annotations

import pytest

from headrace.base.errors import PathExistsError, PathNotFoundError, UsageError
from headrace.namespace.mounts import Mount, MountTable, normal_path


def mount(path: str) -> Mount:
    return Mount(path, f"memory://{path}", None, 60.0)  # type: ignore[arg-type]


def test_the_longest_prefix_wins() -> None:
    table = MountTable()
    for path in ("/a/b", "/", "/a"):
        table.add(mount(path))
    for path, where, key in [
        ("/a/b/c", "/a/b", "c"),
        ("/a/bc", "/a", "bc"),
        ("/x/y", "/", "x/y"),
        ("/a/b", "/a/b", ""),
    ]:
        match = table.find(path)
        assert match is not None
        assert (match[0].path, match[1]) == (where, key)


def test_above_all_mounts_there_is_nothing_but_their_names() -> None:
    table = MountTable()
    table.add(mount("/data/one"))
    table.add(mount("/data/two/deep"))
    assert table.find("/data") is None
    assert table.below("/") == {b"data"}
    assert table.below("/data") == {b"one", b"two"}


def test_twice_and_never() -> None:
    table = MountTable()
    table.add(mount("/a"))
    with pytest.raises(PathExistsError):
        table.add(mount("/a"))
    with pytest.raises(PathNotFoundError):
        table.remove("/b")


@pytest.mark.parametrize("bad", ["a", "", "/a/../b", "/./a"])
def test_bad_paths_are_refused(bad: str) -> None:
    with pytest.raises(UsageError):
        normal_path(bad)


def test_good_paths_are_made_normal() -> None:
    assert normal_path("//a///b/") == "/a/b"
    assert normal_path("/") == "/"


def test_a_path_much_deeper_than_every_mount_finds_its_own() -> None:
    table = MountTable()
    paths = ("/a/b/c", "/a", "/d")
    for path in paths:
        table.add(mount(path))
    deep = "/x" * 500
    for path in paths:
        match = table.find(f"{path}{deep}")
        assert match is not None
        assert (match[0].path, match[1]) == (path, deep[1:])
    table.remove("/a/b/c")
    match = table.find(f"/a/b/c{deep}")
    assert match is not None
    assert (match[0].path, match[1]) == ("/a", f"b/c{deep}")
    for path in ("/a", "/d"):
        table.remove(path)
    assert table.find(deep) is None
    table.add(mount("/"))
    match = table.find(deep)
    assert match is not None
    assert (match[0].path, match[1]) == ("/", deep[1:])
