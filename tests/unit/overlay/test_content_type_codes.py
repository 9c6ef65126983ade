"""The numbers of usual extras are in indexes: they keep their meaning."""

from __future__ import annotations

from headrace.base.model import ObjectMetadata
from headrace.overlay.content_type_codes import CONTENT_TYPES, extras_by, number_of


def test_each_number_stands_for_one_content_type() -> None:
    assert len(set(CONTENT_TYPES)) == len(CONTENT_TYPES) < 256
    for number, name in enumerate(CONTENT_TYPES):
        extras = ObjectMetadata({}, {"Content-Type": name} if name else {}, None)
        assert (number_of(extras), extras_by(number)) == (number, extras)
    assert CONTENT_TYPES[:5] == (
        "",
        "application/octet-stream",
        "binary/octet-stream",
        "image/jpeg",
        "image/png",
    )


def test_what_is_more_than_that_has_none() -> None:
    for extras in (
        ObjectMetadata({}, {"Content-Type": "x/y"}, None),
        ObjectMetadata({}, {"Content-Language": "image/png"}, None),
        ObjectMetadata({}, {"Content-Type": "image/png", "Cache-Control": "no-store"}, None),
        ObjectMetadata({"a": "b"}, {}, None),
        ObjectMetadata({}, {}, {}),
    ):
        assert number_of(extras) is None
    assert extras_by(None) is extras_by(len(CONTENT_TYPES)) is None
