"""Real faults on a host of one test. What a test mounts or attaches is gone in the end, whatever happened."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.store import index_checkpoint
from headrace.store.checksum import block_checksum
from tests.integration.cli.conftest import MakeHost, host, make_host
from tests.integration.cli.host import wait_until

__all__ = ["MakeHost", "host", "make_host"]

SHUTDOWN = 0x8004587D  # FS_IOC_SHUTDOWN of ext4 and xfs; linux/fs.h
SHUTDOWN_WITHOUT_LOG = 2


@pytest.fixture(autouse=True)
def _needs_root(needs_fuse: None) -> None:
    """Mark all tests here."""


class Disk:
    """A filesystem of its own at `folder`."""

    def __init__(self, folder: Path, image: Path | None) -> None:
        self.folder = folder
        self._image = image

    def break_down(self) -> None:
        """From now on the kernel answers EIO to every read and write."""
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", SHUTDOWN_WITHOUT_LOG))
        finally:
            os.close(fd)

    def mount_again(self) -> None:
        """Its log is replayed, as after a power loss. A process that was killed may have something of it open
        still; and a mount namespace that somebody made meanwhile keeps the old file system alive, so a copy is
        mounted."""
        assert self._image is not None
        words = ["umount", str(self.folder)]
        wait_until(lambda: subprocess.run(words, capture_output=True, check=False).returncode == 0, 30.0)
        left, self._image = self._image, self._image.with_name(f"{self._image.name}-")
        run("cp", "--sparse=always", left, self._image)
        left.unlink()
        run("mount", "-o", "loop", self._image, self.folder)

    def mount(self) -> None:
        assert self._image is not None
        run("mount", "-o", "loop", self._image, self.folder)

    def lose_sectors(self, keep_bytes: int) -> None:
        """Let what lies beyond be EIO to read, as on a disk with bad sectors; the page cache is dropped."""
        assert self._image is not None
        run("sync", "--file-system", self.folder)
        os.truncate(self._image, keep_bytes)
        Path("/proc/sys/vm/drop_caches").write_text("3")

    def remount(self, options: str) -> None:
        run("mount", "-o", f"remount,{options}", self.folder)


MakeDisk = Callable[[Path, str], Disk]


@pytest.fixture
def make_disk(tmp_path: Path, make_host: MakeHost) -> Iterator[MakeDisk]:
    """Call with a folder and "tmpfs:SIZE", "ext4:SIZE" or "bind". Unmounted before the host's own processes end."""
    mounted: list[Path] = []

    def make(folder: Path, kind: str) -> Disk:
        folder.mkdir(parents=True, exist_ok=True)
        name, _, size = kind.partition(":")
        image = None
        if name == "bind":
            run("mount", "--bind", folder, folder)
        elif name == "tmpfs":
            run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder)
        else:
            image = tmp_path / f"{folder.name}.img"
            with image.open("wb") as file:
                file.truncate(int(size))
            run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1", image)
            done = subprocess.run(
                ["mount", "-o", "loop", image, folder], capture_output=True, timeout=60, check=False
            )
            if done.returncode != 0:
                pytest.skip(f"no loop device here: {done.stderr.decode().strip()}")
        mounted.append(folder)
        return Disk(folder, image)

    yield make
    for folder in reversed(mounted):
        run("umount", "-l", folder)


def run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, timeout=30, capture_output=True)


def set_boot_id(index: Path, boot_id: str) -> None:
    """Change the boot id that a checkpoint of the index has, as if the machine had started again since."""
    path = index / "checkpoint"
    raw = path.read_bytes()
    page = raw[index_checkpoint._HEADER.size :]
    boot = boot_id.encode().ljust(64, b"\0")
    path.write_bytes(
        index_checkpoint._HEADER.pack(index_checkpoint._MAGIC, block_checksum(boot + page), boot) + page
    )
