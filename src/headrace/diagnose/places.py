"""The file systems that a job reads from, and what their disks and nodes did meanwhile."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from headrace.diagnose.recording import FileSystemUsage, Storage

StatusOf = Callable[[str], dict[str, Any] | None]
"""Mountpoint → what the node says of itself, or None. "" is the node that Headrace's library would find."""

_SHARES = frozenset(
    (
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
        "9p",
        "virtiofs",
        "afs",
        "orangefs",
        "wekafs",
    )
)
_MEMORY = frozenset(("tmpfs", "ramfs", "devtmpfs", "proc", "sysfs", "hugetlbfs"))
_HEADRACE = "fuse.headrace"
_LIBRARY = "headrace://"
"""In place of a mountpoint, where the job asks the node without one."""
_SECTOR_BYTES = 512
_NETWORK_CARDS = "/sys/class/net"


@dataclass(frozen=True, slots=True)
class _Mount:
    mountpoint: str
    device: str
    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class _Disk:
    bytes_read: int
    busy_ms: int


class PlaceWatch:
    """Counters at its making, and at seen(). pid: whose mounts count."""

    def __init__(self, status_of: StatusOf, pid: int) -> None:
        self._status_of = status_of
        self._pid = pid
        self._began = _disks()
        self._mounts = _mounts_of_job(pid)
        self._node = status_of("")
        self._nodes = {
            one.mountpoint: status_of(one.mountpoint) for one in self._mounts if one.kind == _HEADRACE
        }

    def seen(
        self, paths: Iterable[str], wall_s: float, *, by_library: bool = False
    ) -> tuple[FileSystemUsage, ...]:
        """The places that the paths lie on, by the mounts of the process; by those of its start if it has ended.
        by_library: the node, too, as the job asked it without a mount."""
        try:
            self._mounts = mounts(self._pid)
        except (OSError, ValueError):
            pass
        disks = _disks()
        wanted = {mount for path in paths if (mount := _mount_of(path, self._mounts)) is not None}
        found = [self._place(one, disks, wall_s) for one in sorted(wanted, key=lambda one: one.mountpoint)]
        if (
            by_library
            and self._node is not None
            and not any(one.storage is Storage.HEADRACE for one in found)
        ):
            found.append(self._headrace(_Mount(_LIBRARY, "", _HEADRACE, "this host's node")))
        return tuple(found)

    def _place(self, mount: _Mount, disks: dict[str, _Disk], wall_s: float) -> FileSystemUsage:
        if mount.kind == _HEADRACE:
            return self._headrace(mount)
        if mount.kind in _SHARES or mount.kind.startswith("fuse"):
            return FileSystemUsage(mount.mountpoint, Storage.SHARE, mount.kind, mount.source)
        if mount.kind in _MEMORY:
            return FileSystemUsage(mount.mountpoint, Storage.MEMORY, mount.kind, mount.source)
        now, before = disks.get(mount.device), self._began.get(mount.device, _Disk(0, 0))
        if now is None:
            return FileSystemUsage(mount.mountpoint, Storage.DISK, mount.kind, mount.source)
        return FileSystemUsage(
            mountpoint=mount.mountpoint,
            storage=Storage.DISK,
            kind=mount.kind,
            source=mount.source,
            bytes_read=now.bytes_read - before.bytes_read,
            busy=min(1.0, (now.busy_ms - before.busy_ms) / 1000 / max(wall_s, 0.001)),
        )

    def _headrace(self, mount: _Mount) -> FileSystemUsage:
        by_library = mount.mountpoint == _LIBRARY
        before = _counters(self._node if by_library else self._nodes.get(mount.mountpoint))
        status = self._status_of("" if by_library else mount.mountpoint)
        now = _counters(status)
        source = ", ".join(one["url"] for one in (status or {}).get("mounts", ())) or mount.source
        grown = {name: max(0, value - before.get(name, 0)) for name, value in now.items()}
        return FileSystemUsage(
            mountpoint=mount.mountpoint,
            storage=Storage.HEADRACE,
            kind="headrace",
            source=source,
            origin_bytes=int(grown.get("origin_bytes", 0)),
            origin_requests=int(grown.get("origin_reads", 0)),
            origin_latency_s=float(grown.get("origin_latency_s", 0.0)),
            peer_bytes=int(grown.get("peer_bytes", 0)),
            peer_reads=int(grown.get("peer_reads", 0)),
        )


def _mounts_of_job(pid: int) -> list[_Mount]:
    """Return those of this process where the job has ended already, or does not let itself be looked at."""
    try:
        return mounts(pid)
    except (OSError, ValueError):
        return mounts(os.getpid())


def mounts(pid: int) -> list[_Mount]:
    """Of a process's view; proc(5), mountinfo. Later ones hide earlier ones at the same place."""
    found: dict[str, _Mount] = {}
    with open(f"/proc/{pid}/mountinfo", errors="surrogateescape") as file:
        for line in file:
            left, right = line.rstrip("\n").split(" - ", 1)
            words, (kind, source, *_) = left.split(" "), right.split(" ")
            at = _plain(words[4])
            found[at] = _Mount(at, words[2], kind, _plain(source))
    return list(found.values())


def link_bytes_s() -> int:
    """Of the fastest network card that tells its speed; virtual ones don't count, which tell a speed of nobody's."""
    fastest = 0
    for name in os.listdir(_NETWORK_CARDS) if os.path.isdir(_NETWORK_CARDS) else ():
        if not os.path.exists(f"{_NETWORK_CARDS}/{name}/device"):
            continue
        try:
            with open(f"{_NETWORK_CARDS}/{name}/speed") as file:
                fastest = max(fastest, int(file.read()) * 1_000_000 // 8)
        except (OSError, ValueError):
            continue
    return fastest


def _plain(word: str) -> str:
    return re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), word)


def _mount_of(path: str, known: list[_Mount]) -> _Mount | None:
    above = [
        one for one in known if path == one.mountpoint or path.startswith(one.mountpoint.rstrip("/") + "/")
    ]
    return max(above, key=lambda one: len(one.mountpoint), default=None)


def _disks() -> dict[str, _Disk]:
    """By device number; the kernel's Documentation/admin-guide/iostats.rst."""
    found = {}
    with open("/proc/diskstats") as file:
        for line in file:
            words = line.split()
            found[f"{words[0]}:{words[1]}"] = _Disk(int(words[5]) * _SECTOR_BYTES, int(words[12]))
    return found


def _counters(status: dict[str, Any] | None) -> dict[str, float]:
    if not status:
        return {}
    asked = status["origin"]["mounts"].values()
    return {
        "origin_bytes": sum(one["bytes_read"] for one in asked),
        "origin_reads": sum(one["read_requests"] for one in asked),
        "origin_latency_s": sum(one["read_latency_s_sum"] for one in asked),
        "peer_bytes": status["peers"].get("bytes_read", 0),
        "peer_reads": status["peers"].get("reads", 0),
    }
