"""Seals inside a directory that is sealed itself: readers of the inner ones meet no other version."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.base import mount_api
from headrace.base.mount_api import closing_descriptor, detached_mount, opened_directory
from headrace.fuse import device
from headrace.seal.inner_mounts import inner_mounts
from headrace.seal.mounted import seals_below
from headrace.seal.places import unmount_seal
from tests.integration.cli.host import READ_PAUSE_S, Host, wait_until, with_settings

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

NAME = "images/0/5.bin"


class Reader:
    """Reads a file again and again until the end of a block, and asserts that each body is one of those expected."""

    def __init__(self, path: Path, *expected: bytes) -> None:
        self._path, self._expected = path, expected
        self._ended = threading.Event()
        self._began = threading.Event()
        self._wrong: list[object] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ended.wait(READ_PAUSE_S) and not self._wrong:
            try:
                body = self._path.read_bytes()
            except OSError as error:
                self._wrong.append(error)
            else:
                self._wrong += [] if body in self._expected else [len(body)]
            self._began.set()

    def __enter__(self) -> Reader:
        self._thread.start()
        assert self._began.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        assert self._wrong == []


def bodies(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def change(host: Host, seed: int) -> dict[str, bytes]:
    """Change a file of each directory at the origin, and return all that the origin has then."""
    for name in (NAME, "images/1/15.bin", "other"):
        host.put(name, 3000 + seed, seed=seed)
    host.ok("sync", "/")
    return bodies(host.truth)


def merged(outer: dict[str, bytes], *inner: tuple[str, dict[str, bytes]]) -> dict[str, bytes]:
    """Return what readers meet where seals of directories lie over an outer one."""
    for folder, version in inner:
        outer = {
            name: version[name] if name.startswith(f"{folder}/") else body for name, body in outer.items()
        }
    return outer


@pytest.mark.parametrize("outer", ["", "images"])
def test_the_inner_seals_stay_on_top(host: Host, outer: str) -> None:
    """Two inner ones, one inside the other, and then one around both, which changes its version and goes."""
    host.up()
    first = bodies(host.truth)
    host.ok("seal", host.mount / "images/0", "--in-place", "--as", "inner")
    second = change(host, 1)
    with Reader(host.mount / NAME, first[NAME]):
        host.ok("seal", host.mount / "images", "--in-place", "--as", "middle")
        assert bodies(host.mount) == merged(second, ("images/0", first))
        third = change(host, 2)
        host.ok("seal", host.mount / outer, "--in-place", "--as", "outer")
    sealed = merged(third, ("images", second), ("images/0", first))
    if outer:  # it took the place of the middle one
        sealed = merged(third, ("images/0", first))
    assert bodies(host.mount) == sealed
    change(host, 3)
    with Reader(host.mount / NAME, first[NAME]):
        host.ok("seal", host.mount / outer, "--in-place", "--as", "outer@2")
        host.ok("seal", "mount", "outer@1", "--in-place")
    assert bodies(host.mount) == sealed | ({"other": bodies(host.truth)["other"]} if outer else {})
    host.ok("seal", "remove", "outer@1")
    host.ok("seal", "remove", "outer@2")
    now = bodies(host.truth)
    expected = (
        merged(now, ("images/0", first)) if outer else merged(now, ("images", second), ("images/0", first))
    )
    wait_until(lambda: bodies(host.mount) == expected)
    host.ok("seal", "remove", "middle@1")
    wait_until(lambda: bodies(host.mount) == merged(now, ("images/0", first)))
    host.ok("seal", "remove", "inner@1")
    wait_until(lambda: bodies(host.mount) == now)
    assert seals_below(str(host.base)) == []
    host.ok("down")
    host.assert_nothing_left()


def test_an_inner_seal_changes_its_version_below_an_outer_one(host: Host) -> None:
    host.up()
    first = bodies(host.truth)
    host.ok("seal", host.mount / "images/0", "--in-place", "--as", "inner")
    host.ok("seal", host.mount, "--in-place", "--as", "outer")
    second = change(host, 1)
    with Reader(host.mount / NAME, first[NAME], second[NAME]):
        host.ok("seal", "/images/0", "--in-place", "--as", "inner@2")
        assert bodies(host.mount) == merged(first, ("images/0", second))
    host.ok("seal", "remove", "outer@1")
    wait_until(lambda: bodies(host.mount) == merged(second, ("images/0", second)))
    assert seals_below(str(host.base)) == [str(host.mount / "images/0")]


def test_nested_seals_come_back_with_up(host: Host) -> None:
    host.up()
    first = bodies(host.truth)
    host.ok("seal", host.mount / "images/0", "--in-place", "--as", "inner")
    second = change(host, 1)
    host.ok("seal", host.mount, "--in-place", "--as", "outer")
    change(host, 2)
    for stop in (host.kill_all, lambda: host.ok("down")):
        stop()
        host.up()
        assert bodies(host.mount) == merged(second, ("images/0", first))
        assert sorted(seals_below(str(host.base))) == [str(host.mount), str(host.mount / "images/0")]
    pid = host.kill("node")
    host.wait_pid("node", other_than=pid)
    assert bodies(host.mount) == merged(second, ("images/0", first))


def test_an_inner_directory_that_the_outer_seal_lacks_is_named(host: Host) -> None:
    host.up()
    host.ok("seal", host.mount / "images/0", "--in-place", "--as", "inner")
    for path in (host.truth / "images/0").iterdir():
        path.unlink()
    (host.truth / "images/0").rmdir()
    host.ok("sync", "/")
    done = host.headrace("seal", host.mount / "images", "--in-place", "--as", "outer")
    assert done.returncode == 0
    assert f"seal inner@1 is not mounted at {host.mount}/images/0" in done.stderr
    assert bodies(host.mount) == bodies(host.truth)


def test_an_inner_seal_outlives_an_automatic_one_around_it(host: Host) -> None:
    """A user seals a directory inside a data set that the node sealed. Its readers keep their version when the
    automatic seal goes."""
    for number in range(120):
        host.put(f"many/{number}.bin", 400 + number)
    host.environment |= {"HEADRACE_SEAL": "auto", "HEADRACE_SEAL_QUIET_S": "1"}
    host.up()
    host.ok("load", host.mount)
    wait_until(lambda: str(host.mount) in seals_below(str(host.base)), 60)
    first = bodies(host.truth)
    host.ok("seal", host.mount / "images/0", "--in-place", "--as", "inner")
    assert bodies(host.mount) == first
    second = change(host, 1)
    wait_until(lambda: bodies(host.mount) == merged(second, ("images/0", first)), 60)
    wait_until(lambda: seals_below(str(host.base)) == [str(host.mount / "images/0")], 60)


@contextmanager
def _view(folder: Path, name: str) -> Iterator[int]:
    """Yield a view of a directory, as the mount table shows one of a seal, mounted nowhere."""
    options: list[tuple[str, str | int]] = [("source", f"headrace-seal:0-0:{name}@1:0")]
    with opened_directory(str(folder / name)) as lower, opened_directory(str(folder / "empty")) as empty:
        view = detached_mount("overlay", [*options, ("lowerdir+", lower), ("lowerdir+", empty)])
    with closing_descriptor(view):
        yield view


@pytest.mark.parametrize("kernel", ["6.15", "6.14"])
def test_kernels_that_mount_nothing_on_a_view_do_so_when_it_is_attached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    for name in ("outer/a/b", "inner", "empty", "at/a/b"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("outer", "inner"):
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "outer/a/file").write_text("outer")
    refusals = [] if kernel == "6.15" else [OSError(errno.EINVAL, "Invalid argument")]

    def attach_or_refuse(mount: int, directory: int) -> None:
        if refusals:
            raise refusals.pop()
        mount_api.attach(mount, directory)

    monkeypatch.setattr("headrace.seal.inner_mounts.attach", attach_or_refuse)
    place = tmp_path / "at"
    try:
        with _view(tmp_path, "inner") as view, opened_directory(str(place / "a")) as target:
            mount_api.attach(view, target)
        with (
            opened_directory(str(place)) as target,
            _view(tmp_path, "outer") as view,
            inner_mounts(str(place)) as inner,
        ):
            assert inner.attach_to(view) is (kernel == "6.15")
            mount_api.attach(view, target)
            assert kernel == "6.15" or inner.attach_to(view)
            inner.unmount_covered()
        assert seals_below(str(place)) == [str(place), str(place / "a")]
        assert [(place / name).read_text() for name in ("file", "a/file")] == ["outer", "inner"]
        unmount_seal(str(place))
        assert seals_below(str(place)) == [str(place / "a")]
        assert (place / "a/file").read_text() == "inner"
    finally:
        for path in reversed(seals_below(str(place))):
            device.unmount(path, detach=True)


@pytest.mark.parametrize("replaces", [False, True])
def test_a_command_that_is_killed_leaves_no_hidden_seal_in_the_way(host: Host, replaces: bool) -> None:
    """It dies when the outer seal is mounted, and before what that one hides is unmounted."""
    host.up()
    first = bodies(host.truth)
    host.ok("seal", host.mount / "images/0", "--in-place", "--as", "inner")
    if replaces:
        host.ok("seal", host.mount, "--in-place", "--as", "outer")
    second = change(host, 1)
    host.ok("seal", host.mount, "--as", "outer@2")
    with with_settings(host, failpoint="seal.beneath"):
        assert host.headrace("seal", "mount", "outer@2", "--in-place").returncode == -9
    outer = first if replaces else second
    assert bodies(host.mount) == merged(outer, ("images/0", first))
    assert host.json("seal", "show", "inner@1")["mounted"] == str(host.mount / "images/0")
    host.ok("seal", "remove", "inner@1")
    assert bodies(host.mount) == outer
    host.ok("seal", "mount", "outer@2", "--in-place")
    assert bodies(host.mount) == second
    change(host, 2)
    for version in ("outer@2", *(["outer@1"] if replaces else [])):
        host.ok("seal", "remove", version)
    wait_until(lambda: bodies(host.mount) == bodies(host.truth))
    assert seals_below(str(host.base)) == []
