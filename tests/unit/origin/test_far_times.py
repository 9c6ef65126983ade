"""Times of objects that 64 bits of nanoseconds can't hold: stores and servers may send any."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.base.file_times import TIME_NS_MAX, TIME_NS_MIN
from headrace.base.model import FileId, Kind
from headrace.origin import far_cluster, fsspec_adapter, object_calls
from headrace.store.schema import pack_entry, unpack_entry
from headrace.vfs.file_stat import stat_of
from headrace.wire.api import ApiEntry

YEARS = {2100: 4_102_444_800 * 10**9, 2300: TIME_NS_MAX, 9999: TIME_NS_MAX, 1600: TIME_NS_MIN}


@pytest.mark.parametrize("year", YEARS)
def test_the_index_stores_the_nearest_time(year: int) -> None:
    time = datetime(year, 1, 1, tzinfo=UTC)
    meta = {"path": "f", "size": 5, "e_tag": "e", "last_modified": time, "version": None}
    for version in (
        object_calls.version_of(cast(Any, meta)),
        fsspec_adapter.version_of({"size": 5, "mtime": time}),
        fsspec_adapter.version_of({"size": 5, "mtime": time.timestamp(), "ETag": "e"}),
    ):
        assert version.mtime_ns == YEARS[year]
        packed = pack_entry(Kind.FILE, 1, version)
        assert unpack_entry(FileId(1), b"f", packed).version == version


def test_a_far_cluster_has_files_of_any_time(tmp_path: Path) -> None:
    """Its index has times up to the end of 64 bits; those after 2116 were missing here."""
    (tmp_path / "f").write_bytes(b"bytes")
    for time_ns in (YEARS[2100], 1 << 62, TIME_NS_MAX, TIME_NS_MAX + 10**9):
        os.utime(tmp_path / "f", ns=(time_ns, time_ns))
        stat = stat_of("/f", (tmp_path / "f").stat())
        assert stat.mtime_ns == min(time_ns, TIME_NS_MAX)
        version = far_cluster._version_of(ApiEntry("/f", "file", 5, stat.mtime_ns, "v"))
        assert version is not None and version.mtime_ns == stat.mtime_ns
