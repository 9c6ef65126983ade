"""Sequences of opens that clients report, and what a node predicts from them (prefetch/prediction_table.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec

from headrace.base.errors import ProtocolError
from headrace.base.model import FileId, Kind
from headrace.plan.job_streams import STREAMS_MAX as JOBS_MAX
from headrace.prefetch.prediction_table import DATA_SETS_MAX, STREAMS_MAX, PredictionTable
from headrace.wire import frame
from headrace.wire.message import Message
from headrace.wire.messages import Open, Touch
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.mutations import mutate_tree

_DIRECTORIES, _FILES = 4, 64
_MESSAGES_MAX = 64


@dataclass(frozen=True)
class _Entry:
    id: FileId
    kind: Kind


class _Index:
    """Directories /0 to /3 of 64 files each. File n of directory d has the id 1000 * (d + 1) + n."""

    def path_of(self, id: FileId) -> bytes | None:
        directory, file = divmod(id, 1000)
        return b"/%d/%d" % (directory - 1, file) if 1 <= directory <= _DIRECTORIES and file < _FILES else None

    def children(self, id: FileId) -> Iterator[_Entry]:
        if id == 1:
            return (_Entry(FileId(2 + number), Kind.DIRECTORY) for number in range(_DIRECTORIES))
        first = 1000 * (id - 1)
        return (_Entry(FileId(first + number), Kind.FILE) for number in range(_FILES))


def _table() -> PredictionTable:
    mount = SimpleNamespace(path="/")
    tree: Any = SimpleNamespace(
        index=_Index(),
        mounts=SimpleNamespace(find=lambda path: (mount, "")),
        directory_at=lambda path: FileId(1 if path == b"/" else 2 + int(path[1:2])),
    )
    return PredictionTable(tree, lambda id: id == 1007)


def _tell(data: bytes) -> None:
    """Each message is taken or refused. The table keeps its limits, and predicts files of its data sets only."""
    try:
        trees = msgspec.msgpack.decode(data, type=list[Any])[:_MESSAGES_MAX]
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the list of messages", why=str(error)) from None
    requests: list[Message] = [frame.decode_request(msgspec.msgpack.encode(tree)) for tree in trees]
    asyncio.run(_answer(_table(), requests))


async def _answer(table: PredictionTable, requests: list[Message]) -> None:
    for request in requests:
        if isinstance(request, Open):
            table.note_misses([FileId(request.id)])
        elif isinstance(request, Touch):
            await table.note_opens([FileId(id) for id in request.ids], request.process, request.streams)
        assert len(table.data_sets) <= DATA_SETS_MAX
        assert len(table._first_misses) <= STREAMS_MAX
        for data_set in table.data_sets:
            assert len(data_set.streams) <= JOBS_MAX
            predictors = [*data_set.streams.predicting, data_set.predictor]
            for file in [file for predictor in predictors for file in predictor.predictions(4)]:
                assert table._tree.index.path_of(data_set.numbers.id_of(file + 1)) is not None
                data_set.begin(file, 4096)
        issued, right, wrong = table.counts()
        assert 0 <= right + wrong <= issued
        assert table.budget.outstanding_bytes >= 0


def _seed(ids: list[int], process: int, *, step: int = 8, streams: int = 0) -> list[Message]:
    """Return the messages of a process that opens files. streams: as many jobs make the opens in turn."""
    messages: list[Message] = [Open(id=id) for id in ids[:16]]
    numbers = tuple(1 + place % streams for place in range(len(ids))) if streams else ()
    return messages + [
        Touch(ids=ids[first : first + step], process=process, streams=numbers[first : first + step])
        for first in range(0, len(ids), step)
    ]


FUZZERS = [
    Fuzzer(
        "predictions",
        "sequences of opens that clients report (wire/messages.py, prefetch/prediction_table.py)",
        _tell,
        (ProtocolError,),
        [
            msgspec.msgpack.encode(_seed(list(range(1000, 1064)), 1)),
            msgspec.msgpack.encode(_seed([1000 + 37 * number % 64 for number in range(192)], 7)),
            msgspec.msgpack.encode(
                [
                    *_seed(list(range(1000, 1030)), 1),
                    *_seed(list(range(2000, 2040)), 1),
                    *_seed([3000, 4001] * 9, 2),
                ]
            ),
            msgspec.msgpack.encode(_seed([*range(1000, 1064), *range(1000, 1064)], 1, streams=2)),
            msgspec.msgpack.encode(_seed([1000 + 29 * number % 64 for number in range(256)], 1, streams=12)),
        ],
        words=[],
        mutate=mutate_tree(msgspec.msgpack.decode, msgspec.msgpack.encode),
    )
]
