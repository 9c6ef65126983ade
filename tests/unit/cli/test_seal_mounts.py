"""When the supervisor tries again to mount a seal that could not be mounted."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.base.errors import MountError
from headrace.cli import sealed_mounts
from headrace.cli.sealed_mounts import SealMounts
from headrace.cli.state import RunState
from headrace.seal.catalogue import SealId

SEAL = SealId("auto-a", 1)


class Node:
    """A node with one automatic seal, whose first mounts fail."""

    def __init__(self, clock: SimpleNamespace, reasons: list[str]) -> None:
        self.catalogue = SimpleNamespace(
            seals=lambda: [SEAL],
            record=lambda seal: SimpleNamespace(seal=seal, automatic=True, is_lazy=False),
        )
        self._clock, self._reasons = clock, reasons
        self.tried_at_s: list[float] = []

    def mount_automatic(self, _: object) -> None:
        self.tried_at_s.append(self._clock.now_s)
        if self._reasons:
            raise MountError("cannot mount seal auto-a@1", why=self._reasons.pop(0))

    def renew_mounts(self, _: object) -> list[str]:
        return []


@pytest.mark.parametrize(
    ("reasons", "tried_at_s", "warnings"),
    [
        ([], [0.0], 0),
        (["busy"], [0.0, 1.0], 1),
        (["busy"] * 6, [0.0, 1.0, 3.0, 7.0, 15.0, 23.0, 31.0], 1),
        (["busy", "not empty", "busy"], [0.0, 1.0, 3.0, 7.0], 3),
    ],
)
def test_a_mount_that_failed_is_tried_again_with_growing_pauses_until_it_succeeds(
    reasons: list[str],
    tried_at_s: list[float],
    warnings: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = SimpleNamespace(now_s=0.0)
    node = Node(clock, list(reasons))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(sealed_mounts, "SealNode", lambda *_, **__: node)
    monkeypatch.setattr(sealed_mounts, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    state = RunState(kind="up", pid=1, socket="s", mountpoint="/mnt", cache=[str(tmp_path)])
    mounts = SealMounts(state)
    for _ in range(60):
        mounts.check()
        clock.now_s += 1.0
    assert node.tried_at_s == tried_at_s
    assert capsys.readouterr().err.count("auto-a@1") == warnings * 2  # as the subject, and in the reason
