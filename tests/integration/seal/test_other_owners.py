"""Others put these in the place of a seal's parts: disks of another cache, seals of another node, links of a user."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.fuse import device
from headrace.seal.mounted import seals_below
from tests.integration.cli.host import Host, wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]


@pytest.fixture
def files() -> int:
    """Return how many files of 300 kB each of two nodes' origins has."""
    return 40


@pytest.fixture
def two(tmp_path: Path, files: int) -> Iterator[list[Host]]:
    """Two nodes of this host. Their origins have files of the same names and sizes, with other bytes."""
    hosts = []
    try:
        for seed, name in enumerate(("a", "b")):
            (tmp_path / name).mkdir()
            host = Host(tmp_path / name)
            hosts.append(host)
            for number in range(files):
                host.put(f"images/{number}.bin", 300_000, seed=seed)
        yield hosts
    finally:
        for host in hosts:
            host.close()


def up(host: Host) -> None:
    words = ("--cache", f"{host.cache}:64MiB")
    host.up(host.truth, host.mount, *words, cache=f"{host.base}/second:256MiB")


@pytest.mark.parametrize("files", [280])  # 84 MB, more than the first directory of a cache takes
@pytest.mark.expected_warnings("node did not start")
def test_disks_in_each_others_place_show_no_other_bytes(two: list[Host]) -> None:
    """Files of both caches may have the same ids, so only the record of a volume tells them apart."""
    for host in two:
        up(host)
        host.ok("seal", "/images", "--as", "images@1", "--at", host.base / "sealed")
        host.assert_right()
        host.ok("down")
        device.unmount(str(host.base / "sealed"), detach=True)
    first, second = (host.base / "second" for host in two)
    assert all(list(folder.glob("files/*/*")) for folder in (first, second))
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    host = two[0]
    words = ("--cache", f"{host.cache}:64MiB", "--cache", f"{host.base}/second:256MiB")
    for command in (
        ("up", host.truth, host.mount, *words),
        ("seal", "mount", "images@1", "--at", host.base / "sealed"),
    ):
        host.environment["HEADRACE_CACHE"] = f"{host.cache}:64MiB,{host.base}/second:256MiB"
        done = host.headrace(*command)
        assert done.returncode != 0 and "belongs to another cache" in done.stderr, (command, done)
        assert done.stderr.count("\n") == 1
    del host.environment["HEADRACE_CACHE"]
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    for host in two:
        up(host)
        host.assert_right(mount=host.mount)


def test_two_nodes_seal_one_directory_and_neither_takes_the_others_place(
    two: list[Host], tmp_path: Path
) -> None:
    place = tmp_path / "shared"
    first, second = two
    for host in two:
        host.up()
        host.ok("seal", "/images", "--as", "images@1", "--in-place")
    first.ok("seal", "mount", "images@1", "--at", place)
    done = second.headrace("seal", "mount", "images@1", "--at", place)
    assert done.returncode != 0 and "a seal of another node is mounted there" in done.stderr
    for host in two:
        host.kill_all()
        host.up()
        host.assert_right()
    first.assert_right("images/3.bin", mount=first.mount)
    assert (place / "3.bin").read_bytes() == (first.truth / "images/3.bin").read_bytes()
    second.ok("seal", "remove", "images@1")
    second.assert_right()
    first.ok("seal", "remove", "images@1")
    assert seals_below(str(tmp_path)) == []


def test_a_mountpoint_below_a_users_directory_creates_nothing(two: list[Host]) -> None:
    host = two[0]
    host.up()
    host.ok("seal", "/images", "--as", "images@1")
    with tempfile.TemporaryDirectory() as name:
        theirs, target = Path(name, "theirs"), host.base / "target"
        Path(name).chmod(0o755)
        theirs.mkdir()
        target.mkdir()
        os.chown(theirs, 65534, 65534)
        (theirs / "link").symlink_to(target)
        for path in (theirs / "new", theirs / "new/deep"):
            done = host.headrace("seal", "mount", "images@1", "--at", path)
            assert done.returncode != 0 and "users other than root" in done.stderr
        assert os.listdir(theirs) == ["link"] and os.listdir(target) == []


def test_a_mount_below_a_sealed_data_set_is_seen(tmp_path: Path) -> None:
    """The automatic seal is removed: it would hide the names of the new mount."""
    host = Host(tmp_path, seal="auto", seal_quiet_s=1)
    try:
        for number in range(120):
            host.put(f"images/{number}.bin", 1000)
        other = tmp_path / "other"
        other.mkdir()
        (other / "file").write_bytes(b"of the other origin")
        host.environment["HEADRACE_ALLOWED_ORIGINS"] = f"file://{tmp_path}"
        host.up()
        host.ok("load", host.mount)
        wait_until(lambda: seals_below(str(tmp_path)) == [str(host.mount)])
        host.ok("mount", "add", "/images/sub", f"file://{other}")
        wait_until((host.mount / "images/sub/file").exists)
        assert (host.mount / "images/sub/file").read_bytes() == b"of the other origin"
        host.assert_right()
        host.ok("mount", "remove", "/images/sub")
        host.ok("sync", "/")
        wait_until(lambda: not (host.mount / "images/sub").exists())
    finally:
        host.close()
