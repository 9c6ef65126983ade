"""Two versions, or two files' attributes, are the same in these cases."""

from __future__ import annotations

from headrace.base.model import Attributes, Version


def test_versions_of_a_strong_token_have_no_time() -> None:
    version, later = Version(3, 1, '"a"'), Version(3, 2, '"a"')
    assert version == later
    assert not version != later  # noqa: SIM202 - of its own
    assert len({version, later}) == 1
    for other in (Version(4, 1, '"a"'), Version(3, 1, '"b"'), Version(3, 1)):
        assert version != other
        assert not version == other  # noqa: SIM201
    assert Version(3, 1, 'W/"a"') != Version(3, 2, 'W/"a"')
    assert Version(3, 1) != (3, 1, "")


def test_attributes_differ_by_what_a_file_has() -> None:
    attributes = Attributes(1, 0o644, 0, 0, "put")
    assert attributes == Attributes(1, 0o644, 0, 0, "another")
    assert not attributes != Attributes(1, 0o644, 0, 0)  # noqa: SIM202
    assert hash(attributes) == hash(Attributes(1, 0o644, 0, 0))
    assert attributes != Attributes(1, 0o600, 0, 0)
