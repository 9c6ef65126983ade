"""Frames: what goes in comes out, and nonsense is refused."""

from __future__ import annotations

import pytest

from headrace.base.errors import ProtocolError, error_classes
from headrace.wire import frame
from headrace.wire.messages import Failure, FillRange, JobState, Lookup, OpenedMany, Report


def test_round_trip() -> None:
    for request in (FillRange(id=1 << 47, start=0, end=1 << 40), Lookup(parent=1, name=b"\xff\x00odd")):
        data = frame.encode(request)
        assert frame.body_length(data[:4]) == len(data) - 4
        assert frame.decode_request(data[4:]) == request


def test_answers_and_requests_are_not_mixed_up() -> None:
    state = frame.encode(JobState(True, 1, 1, 2, 2, 0, [], False))
    with pytest.raises(ProtocolError):
        frame.decode_request(state[4:])


@pytest.mark.parametrize("nonsense", [b"", b"\xc1", b"hello"])
def test_nonsense(nonsense: bytes) -> None:
    with pytest.raises(ProtocolError):
        frame.decode_answer(nonsense)


def test_a_frame_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError):
        frame.body_length(b"\xff\xff\xff\xff")


@pytest.mark.parametrize("code", sorted(error_classes()))
def test_every_error_crosses_the_wire_as_itself(code: str) -> None:
    cls = error_classes()[code]
    error = cls("reading s3://b/k", why="it is gone", hint="list again")
    back = frame.error_of(frame.failure_of(error))
    assert type(back) is cls
    assert str(back) == str(error) == "reading s3://b/k: it is gone (list again)"


def test_an_unknown_code_is_still_an_error() -> None:
    assert str(frame.error_of(Failure(code="from.the.future", what="x", why="", hint=""))) == "x"


def test_one_name_that_is_not_utf8_withholds_no_answer() -> None:
    rows = [{"path": "/a\udcff", "kept": "/a%FF"}, {"path": "/\ud800", "kept": "ü\n"}]
    body = frame.encode_answer(Report(status={"conflicts": rows, "by\udcfe": {"bytes": b"\xff", "files": 1}}))
    shown = [{"path": r"/a\xff", "kept": "/a%FF"}, {"path": r"/\ud800", "kept": "ü\n"}]
    answer = frame.decode_answer(body[frame.HEADER_BYTES :])
    assert answer == Report(status={"conflicts": shown, r"by\xfe": {"bytes": b"\xff", "files": 1}})
    state = JobState(True, 0, 1, 0, 2, 1, [("/a\udcff", "no\udcfe")], False)
    answer = frame.decode_answer(frame.encode_answer(state)[frame.HEADER_BYTES :])
    assert answer == JobState(True, 0, 1, 0, 2, 1, [(r"/a\xff", r"no\xfe")], False)
    assert frame.encode_answer(OpenedMany([1], True)) == frame.encode(OpenedMany([1], True))


def test_an_error_about_a_name_that_is_not_utf8_shows_its_bytes() -> None:
    failure = frame.failure_of(ProtocolError("/a\udcff", why="no"))
    assert str(frame.error_of(failure)) == r"/a\xff: no"
