"""Which folder lies in which, whatever way leads there: symbolic links and bind mounts are seen through. Pure paths and
/proc/self/mountinfo: no folder is asked, as one that hangs is none of ours to wait for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from headrace.base.errors import UsageError

_FILE = "file://"


def is_within(inner: str, outer: str) -> bool:
    """Whether inner is outer or lies below it, by its path or on the same file system. They need not exist."""
    inner, outer = os.path.realpath(inner), os.path.realpath(outer)
    if _below(inner, outer):
        return True
    inner_device, inner_path = _on_device(inner)
    outer_device, outer_path = _on_device(outer)
    return bool(inner_device) and inner_device == outer_device and _below(inner_path, outer_path)


def check_places(caches: Iterable[str], urls: Iterable[str], mountpoint: str | None = None) -> None:
    """UsageError where the cache would be among the data, or behind its own mount, or the mount among what it shows.
    caches: folders; urls: of origins."""
    origins = [url.removeprefix(_FILE) for url in urls if url.startswith(_FILE)]
    for cache in caches:
        for origin in origins:
            _refuse_within("cache folder", cache, "the origin", origin)
        if mountpoint:
            _refuse_within("cache folder", cache, "the mountpoint", mountpoint)
    for origin in origins:
        if mountpoint:
            _refuse_within("mountpoint", mountpoint, "the origin", origin)


def _refuse_within(what: str, inner: str, where: str, outer: str) -> None:
    if is_within(inner, outer):
        raise UsageError(f"{what} {inner}", why=f"it lies in {where} {outer}", hint="name a folder beside it")


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _on_device(path: str) -> tuple[str, str]:
    """The device, and the path there; "" where mounts can't be seen."""
    best, device, root = "", "", ""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as rows:
            for row in rows:
                _, _, number, there, at, *_ = row.split(" ")
                at = _plain(at)
                if _below(path, at) and len(at) >= len(best):  # the last of several at one place is on top
                    best, device, root = at, number, _plain(there)
    except (OSError, ValueError):
        return "", path
    return device, os.path.normpath(f"{root}/{path[len(best.rstrip('/')) :]}").replace("//", "/")


def _plain(word: str) -> str:
    """As it was before the kernel escaped spaces and their like."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), word)
