"""Determine which directory is in which, through symbolic links and bind mounts. It uses only paths and
the table of mounts, and touches no mountpoint, so that it can't hang with the file system of one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from headrace.base.errors import UsageError
from headrace.base.mount_table import MountTableRow, mount_table
from headrace.base.namespace_path import is_at_or_below

_FILE = "file://"


def is_within(inner: str, outer: str) -> bool:
    """Return whether inner is outer or below it, by its path or on the same file system. They need not exist."""
    mounts = _mount_table()
    inner, outer = _real(inner, mounts), _real(outer, mounts)
    if is_at_or_below(inner, outer):
        return True
    inner_device, inner_path = _on_device(inner, mounts)
    outer_device, outer_path = _on_device(outer, mounts)
    return bool(inner_device) and inner_device == outer_device and is_at_or_below(inner_path, outer_path)


def check_places(caches: Iterable[str], urls: Iterable[str], mountpoint: str | None = None) -> None:
    """Check that the cache is not among the data nor below its own mount, nor the mount among its own data. caches:
    directories; urls: of origins. Raises UsageError."""
    origins = [url.removeprefix(_FILE) for url in urls if url.startswith(_FILE)]
    for cache in caches:
        for origin in origins:
            _refuse_within("cache directory", cache, "the origin", origin)
        if mountpoint:
            _refuse_within("cache directory", cache, "the mountpoint", mountpoint)
    for origin in origins:
        if mountpoint:
            _refuse_within("mountpoint", mountpoint, "the origin", origin)


def _refuse_within(subject: str, inner: str, outer_kind: str, outer: str) -> None:
    if is_within(inner, outer):
        raise UsageError(
            f"{subject} {inner}", why=f"it lies in {outer_kind} {outer}", hint="name a directory beside it"
        )


def _real(path: str, mounts: Sequence[MountTableRow]) -> str:
    """Return the real path. A mountpoint stays as it is: a look at its directory may wait for what is mounted there."""
    path = os.path.abspath(path)
    path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return path if any(row.mountpoint == path for row in mounts) else os.path.realpath(path)


def _mount_table() -> list[MountTableRow]:
    """Return the mounts; none if they can't be read."""
    try:
        return mount_table()
    except (OSError, ValueError):
        return []


def _on_device(path: str, mounts: Sequence[MountTableRow]) -> tuple[str, str]:
    """Return the device and the path on it; "" for the device if mounts can't be read."""
    best, device, root = "", "", ""
    for row in mounts:
        # the last of several mounts at one path is on top
        if is_at_or_below(path, row.mountpoint) and len(row.mountpoint) >= len(best):
            best, device, root = row.mountpoint, row.device, row.root
    return device, os.path.normpath(f"{root}/{path[len(best.rstrip('/')) :]}").replace("//", "/")
