"""Find the seals that are mounted, by the mount table. It needs no node and no right."""

from __future__ import annotations

import os

from headrace.base.mount_table import MountTableRow, mount_table, mounted_at
from headrace.base.namespace_path import is_at_or_below
from headrace.base.proc_stat import began_at
from headrace.seal.catalogue import Catalogue, SealId, SealRecord

PREFIX = "headrace-seal:"
"""Begins the device of a view. The key of the catalogue, the seal, a part of its id, and a lazy layer follow."""
FIELDS = 4
"""Parts of a device at least, with the prefix."""


def source_of(catalogue: Catalogue, record: SealRecord, layer: tuple[int, int] | None = None) -> str:
    """Return what the mount table shows as the device of a seal: another one for each catalogue that has it. layer: the
    pid and the start of the process that serves what a lazy seal lacks."""
    source = f"{_prefix(catalogue, record.seal)}{record.id[:16]}"
    return source if layer is None else f"{source}:{layer[0]}-{layer[1]}"


def is_of(source: str, catalogue: Catalogue, seal: SealId) -> bool:
    """Return whether a device is any view of a seal."""
    return source.startswith(_prefix(catalogue, seal))


def is_from(source: str, catalogue: Catalogue) -> bool:
    """Return whether a device is a view of any seal of a catalogue."""
    return source.startswith(f"{PREFIX}{_key(catalogue)}:")


def serves(source: str, catalogue: Catalogue, record: SealRecord) -> bool:
    """Return whether a device is a view of what a seal has now and, if it is lazy, its layer is served."""
    whole = source_of(catalogue, record)
    if not record.is_lazy:
        return source == whole
    layer = source.removeprefix(f"{whole}:")
    pid, _, began = layer.partition("-")
    return layer != source and pid.isdecimal() and str(began_at(int(pid))) == began


def mounts_of(catalogue: Catalogue, seal: SealId) -> list[str]:
    """Return where a seal is mounted, in the order of the mounts."""
    return mountpoints(catalogue).get(str(seal), [])


def mountpoints(catalogue: Catalogue) -> dict[str, list[str]]:
    """Return where each seal of a catalogue is mounted, by its name, with one look at the mount table."""
    places: dict[str, list[str]] = {}
    wanted = _key(catalogue)
    for path, source in _views():
        key, name = source.removeprefix(PREFIX).split(":")[:2]
        if key == wanted:
            places.setdefault(name, []).append(path)
    return places


def seals_below(top: str) -> list[str]:
    """Return where any seals are mounted at or below a path, in the order of the mounts."""
    return [path for path, _ in _views() if is_at_or_below(path, top)]


def views_by_id() -> dict[int, str]:
    """Return the mountpoints of all seals by the ids of their mounts. Readers may not see some: another mount covers
    them."""
    return {row.id: row.mountpoint for row in mount_table() if _is_view(row)}


def is_exchanged(mountpoint: str) -> bool:
    """Return whether two seals are mounted at one path, on top of each other: the lower one is about to take the place
    of the other one."""
    views = [row for row in mount_table() if row.mountpoint == mountpoint and _is_view(row)]
    ids = {row.id for row in views}
    return any(row.parent in ids for row in views)


def source_on_top(mountpoint: str) -> str:
    """Return the device of the seal that is the topmost mount at a path; "" where that mount is no seal."""
    row = mounted_at(mountpoint)
    return row.source if row is not None and _is_view(row) else ""


def _prefix(catalogue: Catalogue, seal: SealId) -> str:
    return f"{PREFIX}{_key(catalogue)}:{seal}:"


def _key(catalogue: Catalogue) -> str:
    """Return the device and the inode of a catalogue, which no other one of this host has; "" if it does not exist."""
    try:
        status = os.stat(catalogue.folder)
    except FileNotFoundError:
        return ""
    return f"{status.st_dev:x}-{status.st_ino:x}"


def _views() -> list[tuple[str, str]]:
    """Return the mountpoints and devices of all seals that a path leads to."""
    rows = mount_table()
    by_id = {row.id: row for row in rows}
    on: dict[int, list[str]] = {}
    for row in rows:
        on.setdefault(row.parent, []).append(row.mountpoint)
    return [(row.mountpoint, row.source) for row in rows if _is_view(row) and not _is_covered(row, by_id, on)]


def _is_covered(row: MountTableRow, by_id: dict[int, MountTableRow], on: dict[int, list[str]]) -> bool:
    """Return whether a mount on a directory above hides a mount, or one that it is on. on: the mountpoints on each
    mount, by its id."""
    while (parent := by_id.get(row.parent)) is not None and parent.id != row.id:
        if any(path != row.mountpoint and is_at_or_below(row.mountpoint, path) for path in on[row.parent]):
            return True
        row = parent
    return False


def _is_view(row: MountTableRow) -> bool:
    return row.kind == "overlay" and row.source.startswith(PREFIX) and row.source.count(":") >= FIELDS - 1
