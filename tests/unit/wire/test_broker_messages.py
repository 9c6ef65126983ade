"""The answers of a broker."""

from __future__ import annotations

from headrace.base.errors import PathNotFoundError
from headrace.wire.broker_messages import BrokerRefusal, decode_answer, encode, error_of, refusal_of


def test_an_error_about_a_name_that_is_not_utf8_is_answered() -> None:
    """It could not be encoded, so the program got no answer."""
    answer = decode_answer(encode(refusal_of(PathNotFoundError("/a\udcff", why="no b\udcfe"))))
    assert isinstance(answer, BrokerRefusal)
    assert str(error_of(answer)) == r"/a\xff: no b\xfe"
