"""Small files that go together in one request."""

from __future__ import annotations

import asyncio

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import PeerError
from headrace.base.model import Arrived
from headrace.peer.batch import BATCH_BYTES_MAX, IN_FLIGHT_MAX, Batcher, Waiting
from headrace.wire.peer_messages import FILES_MAX, FileRange


class Line:
    """Holds requests until they are let go."""

    def __init__(self) -> None:
        self.batches: list[list[Waiting]] = []
        self.gates: list[asyncio.Event] = []
        self.cancelled = 0
        self.batcher = Batcher(self.send)

    async def send(self, batch: list[Waiting]) -> None:
        gate = asyncio.Event()
        self.batches.append(batch)
        self.gates.append(gate)
        try:
            await gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        for waiting in batch:
            waiting.resolve(Arrived(waiting.file.path))

    def ask(self, number: int, *, size_bytes: int = 1000, within_s: float = 10) -> asyncio.Task[Arrived]:
        wanted = FileRange(b"/%d" % number, size_bytes, 1, "", 0, size_bytes)
        return asyncio.ensure_future(self.batcher.ask(Waiting(wanted, 1, deadline=Deadline.after(within_s))))


async def settle() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def test_the_first_go_at_once_and_the_rest_together() -> None:
    line = Line()
    tasks = []
    for number in range(IN_FLIGHT_MAX + 100):
        tasks.append(line.ask(number))
        await settle()
    assert [len(batch) for batch in line.batches] == [1] * IN_FLIGHT_MAX
    line.gates[0].set()
    await settle()
    assert [len(batch) for batch in line.batches][IN_FLIGHT_MAX:] == [100]
    for gate in line.gates:
        gate.set()
    assert await asyncio.gather(*tasks) == [Arrived(b"/%d" % n) for n in range(len(tasks))]


async def test_what_comes_in_one_turn_goes_together_within_the_limits() -> None:
    line = Line()
    tasks = [line.ask(n) for n in range(FILES_MAX + 10)]
    await settle()
    assert [len(batch) for batch in line.batches] == [FILES_MAX, 10]
    large = [line.ask(n, size_bytes=BATCH_BYTES_MAX // 2 + 1) for n in range(2)]
    await settle()
    assert [len(batch) for batch in line.batches[2:]] == [1, 1]
    for gate in line.gates:
        gate.set()
    await asyncio.gather(*tasks, *large)


async def test_a_request_nobody_waits_for_ends_and_others_go_on() -> None:
    line = Line()
    first, second = line.ask(1), line.ask(2)
    await settle()
    first.cancel()
    await settle()
    assert line.cancelled == 0
    second.cancel()
    await settle()
    assert line.cancelled == 1
    third = line.ask(3)
    await settle()
    line.gates[-1].set()
    assert await third == Arrived(b"/3")


async def test_a_call_waits_no_longer_than_its_own_deadline() -> None:
    line = Line()
    short, long = line.ask(1, within_s=0.05), line.ask(2)
    with pytest.raises(PeerError, match="time allowed"):
        await short
    line.gates[0].set()
    assert await long == Arrived(b"/2")
