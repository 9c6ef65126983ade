"""Peers' frames and the choice of a protocol."""

from __future__ import annotations

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
