"""What an object has beside its bytes belongs to those bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.base.model import Extras
from headrace.layer.extras import extras_of, note_extras, raw_extras

GIVEN = Extras({"a": "b"}, {"Content-Type": "text/x"}, {"tag": "é"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    try:
        os.setxattr(path, "trusted.headrace.probe", b"")
    except OSError:
        pytest.skip("needs root, and a file system with attributes")
    return path


def noted(file: Path) -> Extras | None:
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
        note_extras(fd, Extras())
        assert (noted(file), raw_extras(fd)) == (None, b"")
    finally:
        os.close(fd)
