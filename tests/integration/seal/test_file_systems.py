"""Seals and exclusive directories with the cache on each file system that operators use."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.mount_table import mounted_at
from headrace.fuse.device import unmount
from headrace.seal.catalogue import Catalogue, SealId
from headrace.seal.mounted import source_on_top
from tests.integration.cli.host import Host, drop_caches, wait_until
from tests.integration.persist.conftest import Writer, settled, tree_of

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

DISK_BYTES = 1 << 29
MAKE = {
    "ext4": ("mkfs.ext4", "-q"),
    "xfs": ("mkfs.xfs", "-q"),
    "btrfs": ("mkfs.btrfs", "-q"),
    "tmpfs": (),
}


@pytest.fixture(params=MAKE)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The mountpoint of an empty file system."""
    kind, make = request.param, MAKE[request.param]
    if kind not in Path("/proc/filesystems").read_text().split():
        pytest.skip(f"this kernel has no {kind}")
    if make and shutil.which(make[0]) is None:
        pytest.skip(f"no {make[0]}")
    folder, image = tmp_path / "disk", tmp_path / "image"
    folder.mkdir()
    source = ["tmpfs"]
    if make:
        image.touch()
        os.truncate(image, DISK_BYTES)
        subprocess.run([*make, image], check=True, capture_output=True)
        source = ["-o", "loop", str(image)]
    subprocess.run(["mount", "-t", kind, *source, folder], check=True)
    try:
        yield folder
    finally:
        assert unmount(str(folder), detach=True) == 0


@pytest.fixture
def host(disk: Path, tmp_path: Path) -> Iterator[Host]:
    """A host whose cache lies on the disk."""
    host = Host(tmp_path)
    host.cache = disk / "cache"
    try:
        for number in range(40):
            host.put(f"images/{number // 10}/{number}.bin", 1000 + number * 997)
        host.put("images/large.tar", (5 << 20) + 321)
        yield host
    finally:
        host.close()


def up(host: Host, *words: object) -> None:
    host.up(host.truth, host.mount, *words, cache=f"{host.cache}:256MiB")


def up_for_seals(host: Host) -> bool:
    """Return whether seals can be mounted. On a tmpfs they can't, and the node and the command say so."""
    up(host)
    row = mounted_at(str(host.cache.parent))
    assert row is not None
    if row.kind != "tmpfs":
        assert host.status()["seal_trouble"] == ""
        return True
    trouble = host.status()["seal_trouble"]
    assert "not on tmpfs" in trouble
    done = host.headrace("seal", host.mount, "--in-place")
    assert done.returncode != 0 and done.stderr.count("\n") == 1 and trouble in done.stderr
    host.ok("seal", host.mount, "--as", "all@1")  # its bytes are kept, and its paths can be read
    assert trouble in host.ok("status")
    host.ok("seal", "verify", "all@1")
    return False


def test_a_seal_is_served_from_it(host: Host) -> None:
    if not up_for_seals(host):
        return
    sealed = host.base / "sealed"
    host.ok("seal", host.mount, "--as", "all@1", "--in-place")
    host.ok("seal", "mount", "all@1", "--at", sealed)
    host.kill_all()
    drop_caches(host.cache)
    host.assert_right()
    host.assert_right(mount=sealed)
    host.assert_right(mount=sealed, mode="mmap")


def test_a_lazy_seal_becomes_whole_on_it(host: Host) -> None:
    if not up_for_seals(host):
        return
    sealed = host.base / "sealed"
    host.ok("load", host.mount / "images/0")
    host.ok("seal", host.mount, "--as", "all@1", "--at", sealed, "--lazy")
    assert source_on_top(str(sealed)).count(":") == 4
    host.assert_right(mount=sealed)
    catalogue = Catalogue.of_cache(str(host.cache))
    wait_until(lambda: not catalogue.record(SealId("all", 1)).is_lazy)
    wait_until(lambda: source_on_top(str(sealed)).count(":") == 3)
    host.kill_all()
    drop_caches(host.cache)
    host.assert_right(mount=sealed)


def test_an_exclusive_directory_works_on_it(host: Host) -> None:
    up(host, "--write", "off,/scratch=local,exclusive,/out=back,exclusive")
    for name in ("scratch", "out"):
        Writer(host.mount / name).run(
            "os.makedirs('a/b'); open('a/b/f', 'wb').write(os.urandom(110_000)); os.rename('a/b', 'c');"
            " open('sparse', 'w').truncate(1 << 20); os.link('c/f', 'g'); os.unlink('c/f')"
        )
    settled(host)
    assert tree_of(host.truth / "out") == Writer(host.mount / "out").tree()
    assert set(tree_of(host.truth / "out")) == {"a", "c", "g", "sparse"}
    assert not (host.truth / "scratch").exists()
    host.kill_all()
    up(host, "--write", "off,/scratch=local,exclusive,/out=back,exclusive")
    assert set(Writer(host.mount / "scratch").tree()) == {"a", "c", "g", "sparse"}
