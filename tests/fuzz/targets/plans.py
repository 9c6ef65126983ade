"""Sequences of messages of training processes, and what a node makes of them (prefetch/plan_table.py)."""

from __future__ import annotations

import asyncio
import functools
from array import array
from collections.abc import Coroutine
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec

from headrace.base.errors import HeadraceError, PathNotFoundError, ProtocolError
from headrace.base.model import FileId, Kind, Version
from headrace.node.plan_requests import PlanRequests
from headrace.plan.planned_files import PlannedFiles
from headrace.prefetch.cached_numbers import CachedNumbers
from headrace.prefetch.early_reports import BYTES_MAX, REPORTS_MAX
from headrace.prefetch.fetcher import PlannedFetcher
from headrace.prefetch.learned_maps import KEPT_MAX
from headrace.prefetch.plan_table import EPOCHS_AHEAD, STREAMS_MAX, PlanTable
from headrace.prefetch.prediction_table import PredictionTable
from headrace.wire import frame, messages
from headrace.wire.message import Message
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.mutations import mutate_tree

_FILES = 8
_SAMPLES_MAX = 4096
_MESSAGES_MAX = 64


_VERSION = Version(1000, 1, "x")


@dataclass(frozen=True)
class _Entry:
    id: FileId
    kind: Kind = Kind.FILE
    version: Version = _VERSION


class _FolderOfFiles:
    """A namespace of a few files below /d. An index on the disk would need more memory than a fuzzer may have."""

    def __init__(self) -> None:
        self.tree = SimpleNamespace(index=self)
        self.resolver = self.listings = self

    def lookup(self, directory: FileId, name: bytes) -> _Entry | None:
        number = int(name) if name.isdigit() and len(name) < 4 else _FILES
        return _Entry(FileId(1000 + number)) if directory == 1 and number < _FILES else None

    def entry(self, id: FileId) -> _Entry | None:
        return _Entry(id) if 1000 <= id < 1000 + _FILES else None

    def cached(self, id: FileId) -> SimpleNamespace | None:
        return SimpleNamespace(complete=id % 3 == 1) if id % 3 else None

    async def resolve(self, folder: bytes) -> _Entry:
        if folder != b"/d":
            raise PathNotFoundError(repr(folder), why="no such directory")
        return _Entry(FileId(1), Kind.DIRECTORY)

    async def list(self, id: FileId) -> None:
        assert id == 1


@functools.cache
def _node() -> tuple[asyncio.AbstractEventLoop, PlanTable, PlanRequests]:
    """Return the plans of a node. They last as long as this process."""
    files: Any = _FolderOfFiles()
    planned = PlannedFiles()
    planned.add_volume(0, lambda id: 4096 if id % 2 else 0)
    nothing: Any = None
    cached = CachedNumbers(planned, files, lambda id, start, end: bool(start % 2))
    plans = PlanTable(planned, files, cached, samples_max=_SAMPLES_MAX)
    fetcher = PlannedFetcher(plans, nothing, nothing, files.tree, watermark_low=0.9)
    predictions = PredictionTable(files.tree, plans.is_planned)
    return asyncio.new_event_loop(), plans, PlanRequests(plans, fetcher, predictions)


def _tell(data: bytes) -> None:
    """Each message is answered or refused. The plans keep their limits, the store can choose, and streams that end
    leave nothing but the maps that are kept for a while."""
    try:
        trees = msgspec.msgpack.decode(data, type=list[Any])[:_MESSAGES_MAX]
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the list of messages", why=str(error)) from None
    requests = [_request(tree) for tree in trees]
    loop, plans, answering = _node()
    loop.run_until_complete(_answer(plans, answering, requests))


def _request(tree: Any) -> Message:
    return frame.decode_request(msgspec.msgpack.encode(tree))


async def _answer(plans: PlanTable, answering: PlanRequests, requests: list[Message]) -> None:
    planned = plans.planned
    ids = [FileId(1000 + number) for number in range(_FILES)]
    for request in requests:
        handler = answering.handlers.get(type(request))
        if handler is not None:
            await _try(handler(request))
            _check(plans)
    while not (planned.orders.build(4096) and planned.catch_up()):
        pass
    assert set(planned.choose(0, ids, lambda _: False)) <= set(ids)
    plans.note_evicted(ids)
    assert frame.encode(await answering.handlers[messages.PlanList](messages.PlanList()))
    for reader in plans.readers:
        plans.end(reader.key)
    assert len(plans._learned) <= KEPT_MAX
    plans._learned.forget_kept()
    plans._reset_if_empty()
    assert not planned.orders.streams and not len(planned.numbers)
    assert not plans._named and not plans._learned


async def _try(answering: Coroutine[Any, Any, object]) -> None:
    try:
        await answering
    except HeadraceError:
        pass


def _check(plans: PlanTable) -> None:
    readers = plans.readers
    assert len(readers) <= STREAMS_MAX
    assert plans._count_samples() <= 2 * _SAMPLES_MAX
    assert len(plans.early) <= REPORTS_MAX and 0 <= plans.early.bytes <= BYTES_MAX
    for reader in readers:
        assert min(reader.positions.ready_until(), reader.ahead_samples) >= 0
        if reader.stream is not None:
            assert len(reader.stream.epochs) <= EPOCHS_AHEAD + 1
            assert reader.stream.position <= reader.stream.end


def _seed(*requests: Message) -> bytes:
    return msgspec.msgpack.encode(list(requests))


_NAMES = b"\0".join(b"/d/%d" % number for number in range(_FILES))
_START = messages.PlanStart("s", "job", 0, 1, "k", b"d", _FILES, 2)
_ORDER = array("I", [3, 1, 4, 0, 5, 2, 6, 7]).tobytes()
_KNOWN = [
    _START,
    messages.PlanNames(b"d", 0, _NAMES),
    messages.PlanOrder("s", 0, 0, _ORDER[:8], False),
    messages.PlanOrder("s", 0, 2, _ORDER[8:], True),
    messages.PlanProgress("s", 0, 4),
    messages.PlanOrder("s", 1, 0, _ORDER, True),
    messages.PlanProgress("s", 1, 2),
]
_LEARNED = [
    messages.PlanStart("t", "job", 1, 2, "k", b"", _FILES, 1),
    messages.PlanOrder("t", 0, 0, _ORDER, True),
    messages.PlanLearn("k", list(range(_FILES)), _NAMES),
    messages.PlanLearn("k", [1, 1, 7], b"/d/1\0/d/2\0/d/7"),
    messages.PlanProgress("t", 0, 8),
    messages.PlanOrder("t", 1, 0, _ORDER, True),
    messages.PlanProgress("t", 1, 1),
]
_DIVIDED = [
    _START,
    messages.PlanExtents(
        b"d", 1, b"/d/1\0/d/2", array("I", [2, 1]).tobytes(), array("Q", [0, 7, 4096, 5, 6]).tobytes()
    ),
    messages.PlanSamples(b"d", 0, 2, array("I", [1, 2, 2, 0, 3, 0, 1, 3]).tobytes()),
    messages.PlanSamples(b"d", 4, 1, array("I", [3, 2, 1, 0]).tobytes()),
    messages.PlanOrder("s", 0, 0, _ORDER, True),
    messages.PlanProgress("s", 0, 4),
]
_SHARED_ROWS = [
    *_DIVIDED[:2],
    messages.PlanSamples(b"d", 0, 2, array("I", [1, 2, 3, 0]).tobytes(), array("I", [3, 2]).tobytes()),
    messages.PlanSamples(b"d", 5, 1, array("I", [2]).tobytes(), array("I", [_FILES - 5]).tobytes()),
    messages.PlanOrder("s", 0, 0, _ORDER, True),
    messages.PlanOrder("s", 1, 0, array("I", range(_FILES)).tobytes(), True),
]

FUZZERS = [
    Fuzzer(
        "plans",
        "sequences of messages of training processes (wire/messages.py, prefetch/plan_table.py)",
        _tell,
        (ProtocolError,),
        [
            _seed(*_KNOWN),
            _seed(*_LEARNED),
            _seed(*_KNOWN, *_LEARNED, messages.PlanEnd("s"), messages.PlanList()),
            _seed(*_KNOWN, _START, *_KNOWN[2:], *_LEARNED[2:]),
            _seed(_LEARNED[2], *_LEARNED[:2], *_LEARNED[3:]),
            _seed(*_DIVIDED),
            _seed(*_SHARED_ROWS),
            _seed(*_DIVIDED, *_LEARNED, *_DIVIDED[1:]),
        ],
        words=[b"/d/1", b"/d", b"..", b"\0", b"s", b"t", b"k", b"d"],
        mutate=mutate_tree(msgspec.msgpack.decode, msgspec.msgpack.encode),
    )
]
