"""Content lists for tests."""

from __future__ import annotations

import io
import stat

from headrace.seal.snapshot import SnapshotEntry, SnapshotWriter

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


def written(entries: list[SnapshotEntry]) -> tuple[bytes, str]:
    file = io.BytesIO()
    writer = SnapshotWriter(file)
    for entry in entries:
        writer.add(entry)
    return file.getvalue(), writer.finish()
