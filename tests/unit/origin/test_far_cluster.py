"""Entries of a far cluster that name a version, and those that don't."""

from __future__ import annotations

import pytest

from headrace.base.file_times import TIME_NS_MAX, TIME_NS_MIN
from headrace.base.model import Version
from headrace.origin.far_cluster import SIZE_BYTES_MAX, _list_page
from headrace.wire.api import ApiEntries, ApiEntry


def entry(name: str, *, size_bytes: int = 5, mtime_ns: int = 0) -> ApiEntry:
    return ApiEntry(f"/d/{name}", "file", size_bytes, mtime_ns, "v1")


@pytest.mark.parametrize("mtime_ns", [TIME_NS_MIN, -1, 0, 1, TIME_NS_MAX])
def test_a_file_of_any_time_is_listed(mtime_ns: int) -> None:
    page = _list_page("", "/d", ApiEntries([entry("f", mtime_ns=mtime_ns)], None))
    (info,) = page.objects
    assert info.key == "f"
    assert (info.version.size_bytes, info.version.mtime_ns) == (5, mtime_ns)
    assert isinstance(info.version, Version)


@pytest.mark.parametrize(
    "bad",
    [
        entry("f", size_bytes=-1),
        entry("f", size_bytes=SIZE_BYTES_MAX + 1),
        entry("f", mtime_ns=TIME_NS_MAX + 1),
        entry("f", mtime_ns=TIME_NS_MIN - 1),
    ],
)
def test_what_can_be_no_version_is_left_out(bad: ApiEntry) -> None:
    assert _list_page("", "/d", ApiEntries([bad], None)).objects == ()
