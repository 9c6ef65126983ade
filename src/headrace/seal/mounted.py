"""Find the seals that are mounted, by the mount table. It needs no node and no right."""

from __future__ import annotations

from headrace.base.mount_table import MountTableRow, mount_table, mounted_at
from headrace.base.namespace_path import is_at_or_below
from headrace.seal.catalogue import SealId, SealRecord

PREFIX = "headrace-seal:"


def source_of(record: SealRecord) -> str:
    """Return what the mount table shows as the device of a seal. Equal contents of two nodes have equal names."""
    return f"{PREFIX}{record.seal}:{record.id[:16]}"


def mounts_of(seal: SealId) -> list[str]:
    """Return where a seal is mounted, in the order of the mounts."""
    return mountpoints().get(str(seal), [])


def mountpoints() -> dict[str, list[str]]:
    """Return where each seal is mounted, by its name, with one look at the mount table."""
    places: dict[str, list[str]] = {}
    for path, source in _views():
        places.setdefault(source.removeprefix(PREFIX).partition(":")[0], []).append(path)
    return places


def seals_below(top: str) -> list[str]:
    """Return where any seals are mounted at or below a path, in the order of the mounts."""
    return [path for path, _ in _views() if is_at_or_below(path, top)]


def source_on_top(mountpoint: str) -> str:
    """Return the device of the seal that is the last mount at a path; "" where the last mount is no seal."""
    row = mounted_at(mountpoint)
    return row.source if row is not None and _is_view(row) else ""


def _views() -> list[tuple[str, str]]:
    return [(row.mountpoint, row.source) for row in mount_table() if _is_view(row)]


def _is_view(row: MountTableRow) -> bool:
    return row.kind == "overlay" and row.source.startswith(PREFIX)
