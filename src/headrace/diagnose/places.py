"""Describe the file systems that a job reads from, and what their disks and nodes did during the sampling."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from headrace.base.mount_table import MountTableRow, mount_table
from headrace.base.namespace_path import is_at_or_below
from headrace.diagnose.recording import FileSystemUsage, PlanUsage, Storage

StatusOf = Callable[[str], dict[str, Any] | None]
"""Mountpoint → the status of its node, or None. "" is the node that Headrace's library would find."""

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
"""Stands for the mountpoint where the job uses the node without a mount."""
_NODE_OF_HOST = MountTableRow(_LIBRARY, "", "/", _HEADRACE, "this host's node", ())
_SECTOR_BYTES = 512
_NETWORK_CARDS = "/sys/class/net"


@dataclass(frozen=True, slots=True)
class _Disk:
    bytes_read: int
    busy_ms: int


class PlaceWatch:
    """Read counters when created and in usage(). pid: the process whose mounts count."""

    def __init__(self, status_of: StatusOf, pid: int) -> None:
        self._status_of = status_of
        self._pid = pid
        self._began = _disks()
        self._mounts = _mounts_of_job(pid)
        self._node = status_of("")
        self._nodes = {
            mount.mountpoint: status_of(mount.mountpoint) for mount in self._mounts if mount.kind == _HEADRACE
        }
        self._plans: dict[str, PlanUsage] = {}

    def note_plans(self) -> None:
        """Note the plans of the nodes that answered at the start: a plan ends with its process."""
        for mountpoint, status in {"": self._node, **self._nodes}.items():
            now = None if status is None else plan_usage_of(self._status_of(mountpoint))
            if now is not None:
                self._plans[mountpoint] = further_behind(self._plans.get(mountpoint), now)

    def usage(
        self, paths: Iterable[str], wall_s: float, *, by_library: bool = False
    ) -> tuple[FileSystemUsage, ...]:
        """Return the file systems of the paths, by the mounts of the process, or of its start if it has ended.

        by_library: include the node, which the job used without a mount.
        """
        try:
            self._mounts = mounts(self._pid)
        except (OSError, ValueError):
            pass
        disks = _disks()
        used_mounts = {mount for path in paths if (mount := _mount_of(path, self._mounts)) is not None}
        usages = [
            self._place(mount, disks, wall_s)
            for mount in sorted(used_mounts, key=lambda each: each.mountpoint)
        ]
        if (
            by_library
            and self._node is not None
            and not any(usage.storage is Storage.HEADRACE for usage in usages)
        ):
            usages.append(self._headrace(_NODE_OF_HOST))
        return tuple(usages)

    def _place(self, mount: MountTableRow, disks: dict[str, _Disk], wall_s: float) -> FileSystemUsage:
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

    def _headrace(self, mount: MountTableRow) -> FileSystemUsage:
        by_library = mount.mountpoint == _LIBRARY
        before = _counters(self._node if by_library else self._nodes.get(mount.mountpoint))
        status = self._status_of("" if by_library else mount.mountpoint)
        now = _counters(status)
        source = ", ".join(each["url"] for each in (status or {}).get("mounts", ())) or mount.source
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
            plan=self._plans.get("" if by_library else mount.mountpoint),
        )


def plan_usage_of(status: dict[str, Any] | None) -> PlanUsage | None:
    """Return what a node's status says of its plans; None without a status."""
    plans, predictions = ((status or {}).get(name) for name in ("plans", "predictions"))
    if not plans or predictions is None:
        return None
    return PlanUsage(
        streams=int(plans["streams"]),
        learning=int(plans["streams_learning"]),
        unreliable=int(plans["streams_unreliable"]),
        needed_bytes_s=int(plans["needed_bytes_s"]),
        fetched_bytes_s=int(plans["fetched_bytes_s"]),
        predicted=int(predictions["files_issued"]),
        predicted_right=int(predictions["files_right"]),
    )


def further_behind(before: PlanUsage | None, now: PlanUsage) -> PlanUsage:
    """Return the one of two observations that explains more: with a plan, one that fails, and the larger lack of bytes.
    The counts of predictions are the later ones."""

    def key(usage: PlanUsage) -> tuple[bool, int, int]:
        return usage.streams > 0, usage.unreliable, usage.needed_bytes_s - usage.fetched_bytes_s

    usage = now if before is None else max(before, now, key=key)
    return replace(usage, predicted=now.predicted, predicted_right=now.predicted_right)


def _mounts_of_job(pid: int) -> list[MountTableRow]:
    """Return the mounts of this process where the job has ended, or may not be inspected."""
    try:
        return mounts(pid)
    except (OSError, ValueError):
        return mounts(os.getpid())


def mounts(pid: int) -> list[MountTableRow]:
    """Return the mounts that a process sees. A later mount hides an earlier one at the same path. Raises OSError."""
    return list({row.mountpoint: row for row in mount_table(pid)}.values())


def link_bytes_s() -> int:
    """Return the speed of the fastest network card that reports it; virtual cards report meaningless speeds."""
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


def _mount_of(path: str, all_mounts: list[MountTableRow]) -> MountTableRow | None:
    above = [mount for mount in all_mounts if is_at_or_below(path, mount.mountpoint)]
    return max(above, key=lambda mount: len(mount.mountpoint), default=None)


def _disks() -> dict[str, _Disk]:
    """Return the disks' counters by device number; the kernel's Documentation/admin-guide/iostats.rst."""
    disks = {}
    with open("/proc/diskstats") as file:
        for line in file:
            fields = line.split()
            disks[f"{fields[0]}:{fields[1]}"] = _Disk(int(fields[5]) * _SECTOR_BYTES, int(fields[12]))
    return disks


def _counters(status: dict[str, Any] | None) -> dict[str, float]:
    if not status:
        return {}
    origins = status["origin"]["mounts"].values()
    return {
        "origin_bytes": sum(origin["bytes_read"] for origin in origins),
        "origin_reads": sum(origin["read_requests"] for origin in origins),
        "origin_latency_s": sum(origin["read_latency_s_sum"] for origin in origins),
        "peer_bytes": status["peers"].get("bytes_read", 0),
        "peer_reads": status["peers"].get("reads", 0),
    }
