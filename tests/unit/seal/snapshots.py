"""Content lists for tests."""

from __future__ import annotations

import io
import stat
from pathlib import Path

from headrace.seal.snapshot import SnapshotEntry, SnapshotWriter
from headrace.seal.unpacked_list import write_unpacked

DIRECTORY, FILE = stat.S_IFDIR | 0o555, stat.S_IFREG | 0o444
TOP = SnapshotEntry(b"", DIRECTORY)
TREE = [
    TOP,
    SnapshotEntry(b"a", DIRECTORY),
    SnapshotEntry(b"a/x", FILE, 5, 7, 1000, 1000, '"etag"', 12),
    SnapshotEntry(b"a-b", FILE, 1 << 40, 1, token="t", checksum=(1 << 64) - 1),
    SnapshotEntry("é".encode(), FILE),
    SnapshotEntry(b"\xff", DIRECTORY, mtime_ns=9),
]


def unpack_into(path: Path, entries: list[SnapshotEntry]) -> str:
    """Write a list as the node unpacks it for programs, and return its id."""
    body, id = written(entries)
    with open(path, "w+b") as out:
        write_unpacked(io.BytesIO(body), id, out)
    return id


def written(entries: list[SnapshotEntry]) -> tuple[bytes, str]:
    file = io.BytesIO()
    writer = SnapshotWriter(file)
    for entry in entries:
        writer.add(entry)
    return file.getvalue(), writer.finish()
