"""Names that conflict copies get, and what of them is recorded."""

from __future__ import annotations

import os

import pytest

from headrace.base.errors import NotSupportedError, OriginUnavailableError
from headrace.base.model import Version
from headrace.base.origin_names import plain_name
from headrace.overlay.hiding import defer_removal
from headrace.overlay.marks import set_base
from headrace.writeback.sync_journal import JournalRecord
from tests.unit.writeback.layer_fixture import LayerFixture

PATH = b"/d/f"
pytestmark = pytest.mark.expected_warnings("the local version is kept", "no origin accepts a name")


def keep(layer: LayerFixture, path: bytes = PATH) -> None:
    layer.conflicts.keep(path, layer.upper.at(path).lstat(), "changed by the test")


async def test_copies_of_one_moment_have_names_of_their_own(layer: LayerFixture) -> None:
    contents = [b"first", b"second", b"third"]
    for data in contents:
        layer.write(PATH, data)
        keep(layer)
    kept = [conflict.kept for conflict in layer.kept()]
    assert len(set(kept)) == 3 and layer.conflicts.count == 3
    assert sorted(layer.content(path) for path in kept) == sorted(contents)
    assert layer.upper.lookup(PATH) is None


async def test_a_name_of_the_origin_is_not_taken(layer: LayerFixture) -> None:
    """A copy would replace it there."""
    layer.write(PATH, b"first")
    keep(layer)
    (first,) = layer.kept()
    layer.upper.at(first.kept).unlink()
    layer.namespace.changes.record_put(first.kept, Version(3, 1, "of others"))
    layer.write(PATH, b"second")
    keep(layer)
    assert first.kept not in {conflict.kept for conflict in layer.kept() if conflict != first}


async def test_a_long_name_is_cut(layer: LayerFixture) -> None:
    path = b"/d/" + b"n" * 255
    layer.write(path, b"ours")
    keep(layer, path)
    (conflict,) = layer.kept()
    name = os.path.basename(conflict.kept)
    assert len(name) == 255 and b".conflict-" in name and layer.content(conflict.kept) == b"ours"


@pytest.mark.parametrize("letter", ["\u00e9", "\u6c34", "\U0001f30a"])
async def test_a_long_name_is_cut_between_characters(layer: LayerFixture, letter: str) -> None:
    """Otherwise the copy would be renamed once more, as no origin accepts its name."""
    name = "nn" + letter * (253 // len(letter.encode()))
    path = b"/d/" + name.encode()
    layer.write(path, b"ours")
    keep(layer, path)
    (conflict,) = layer.kept()
    kept = os.path.basename(conflict.kept)
    assert len(kept) > 251 and plain_name(kept) == kept and layer.content(conflict.kept) == b"ours"
    assert kept.decode().partition(".conflict-")[0] in name


async def test_a_long_name_that_is_not_utf_8_is_cut(layer: LayerFixture) -> None:
    path = b"/d/" + b"\x80" * 255
    layer.write(path, b"ours")
    keep(layer, path)
    (conflict,) = layer.kept()
    assert 251 <= len(os.path.basename(conflict.kept)) <= 255 and layer.content(conflict.kept) == b"ours"


async def test_a_directory_takes_all_that_is_in_it_along(layer: LayerFixture) -> None:
    layer.write(b"/d/s/a", b"a")
    layer.write(b"/d/s/t/b", b"b")
    keep(layer, b"/d/s")
    (conflict,) = layer.kept()
    assert layer.content(conflict.kept + b"/a") == b"a" and layer.content(conflict.kept + b"/t/b") == b"b"
    assert set(layer.meant_anew) == {b"/d/s", conflict.kept}


async def test_what_came_to_the_name_meanwhile_stays(layer: LayerFixture) -> None:
    status = layer.write(PATH, b"ours")
    layer.upper.at(PATH).rename(layer.upper.at(b"/d/elsewhere"))
    layer.write(PATH, b"another file")
    layer.journal.note(JournalRecord(PATH, 1, 1, 1, Version(1, 1, "t")))
    layer.conflicts.keep(PATH, status, "changed by the test")
    assert layer.content(PATH) == b"another file" and layer.kept() == []
    assert layer.journal.get(PATH) is None  # so its upload replaces nothing


async def test_an_upload_waits_for_a_file_in_the_place_of_its_directory(layer: LayerFixture) -> None:
    layer.write(PATH, b"ours")
    error = OriginUnavailableError("d/f", why="no directory")
    layer.conflicts.check_blocked(PATH, error)
    set_base(layer.upper.at(b"/d"), b"/d", Version(3, 1, "a file"))
    assert layer.conflicts.blocking_directories(PATH) == [b"/d"]
    with pytest.raises(OriginUnavailableError):
        layer.conflicts.check_blocked(PATH, error)


async def test_an_upload_waits_for_a_directory_that_is_put_aside(layer: LayerFixture) -> None:
    layer.upper.at(b"/d").make_directories(0o755)
    defer_removal(layer.upper, b"/d")
    with pytest.raises(OriginUnavailableError):
        layer.conflicts.check_blocked(b"/d", OriginUnavailableError("d", why="a directory is there"))


async def test_the_topmost_name_that_no_origin_takes_is_changed(layer: LayerFixture) -> None:
    error = NotSupportedError("\udcff/f", why="not UTF-8")
    layer.write(b"/d/\xff/f", b"ours")
    assert layer.conflicts.keep_by_plain_name(b"/d/\xff/f", error)
    assert layer.content(b"/d/%FF/f") == b"ours" and layer.names(b"/d") == [b"%FF"]
    (conflict,) = layer.kept()
    assert (conflict.path, conflict.kept, conflict.why) == (b"/d/\xff", b"/d/%FF", "\\xff/f: not UTF-8")
    assert set(layer.meant_anew) == {b"/d/\xff", b"/d/%FF"}
    layer.write(PATH, b"plain")
    assert not layer.conflicts.keep_by_plain_name(PATH, error)
    assert layer.content(PATH) == b"plain"


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        (b"plain", b"plain"),
        ("größe".encode(), "größe".encode()),
        (b"a\xffb", b"a%FFb"),
        (b"tab\t", b"tab%09"),
        (b"del\x7f", b"del%7F"),
        (b".headrace-put-x", b"%2Eheadrace-put-x"),
        (b".hidden", b".hidden"),
    ],
)
def test_plain_names(name: bytes, plain: bytes) -> None:
    assert plain_name(name) == plain and plain_name(plain) == plain
