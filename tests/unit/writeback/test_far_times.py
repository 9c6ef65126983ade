"""Files whose times 64 bits of nanoseconds can't hold: programs may set any time that the file system takes."""

from __future__ import annotations

import pytest

from headrace.base.file_times import TIME_NS_MAX, TIME_NS_MIN
from headrace.overlay.pending_version import EntryState, PendingEntry
from headrace.writeback.replication.dirty_files import own_entry
from tests.unit.writeback.layer_fixture import LayerFixture

YEAR_2300_NS, YEAR_1650_NS = 10_413_792_000 * 10**9, -10_098_259_200 * 10**9


def set_time(layer: LayerFixture, path: bytes, time_ns: int) -> None:
    layer.upper.at(path).utime((time_ns, time_ns))
    if layer.upper.at(path).lstat().st_mtime_ns != time_ns:
        pytest.skip("the file system has no such time")


@pytest.mark.parametrize("time_ns", [YEAR_2300_NS, YEAR_1650_NS, TIME_NS_MAX, TIME_NS_MAX + 1])
async def test_a_far_time_delays_no_other_file(layer: LayerFixture, time_ns: int) -> None:
    """Each round of write-back failed, for all files of it."""
    for path in (b"/far", b"/other"):
        layer.write(path, b"ours")
    set_time(layer, b"/far", time_ns)
    async with layer.running(layer.write_back()) as write:
        await write.persist(b"/")
        assert write.waiting(b"/") == (0, 0)
        assert [await layer.origin_bytes(path) for path in (b"/far", b"/other")] == [b"ours", b"ours"]
        row, entry = layer.journal.get(b"/far"), layer.namespace.tree.entry_at(b"/far")
        nearest_ns = min(max(time_ns, TIME_NS_MIN), TIME_NS_MAX)
        assert row is not None and row.mtime_ns == nearest_ns
        assert entry is not None and entry.attributes is not None and entry.attributes.mtime_ns == nearest_ns


def test_other_nodes_get_the_nearest_time_that_they_can_store(layer: LayerFixture) -> None:
    layer.write(b"/far", b"ours")
    set_time(layer, b"/far", YEAR_2300_NS)
    assert own_entry(layer.upper.at(b"/far"), b"far").mtime_ns == TIME_NS_MAX
    with pytest.raises(ValueError, match="a time of"):
        PendingEntry(b"far", EntryState.FILE, mtime_ns=TIME_NS_MAX + 1)
