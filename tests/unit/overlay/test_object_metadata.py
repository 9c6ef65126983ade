"""Metadata that an object has beside its bytes belongs to those bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.base.model import ObjectMetadata
from headrace.overlay.object_metadata import (
    drop_origin_extras,
    extras_of,
    note_extras,
    raw_extras,
    store_origin_extras,
)

GIVEN = ObjectMetadata({"a": "b"}, {"Content-Type": "text/x"}, {"tag": "é"})


@pytest.fixture
def file(needs_root: None, tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    try:
        os.setxattr(path, "trusted.headrace.probe", b"")
    except OSError:
        pytest.skip("needs a file system with attributes")
    return path


def noted(file: Path) -> ObjectMetadata | None:
    return extras_of(os.fsencode(file), file.stat())


def test_it_stays_with_the_file_and_goes_with_its_bytes(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY)
    try:
        assert (noted(file), raw_extras(fd)) == (None, b"")
        note_extras(fd, GIVEN)
        assert noted(file) == extras_of(fd, os.fstat(fd)) == GIVEN
        file = file.rename(file.with_name("other"))
        file.chmod(0o600)
        assert noted(file) == GIVEN
        with file.open("ab") as out:
            out.write(b"more")
        assert noted(file) is None
        note_extras(fd, GIVEN)
        os.utime(file, ns=(1, 1))
        assert noted(file) is None
        note_extras(fd, ObjectMetadata())
        assert (noted(file), raw_extras(fd)) == (None, b"")
    finally:
        os.close(fd)


def test_what_an_origin_told_belongs_to_a_cache_file_whatever_its_times(file: Path) -> None:
    metadata = ObjectMetadata({"a": "b"}, {}, None)
    store_origin_extras(os.fsencode(file), 5, metadata)
    os.utime(file, ns=(1, 1))
    assert noted(file) == metadata
    drop_origin_extras(os.fsencode(file))
    assert noted(file) is None
    store_origin_extras(os.fsencode(file), 5, ObjectMetadata())
    assert noted(file) == ObjectMetadata()
    store_origin_extras(os.fsencode(file), 6, metadata)
    assert noted(file) is None  # not all of the file


def test_what_was_put_is_not_dropped_with_what_was_told(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY)
    note_extras(fd, GIVEN)
    os.close(fd)
    drop_origin_extras(os.fsencode(file))
    assert noted(file) == GIVEN
