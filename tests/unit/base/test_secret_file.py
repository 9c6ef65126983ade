"""A secret must be in a file that nobody else can read."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.errors import UsageError
from headrace.base.secret_file import read_secret


def test_a_directory_is_no_secret_and_its_mode_stays(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is not a regular file") as raised:
        read_secret(str(tmp_path), "setting rest_token")
    assert raised.value.hint == "name a file"


def test_a_file_that_others_can_read_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(mode=0o644)
    path.chmod(0o644)
    with pytest.raises(UsageError, match="other users") as raised:
        read_secret(str(path), "setting rest_token")
    assert raised.value.hint == f"chmod 600 {path}"
