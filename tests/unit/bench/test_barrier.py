"""Accelerators that wait for each other: nobody goes on before all are there, and one that dies is no hang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from headrace.bench.barrier import Barrier
from headrace.testing.servers import free_ports

WORLD = 4


def together(work: Callable[[Barrier, int], Any], world: int = WORLD) -> list[Any]:
    """In a thread each; what each returned, or the OSError that it saw."""
    meet, results = f"127.0.0.1:{free_ports(1)[0]}", [None] * world

    def one(rank: int) -> None:
        meeting = Barrier(meet, rank, world)
        try:
            results[rank] = work(meeting, rank)
        except OSError as error:
            results[rank] = error  # type: ignore[call-overload]
        finally:
            meeting.close()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_nobody_goes_on_before_the_last() -> None:
    arrived, lock = [0] * 50, threading.Lock()

    def work(meeting: Barrier, rank: int) -> list[int]:
        counts = []
        for turn in range(50):
            with lock:
                arrived[turn] += 1
            meeting.wait()
            counts.append(arrived[turn])
        return counts

    assert together(work) == [[WORLD] * 50] * WORLD


def test_the_first_gets_what_everybody_has_in_their_order() -> None:
    large = list(range(100_000))
    results = together(lambda meeting, rank: meeting.gather([rank, large]))
    assert results == [[[rank, large] for rank in range(WORLD)], None, None, None]


@pytest.mark.parametrize("dying", [0, 2])
def test_one_that_has_gone_is_an_error_for_all(dying: int) -> None:
    def work(meeting: Barrier, rank: int) -> str:
        meeting.wait()
        if rank == dying:
            return "gone"
        meeting.wait()
        return "went on"

    results = together(work)
    assert results[dying] == "gone"
    assert [
        type(result)
        for rank, result in enumerate(results)
        if rank != dying and not isinstance(result, OSError)
    ] == []


def test_one_alone_waits_for_nobody() -> None:
    meeting = Barrier("", 0, 1)
    meeting.wait()
    assert meeting.gather("mine") == ["mine"]
