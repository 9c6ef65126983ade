"""The test whether this kernel serves seals."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.base import mount_api
from headrace.base.mount_api import Option
from headrace.seal import mount, probe

pytestmark = pytest.mark.root


def test_this_kernel_serves_seals(tmp_path: Path) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    assert probe.seal_trouble(str(tmp_path)) == ""
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_kernel_without_a_part_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(kind: str, options: list[Option]) -> int:
        return mount_api.detached_mount("no-such-fs" if kind == "erofs" else kind, options)

    monkeypatch.setattr(mount, "detached_mount", without)
    assert "EROFS" in probe.seal_trouble(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_a_view_with_other_bytes_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(image: int, data: list[int], *, source: str) -> int:
        with open(f"/proc/self/fd/{data[0]}/{probe._FILE}", "r+b") as file:
            file.write(b"other")
        return mount.open_view(image, data, source=source)

    monkeypatch.setattr(probe, "open_view", other)
    assert "other bytes" in probe.seal_trouble(str(tmp_path))


def test_another_user_can_mount_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    assert probe.seal_trouble(str(tmp_path)) == "only root can mount seals"
