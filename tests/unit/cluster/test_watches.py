"""A watch that etcd ends is an error, so that the node reads the records again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aetcd import rpc
from aetcd.watcher import Watcher

from headrace.cluster.etcd_client import LoudWatchStub

CREATED = rpc.WatchResponse(created=True, watch_id=1)
CANCELLED = rpc.WatchResponse(canceled=True, watch_id=1, cancel_reason="permission denied")
COMPACTED = rpc.WatchResponse(canceled=True, watch_id=1, compact_revision=7)
REFUSED = rpc.WatchResponse(created=True, canceled=True, watch_id=-1, cancel_reason="permission denied")


class FakeStub:
    """Answers a watch with these responses, and ends the stream, or leaves it open."""

    def __init__(self, *responses: Any, ends: bool) -> None:
        self._responses = responses
        self._ends = ends

    async def Watch(self, requests: Any, **_: Any) -> AsyncIterator[Any]:
        await anext(aiter(requests))
        for response in self._responses:
            yield response
        if not self._ends:
            await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("responses", "ends", "why"),
    [
        ([CREATED], True, "ended the watch"),
        ([CREATED, CANCELLED], False, "permission denied"),
        ([REFUSED], False, "permission denied"),
        ([CREATED, COMPACTED], False, "compacted"),
    ],
    ids=["ended", "cancelled", "refused", "compacted"],
)
async def test_a_watch_that_etcd_ends_is_an_error(responses: list[Any], why: str, *, ends: bool) -> None:
    watcher = Watcher(LoudWatchStub(FakeStub(*responses, ends=ends)), timeout=30)
    heard: asyncio.Queue[Any] = asyncio.Queue()
    async with asyncio.timeout(60):
        try:
            await watcher.add_callback(b"a", heard.put)
            error = await heard.get()
        except ConnectionError as refusal:
            error = refusal
        with contextlib.suppress(Exception):  # its task has ended, unless the watch was compacted
            await watcher.shutdown()
    assert isinstance(error, Exception)
    assert why in f"{type(error).__name__} {error}".lower()
