"""Attributes of files and what users gave, as metadata of an object and back."""

from __future__ import annotations

from headrace.base.model import Attributes, ObjectMetadata
from headrace.origin.metadata import extras_of, from_metadata, to_metadata

FILE = Attributes(mtime_ns=1_500_000_000_250_000_000, mode=0o640, uid=7, gid=8, put_id="abc")


def given(**metadata: str) -> Attributes:
    tags = {"a": "1", "b c": "é&="}
    extras = ObjectMetadata(metadata, {"Content-Type": "text/x"}, tags)
    return Attributes(FILE.mtime_ns, FILE.mode, FILE.uid, FILE.gid, FILE.put_id, extras)


def test_what_went_in_comes_out() -> None:
    for file in (FILE, given(), given(colour="red"), given(mtime="1500000000.25", gid="9", colour="red")):
        attributes = from_metadata(to_metadata(file))
        assert attributes is not None
        assert (attributes.mtime_ns, attributes.put_id) == (FILE.mtime_ns, "abc")
        assert (attributes.extras or ObjectMetadata()) == (file.extras or ObjectMetadata())


def test_a_user_does_not_speak_for_this_node() -> None:
    attributes = from_metadata(
        to_metadata(given(headraceput="forged", headracetags="x=y", headraceusers="mode"))
    )
    assert attributes is not None
    assert attributes.put_id == "abc"
    assert attributes.extras == given().extras


def test_of_others_objects_all_is_theirs_and_tags_are_not_known() -> None:
    theirs = {"mtime": "1", "mode": "33188", "Content-Type": "text/x", "Note": "x"}
    assert extras_of(theirs) == ObjectMetadata(
        {"mtime": "1", "mode": "33188", "note": "x"}, {"Content-Type": "text/x"}, None
    )
    assert from_metadata({}) is None
