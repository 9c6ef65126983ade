"""The status of seals whose disk hangs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.node.seals_status import SealsStatus

LIMIT_S = 60.0


async def test_a_disk_that_hangs_holds_one_thread_however_often_the_status_is_asked_for() -> None:
    reads: list[str] = []
    answers = threading.Event()

    def read() -> dict[str, object]:
        reads.append("seals")
        answers.wait(LIMIT_S)
        return {"seals": ["a@1"]}

    with ThreadPoolExecutor(2) as disk:
        status = SealsStatus(read, disk, within_s=0.01)
        try:
            for _ in range(3):
                row = await status.get()
                assert (row["seals"], row["seal_trouble"]) == ([], "")
                assert row["seals_unread"] == "the disk of the first cache volume does not answer"
            assert disk.submit(lambda: "free").result(LIMIT_S) == "free"
        finally:
            answers.set()
    assert reads == ["seals"]


async def test_each_status_is_read_anew() -> None:
    counts = iter([1, 2])
    with ThreadPoolExecutor(1) as disk:
        status = SealsStatus(lambda: {"seals": [next(counts)]}, disk)
        assert [await status.get() for _ in range(2)] == [{"seals": [1]}, {"seals": [2]}]


async def test_an_error_of_the_disk_is_that_of_the_status() -> None:
    def read() -> dict[str, object]:
        raise OSError(5, "Input/output error")

    with ThreadPoolExecutor(1) as disk:
        status = SealsStatus(read, disk)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output error"):
                await status.get()
