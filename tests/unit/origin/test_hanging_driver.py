"""A driver whose calls hang for good, as over a connection of a server that is gone: a new one takes its place."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import DeadlineExceededError, HeadraceError
from headrace.origin.fsspec_adapter import FsspecOrigin
from headrace.origin.threads import ALL_THREADS_MAX, THREADS_MAX, Threads
from headrace.testing.waiting import until
from tests.conformance.origin.origin_suite import soon

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.real_time,
]  # the loop waits for threads of the origin's own

BODY = b"of the file"
LATE_S = 0.2


class Server:
    """A server of one file. hangs: whether connections that are made now hang for good, and whether opening one
    does."""

    def __init__(self) -> None:
        self.hangs = self.hangs_at_open = False
        self.ended = threading.Event()
        self.connections = 0

    def connect(self) -> tuple[Any, str]:
        self.connections += 1
        if self.hangs_at_open:
            self.ended.wait()
        return Driver(self, hangs=self.hangs), "/"


class Driver:
    """Stands for a driver of fsspec with one connection."""

    def __init__(self, server: Server, *, hangs: bool) -> None:
        self._server = server
        self._hangs = hangs

    def info(self, path: str) -> dict[str, Any]:
        if self._hangs:
            self._server.ended.wait()
        return {"name": path, "type": "file", "size": len(BODY), "ETag": "a"}

    def cat_file(self, path: str, *, start: int, end: int) -> bytes:
        return BODY[start:end]


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.ended.set()  # so that the threads end


async def late_calls(origin: FsspecOrigin, count: int) -> None:
    """Make calls that nobody answers in time."""
    calls = [origin.head("f", deadline=Deadline.after(LATE_S)) for _ in range(count)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {DeadlineExceededError}


@pytest.mark.expected_warnings("all threads of an origin hang")
@pytest.mark.parametrize("hangs_at_open", [False, True])
async def test_an_origin_works_again_when_its_server_does(server: Server, hangs_at_open: bool) -> None:
    server.hangs, server.hangs_at_open = True, hangs_at_open
    origin = FsspecOrigin("x://y", server.connect)
    while origin._threads._pool.lost < THREADS_MAX:  # not all of them began, on a busy host
        await late_calls(origin, THREADS_MAX + 5)
    server.hangs = server.hangs_at_open = False
    info = await origin.head("f", deadline=soon())
    arrived = await origin.read_range("f", 0, len(BODY), version=info.version, deadline=soon())
    assert bytes(arrived.body) == BODY
    assert server.connections == 2
    await origin.close()


async def test_calls_that_hang_for_a_while_keep_their_connection(server: Server) -> None:
    server.hangs = True
    origin = FsspecOrigin("x://y", server.connect)
    await late_calls(origin, THREADS_MAX // 2)
    server.ended.set()
    for _ in range(3):
        await origin.head("f", deadline=soon())
    assert server.connections == 1
    await origin.close()


@pytest.mark.expected_warnings("all threads of an origin hang")
async def test_the_number_of_lost_threads_is_bounded(server: Server) -> None:
    server.hangs = True
    origin = FsspecOrigin("x://y", server.connect)
    for _ in range(ALL_THREADS_MAX // THREADS_MAX + 5):
        await late_calls(origin, THREADS_MAX)
    hanging = [thread for thread in threading.enumerate() if thread.name.startswith("origin")]
    assert len(hanging) <= ALL_THREADS_MAX
    with pytest.raises(DeadlineExceededError):
        await origin.head("f", deadline=Deadline.after(LATE_S))
    server.hangs = False
    server.ended.set()
    await origin.head("f", deadline=soon())
    await origin.close()


async def test_threads_that_are_late_and_return_are_not_lost() -> None:
    stuck: list[None] = []
    threads = Threads(on_stuck=lambda: stuck.append(None))
    for _ in range(3):
        ended = threading.Event()
        calls = [threads.call(ended.wait, "x", Deadline.after(LATE_S)) for _ in range(THREADS_MAX)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(outcome, HeadraceError) for outcome in outcomes)
        ended.set()
        await until(lambda: not threads._pool.lost)
    assert await threads.call(lambda: 7, "x", soon()) == 7
    assert not stuck
    threads.close()
