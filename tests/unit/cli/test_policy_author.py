"""The author of a policy is in its history, also where the user has no name."""

from __future__ import annotations

import os

import pytest

from headrace.cli.policy import _author
from headrace.policy.limits import POLICY_AUTHOR_MAX


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> object:
        raise KeyError("getpwuid(): uid not found")

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", fail)
    assert _author().startswith(f"uid {os.geteuid()}@")


def test_a_name_fits_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "\udcff\n" + "x" * 500)
    author = _author()
    assert author.startswith("\\xff\\x0ax") and len(author) == POLICY_AUTHOR_MAX
