"""A policy is checked without a node as the node checks it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.base.errors import UsageError
from headrace.cli import policy


def test_two_urls_of_one_origin_are_refused_without_a_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('[origin."s3://data"]\nrequests_s = 1\n[origin."s3a://data/"]\nrequests_s = 1\n')
    with pytest.raises(UsageError, match="1 fault"):
        policy.check(str(file))
    assert f"{file}:3: origin: s3a://data/ is the origin of line 1" in capsys.readouterr().err


def test_a_driver_that_only_the_node_has_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("fsspec", "fsspec.registry"):
        monkeypatch.setitem(sys.modules, name, None)
    file = tmp_path / "policy.toml"
    file.write_text('[origin."sftp://host/d"]\nrequests_s = 1\n')
    policy.check(str(file))
    assert "1 origin" in capsys.readouterr().out
