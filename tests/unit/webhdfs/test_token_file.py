"""The file that Hadoop's clients read has the token that is valid now."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from headrace.base.errors import UsageError
from headrace.base.tokens import Tokens
from headrace.testing.waiting import wait_for
from headrace.webhdfs.token_file import TokenFile
from headrace.webhdfs.tokens import token_file

SERVICES = ["127.0.0.1:9870"]


def change(path: Path, text: str) -> None:
    """Change the file as an operator does: whole, and of this user alone."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.chmod(0o600)
    draft.rename(path)


def test_it_follows_the_token(tmp_path: Path) -> None:
    secret, shown = tmp_path / "token", tmp_path / "token.hadoop"
    change(secret, "first\n")
    kept = TokenFile(str(shown), Tokens(str(secret), "webhdfs_token"), SERVICES)
    try:
        assert shown.read_bytes() == token_file("first", SERVICES)
        with shown.open("rb") as before:
            change(secret, "second\nfirst\n")
            wait_for(lambda: shown.read_bytes() == token_file("second", SERVICES))
            assert before.read() == token_file("first", SERVICES)  # who reads has all of one
        assert stat.S_IMODE(shown.stat().st_mode) == 0o600
        assert sorted(os.listdir(tmp_path)) == ["token", "token.hadoop"]
    finally:
        kept.stop()
    assert "token-file" not in [thread.name for thread in threading.enumerate()]


def test_where_it_can_not_be_written_nothing_is_left(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    change(secret, "first\n")
    (tmp_path / "shown" / "full").mkdir(parents=True)
    with pytest.raises(UsageError):
        TokenFile(str(tmp_path / "shown"), Tokens(str(secret), "webhdfs_token"), SERVICES)
    assert sorted(os.listdir(tmp_path)) == ["shown", "token"]
