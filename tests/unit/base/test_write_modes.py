"""Modes of writing, by path."""

from __future__ import annotations

import pytest

from headrace.base.errors import UsageError
from headrace.base.write_modes import WriteMode, WriteModes


def test_the_longest_prefix_wins() -> None:
    modes = WriteModes.parse("back, /scratch=local,/scratch/kept=through,/frozen=off")
    for path, mode in (
        (b"/", "back"),
        (b"/x", "back"),
        (b"/scratch", "local"),
        (b"/scratch/a/b", "local"),
        (b"/scratchy", "back"),
        (b"/scratch/kept/f", "through"),
        (b"/frozen/f", "off"),
    ):
        assert modes.of(path) == mode
    assert modes.any
    assert modes.any_below(b"/frozen") is False
    assert WriteModes.parse(modes.text()).text() == modes.text()


@pytest.mark.parametrize(("text", "anything", "below", "persists"), [
    ("", False, False, False),
    ("off", False, False, False),
    ("local", True, True, False),
    ("off,/a/b=back", True, True, True),
])  # fmt: skip
def test_what_can_be_written(text: str, anything: bool, below: bool, persists: bool) -> None:
    modes = WriteModes.parse(text)
    assert (modes.any, modes.any_below(b"/a"), modes.persists_below(b"/a")) == (anything, below, persists)
    assert modes.of(b"/else") in (WriteMode.OFF, WriteMode.LOCAL)


@pytest.mark.parametrize(("text", "path", "first"), [
    ("off", b"/a/f", None),
    ("back", b"/a/b/f", b"/a"),
    ("/out=back", b"/a/f", None),
    ("/out=back", b"/out/f", b"/out"),
    ("/out=back", b"/output", None),
    ("/a/b=back", b"/a/c/f", None),
    ("/a/b=back", b"/a", None),
    ("/a/b=back", b"/a/b/c/f", b"/a/b"),
    ("back,/a=off", b"/a/f", None),
    ("back,/a=off,/a/b/c=back", b"/a/b/c", b"/a/b/c"),
    ("back,/a/b=off", b"/a/b/f", b"/a"),
    ("off", b"/", None),
    ("back", b"/", b"/"),
])  # fmt: skip
def test_where_a_path_first_leads_to_what_can_be_written(text: str, path: bytes, first: bytes | None) -> None:
    modes = WriteModes.parse(text)
    ends = [end for end, byte in enumerate(path + b"/") if byte == ord("/") and end] or [1]
    written = [path[:end] for end in ends if modes.of(path[:end]) is not WriteMode.OFF]
    assert modes.first_written(path) == first == (written[0] if written else None)


@pytest.mark.parametrize("text", ["on", "back,/a=", "a=back", "/a/../b=back"])
def test_what_is_no_mode(text: str) -> None:
    with pytest.raises(UsageError):
        WriteModes.parse(text)


def test_an_exclusive_directory_takes_no_changes_of_sessions() -> None:
    modes = WriteModes.parse("back,/scratch=local,exclusive,/else=local")
    assert modes.exclusive_tops == [b"/scratch"]
    for path, is_exclusive in ((b"/scratch", True), (b"/scratch/a/b", True), (b"/scratchy", False)):
        assert (modes.is_exclusive(path), modes.takes_changes(path)) == (is_exclusive, not is_exclusive)
    assert modes.of(b"/scratch/a") is WriteMode.LOCAL
    assert modes.takes_changes(b"/else/f")
    assert (
        WriteModes.parse(modes.text()).text() == modes.text() == "back,/else=local,/scratch=local,exclusive"
    )


@pytest.mark.parametrize("text", [
    "exclusive", "local,exclusive", "/a=back:2,exclusive", "/a=through,exclusive", "/a=off,exclusive",
    "/a=local,exclusive,/a/b=back", "/a=local,exclusive,/a/b=local,exclusive", "/a=exclusive",
])  # fmt: skip
def test_exclusive_modes_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError):
        WriteModes.parse(text)
