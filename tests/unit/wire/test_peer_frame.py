"""Peers' frames and the choice of a protocol."""

from __future__ import annotations

import msgspec
import pytest

from headrace.base.errors import ProtocolError
from headrace.wire import peer_frame
from headrace.wire.messages import Done, Failure
from headrace.wire.peer_messages import Block, Fetch, FileEnd, FileRange, NameRow, Names, Ping


def test_round_trip() -> None:
    wanted = FileRange(b"/a/\xff\x01odd", 1 << 40, -1, '"x"', 0, 1 << 30)
    fetch = Fetch([wanted], cached_only=True, epoch=1 << 60)
    for request in (fetch, Ping()):
        data = peer_frame.encode(request)
        assert peer_frame.body_length(data[:4]) == len(data) - 4
        assert peer_frame.decode_request(data[4:]) == request
    names = Names([NameRow(b"\xff", 1, 2, 3, "t")], 1.5, last=True)
    for answer in (names, Block(3, 1 << 40, 5, (1 << 64) - 1), FileEnd(0), Done()):
        assert peer_frame.decode_answer(peer_frame.encode(answer)[4:]) == answer


@pytest.mark.parametrize("nonsense", [b"", b"\xc1", b"hello", peer_frame.encode(Done())[4:]])
def test_nonsense_is_no_request(nonsense: bytes) -> None:
    with pytest.raises(ProtocolError):
        peer_frame.decode_request(nonsense)


def test_text_that_is_not_text() -> None:
    data = peer_frame.encode(Failure(code="c", what="what", why="", hint=""))[4:]
    with pytest.raises(ProtocolError):
        peer_frame.decode_answer(data.replace(b"what", b"\xff\xfe\xfd\xfc"))


def test_a_request_is_no_answer() -> None:
    with pytest.raises(ProtocolError):
        peer_frame.decode_answer(peer_frame.encode(Ping())[4:])


@pytest.mark.parametrize(
    ("theirs", "ours", "common"),
    [((1, 1), (1, 1), 1), ((1, 2), (2, 3), 2), ((2, 3), (1, 2), 2), ((1, 9), (1, 4), 4)],
)
def test_the_highest_protocol_that_both_speak(
    theirs: tuple[int, int], ours: tuple[int, int], common: int
) -> None:
    assert peer_frame.common_protocol(theirs, ours=ours) == common


@pytest.mark.parametrize(("theirs", "ours"), [((1, 1), (2, 3)), ((4, 5), (1, 3))])
def test_no_protocol_in_common(theirs: tuple[int, int], ours: tuple[int, int]) -> None:
    with pytest.raises(ProtocolError, match="speaks protocols"):
        peer_frame.common_protocol(theirs, ours=ours)


def row(**fields: object) -> list[object]:
    return list({"name": b"a", "kind": 1, "size_bytes": 5, "mtime_ns": 6, "token": "t", **fields}.values())


def names(**fields: object) -> dict[str, object]:
    return {"type": "Names", "rows": [row()], "good_for_s": 1.0, "last": True, **fields}


def fetch(**fields: object) -> dict[str, object]:
    file = {"path": b"/a", "size_bytes": 5, "mtime_ns": 6, "token": "t", "start": 0, "end": 5, **fields}
    return {"type": "Fetch", "files": [file], "cached_only": True, "epoch": 1}


def resolved(size_bytes: int, mtime_ns: int) -> dict[str, object]:
    version = {"size_bytes": size_bytes, "mtime_ns": mtime_ns, "token": "t"}
    return {"type": "VersionResolved", "version": version}


@pytest.mark.parametrize(
    "answer",
    [names(good_for_s=number) for number in (float("nan"), -1.0, float("-inf"))]
    + [names(rows=[row(size_bytes=number)]) for number in (-1, 1 << 63, True, 1.5)]
    + [names(rows=[row(mtime_ns=(1 << 64) - 1)])]
    + [resolved(-1, 0), resolved(1 << 63, 0), resolved(5, 1 << 63)],
)
def test_a_number_that_no_index_has_is_not_decoded(answer: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        peer_frame.decode_answer(msgspec.msgpack.encode(answer))


@pytest.mark.parametrize("field", ["size_bytes", "start", "end", "mtime_ns"])
@pytest.mark.parametrize("number", [1 << 63, (1 << 64) - 1, True, float("inf")])
def test_a_range_that_no_file_has_is_not_decoded(field: str, number: object) -> None:
    with pytest.raises(ProtocolError):
        peer_frame.decode_request(msgspec.msgpack.encode(fetch(**{field: number})))


def test_numbers_at_the_limits_are_decoded() -> None:
    largest = (1 << 63) - 1
    for answer in (names(good_for_s=float("inf")), names(rows=[row(size_bytes=largest, mtime_ns=-1 << 63)])):
        peer_frame.decode_answer(msgspec.msgpack.encode(answer))
    peer_frame.decode_answer(msgspec.msgpack.encode(resolved(largest, largest)))
    peer_frame.decode_request(msgspec.msgpack.encode(fetch(size_bytes=largest, end=largest)))
