from __future__ import annotations

import random
import tracemalloc

from headrace.base.model import FileId
from headrace.policy.admission import SecondReads


def test_a_file_is_admitted_at_its_second_read() -> None:
    reads = SecondReads(100, window_s=60)
    assert [reads.is_second(FileId(7), 10), reads.is_second(FileId(7), 70)] == [False, True]
    assert not reads.is_second(FileId(7), 71), "it was forgotten as it was admitted"


def test_a_read_beyond_the_window_is_a_first_one() -> None:
    reads = SecondReads(100, window_s=60, start_s=1e9)
    answers = [reads.is_second(FileId(7), 1e9 + now_s) for now_s in (5, 66, 126)]
    assert answers == [False, False, True]


def test_a_scan_forgets_the_oldest_reads_only() -> None:
    """The table has room for 10,000 files: of the last 5,000 nearly all are known, of the first ones few."""
    reads = SecondReads(10_000, window_s=1e6)
    for number in range(40_000):
        assert not reads.is_second(FileId(number), number)
    late = sum(reads.is_second(FileId(number), 40_000) for number in range(35_000, 40_000))
    early = sum(reads.is_second(FileId(number), 40_000) for number in range(20_000))
    assert late > 4_700
    assert early < 800


def test_ids_of_one_pattern_use_the_whole_table() -> None:
    reads = SecondReads(8_000, window_s=1e6)
    ids = [FileId(number << 20) for number in range(4_000)]
    random.Random(1).shuffle(ids)
    assert sum(reads.is_second(id, 1) for id in ids) == 0
    assert sum(reads.is_second(id, 2) for id in ids) > 3_800


def test_the_table_takes_memory_from_the_first_read_on() -> None:
    """A node without such a rule has none of its 8 MiB, and starts sooner."""
    tracemalloc.start()
    try:
        reads = SecondReads(1 << 20, window_s=60)
        assert tracemalloc.get_traced_memory()[1] < 100_000
        assert [reads.is_second(FileId(7), second) for second in (1, 2)] == [False, True]
        assert tracemalloc.get_traced_memory()[0] > 8 << 20
    finally:
        tracemalloc.stop()
