"""Find the seals that are mounted, by the mount table. It needs no node and no right."""

from __future__ import annotations

import os
import re

from headrace.seal.catalogue import SealRecord

PREFIX = "headrace-seal:"
_ESCAPED = re.compile(rb"\\(\d{3})")


def source_of(record: SealRecord) -> str:
    """Return what the mount table shows as the device of a seal. Equal contents of two nodes have equal names."""
    return f"{PREFIX}{record.seal}:{record.id[:16]}"


def mounts_of(record: SealRecord) -> list[str]:
    """Return where a seal is mounted, in the order of the mounts."""
    return [path for path, source in _views() if source == source_of(record)]


def places_by_source() -> dict[str, list[str]]:
    """Return where each seal is mounted, by its device, with one look at the mount table."""
    places: dict[str, list[str]] = {}
    for path, source in _views():
        places.setdefault(source, []).append(path)
    return places


def seals_below(top: str) -> list[str]:
    """Return where any seals are mounted at or below a path, in the order of the mounts."""
    return [path for path, _ in _views() if path == top or path.startswith(top.rstrip("/") + "/")]


def source_on_top(mountpoint: str) -> str:
    """Return the device of the seal that is the last mount at a path; "" where the last mount is no seal."""
    at_path = [row for row in _rows() if row[0] == mountpoint]
    return at_path[-1][2] if at_path and _is_view(at_path[-1]) else ""


def _views() -> list[tuple[str, str]]:
    return [(row[0], row[2]) for row in _rows() if _is_view(row)]


def _is_view(row: tuple[str, str, str]) -> bool:
    return row[1] == "overlay" and row[2].startswith(PREFIX)


def _rows() -> list[tuple[str, str, str]]:
    """Return path, file system and device of every mount (proc(5), mountinfo)."""
    rows = []
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            left, _, right = line.rstrip(b"\n").partition(b" - ")
            kind, source = right.split(b" ")[:2]
            path = left.split(b" ")[4]
            rows.append((os.fsdecode(_plain(path)), os.fsdecode(kind), os.fsdecode(_plain(source))))
    return rows


def _plain(text: bytes) -> bytes:
    return _ESCAPED.sub(lambda octal: bytes([int(octal[1], 8)]), text)
