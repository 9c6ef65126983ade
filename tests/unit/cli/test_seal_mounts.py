"""When the supervisor tries again to mount a seal that could not be mounted."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.base.errors import MountError
from headrace.base.volume_owner import claim_volumes
from headrace.cli import sealed_mounts
from headrace.cli.sealed_mounts import BUSY, SealMounts, known_node
from headrace.cli.state import RunState
from headrace.seal.catalogue import Place, SealId, SealRecord

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


class RestartedNode:
    """A node whose seal had places before, while another command mounts a seal."""

    def __init__(self, *places: str) -> None:
        self.places = [Place(place) for place in places]
        self.catalogue = SimpleNamespace(seals=list, places=lambda seal: self.places)
        self.failure: MountError | None = MountError("cannot mount seal auto-a@1", why=BUSY)
        self.mounted: list[str] = []

    def known_places(self) -> list[tuple[Place, SealId]]:
        return [(place, SEAL) for place in self.places]

    def mount_again(self, seal: SealId, place: Place) -> None:
        if self.failure is not None:
            raise self.failure
        if place.mountpoint not in self.mounted:
            self.mounted.append(place.mountpoint)


@pytest.fixture
def restarted(monkeypatch: pytest.MonkeyPatch) -> RestartedNode:
    node = RestartedNode("/out", "/out/in")

    def of_state(*_: object, waits: bool, **__: object) -> RestartedNode:
        assert not waits, "a command that its user stopped holds the lock for ever"
        return node

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(sealed_mounts, "SealNode", of_state)
    return node


def test_a_start_waits_for_no_command_that_mounts_a_seal(
    restarted: RestartedNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mounts = SealMounts(RunState(kind="up", pid=1, socket="s", mountpoint="/mnt", cache=[str(tmp_path)]))
    mounts.restore()
    for _ in range(3):
        mounts.check()
    assert restarted.mounted == []
    assert len(capsys.readouterr().err.splitlines()) == 2, "a line for each place"
    restarted.failure = None
    mounts.check()
    assert restarted.mounted == ["/out/in", "/out"], "readers of the inner one never meet the outer one"
    restarted.mounted.clear()
    mounts.check()
    assert restarted.mounted == [], "the user may have unmounted it"
    assert capsys.readouterr().err == ""


def test_a_place_that_was_given_up_meanwhile_is_not_mounted(restarted: RestartedNode, tmp_path: Path) -> None:
    mounts = SealMounts(RunState(kind="up", pid=1, socket="s", mountpoint="/mnt", cache=[str(tmp_path)]))
    mounts.restore()
    restarted.failure = None
    del restarted.places[0]
    mounts.check()
    assert restarted.mounted == ["/out/in"]


def test_another_failure_is_named_and_not_tried_again(
    restarted: RestartedNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mounts = SealMounts(RunState(kind="up", pid=1, socket="s", mountpoint="/mnt", cache=[str(tmp_path)]))
    mounts.restore()
    capsys.readouterr()
    restarted.failure = MountError("cannot mount at /out", why="the directory is not empty")
    mounts.check()
    assert capsys.readouterr().err.count("not empty") == 2
    restarted.failure = None
    mounts.check()
    assert restarted.mounted == []


def test_a_seal_of_a_node_that_is_down_is_mounted_with_all_its_volumes_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of a volume that is not named would be missing in it."""
    volumes = [str(tmp_path / name) for name in ("a", "b")]
    for volume in volumes:
        os.mkdir(volume)
    claim_volumes(volumes)
    monkeypatch.setenv("HEADRACE_RUN_FOLDER", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HEADRACE_CACHE", ",".join(f"{volume}:1GiB" for volume in volumes))
    assert known_node(None, volumes[0]).folders == volumes
    monkeypatch.setenv("HEADRACE_CACHE", f"{tmp_path}/other:1GiB")
    node = known_node(None, volumes[0])
    assert node.folders == volumes[:1]
    record = SealRecord("a", 1, "/", "id", "image", files=1, size_bytes=1, created_s=0.0, layout=2)
    with pytest.raises(MountError, match="cache directories that are not named"):
        node._mount_view(record, Place(str(tmp_path / "place")))
