"""A disk for each node of a lab: a file system on a loop device, over memory, as fast as it is told to be.

The limit is set for the device in the root of the cgroup v1 controller `blkio`, where it holds for the kernel's writing
back as well as for direct I/O. Nodes' disks then share neither a device nor a limit, as those of hosts.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack

from nodebench.machine import NotRunError, run, tool, unmount

LIMITS = tuple(f"/sys/fs/cgroup/blkio/blkio.throttle.{way}_bps_device" for way in ("read", "write"))


class Disks:
    """undo: is told how to take each away again."""

    def __init__(self, folder: str, undo: ExitStack) -> None:
        """folder: where images lie, in memory. NotRunError where devices or limits can't be had."""
        if not all(os.access(limit, os.W_OK) for limit in LIMITS):
            raise NotRunError("no disk of a stated bandwidth: the cgroup controller blkio (v1) is not there")
        self._folder, self._undo, self._made = folder, undo, 0

    def make(self, target: str, *, size_bytes: int, bytes_s: int) -> None:
        """An empty file system of that size at the folder `target`, which is read and written at most so fast."""
        self._made += 1
        image = os.path.join(self._folder, f"disk-{self._made}.img")
        with open(image, "wb") as out:
            out.truncate(size_bytes)
        self._undo.callback(os.unlink, image)
        run([tool("mkfs.ext4"), "-q", "-E", "lazy_itable_init=0", image], timeout_s=60)
        device = run([tool("losetup"), "--find", "--show", image], timeout_s=20).strip()
        self._undo.callback(_detach, device)
        os.makedirs(target, exist_ok=True)
        run(["mount", device, target], timeout_s=20)
        self._undo.callback(unmount, target)
        number = os.stat(device).st_rdev
        name = f"{os.major(number)}:{os.minor(number)}"
        self._undo.callback(_limit, name, 0)
        _limit(name, bytes_s)


def _limit(device: str, bytes_s: int) -> None:
    """0 for none."""
    for limit in LIMITS:
        with open(limit, "w") as control:
            control.write(f"{device} {bytes_s}")


def _detach(device: str) -> None:
    subprocess.run(["losetup", "-d", device], capture_output=True, timeout=20, check=False)
