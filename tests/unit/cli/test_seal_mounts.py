"""The supervisor tries again to mount a seal that could not be mounted."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.base.errors import CancelledByUserError, MountError, NodeUnavailableError, UsageError
from headrace.base.volume_owner import claim_volumes
from headrace.cli import job_progress, seal, sealed_mounts
from headrace.cli.sealed_mounts import BUSY, SealMounts, SealNode, known_node
from headrace.cli.state import RunState, write_state
from headrace.config.schema import socket_path_of
from headrace.seal import mountpoint
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


def test_seals_of_a_node_that_runs_and_does_not_answer_are_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is stopped: with its seals, `seal remove` would change what it uses."""
    run_folder, cache = tmp_path / "run", tmp_path / "cache"
    run_folder.mkdir(mode=0o700)
    monkeypatch.setenv("HEADRACE_RUN_FOLDER", str(run_folder))
    monkeypatch.setenv("HEADRACE_CACHE", f"{tmp_path}/other:1GiB")
    monkeypatch.setattr("headrace.client.connection.WELCOME_LIMIT_S", 0.1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(socket_path_of(str(run_folder), str(cache)))
        silent.listen()
        for named in (None, str(cache)):
            with pytest.raises(NodeUnavailableError, match="it accepts connections, but answers none"):
                known_node(None, named)
    assert known_node(None, str(cache)).folders == [str(cache)]


def test_seals_of_a_node_that_is_restarting_are_those_of_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration names the cache of another node, or the default, whose seals would be listed instead."""
    run_folder, caches = tmp_path / "run", [str(tmp_path / name) for name in ("a", "b")]
    run_folder.mkdir(mode=0o700)
    monkeypatch.setenv("HEADRACE_RUN_FOLDER", str(run_folder))
    monkeypatch.setenv("HEADRACE_CACHE", f"{tmp_path}/other:1GiB")
    monkeypatch.setattr("headrace.client.discovery.RESTART_S", 0.0)
    assert known_node(None, None).folders == [f"{tmp_path}/other"]
    up = RunState(kind="up", pid=os.getpid(), socket=f"{run_folder}/a.sock", cache=caches)
    write_state(str(run_folder), up)
    for socket_path in (None, up.socket):
        node = known_node(socket_path, None)
        assert (node.folders, node.is_running, node.states) == (caches, False, [up])
    assert known_node(None, str(tmp_path / "c")).folders == [str(tmp_path / "c")]
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            write_state(
                str(run_folder),
                RunState(kind="up", pid=process.pid, socket=f"{run_folder}/b.sock", cache=caches[1:]),
            )
            with pytest.raises(UsageError, match=r"restarting.*--cache"):
                known_node(None, None)
            assert known_node(up.socket, None).folders == caches
        finally:
            process.kill()


def test_a_directory_that_can_not_be_mounted_at_is_refused_before_files_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "full" / "file").mkdir(parents=True)
    node = SealNode("socket", "/data", [str(tmp_path / "cache")], [], is_running=True)
    fetched: list[object] = []
    monkeypatch.setattr(seal, "running_node", lambda *_: node)
    monkeypatch.setattr(seal, "_check_may_mount", lambda _: None)
    monkeypatch.setattr(mountpoint, "only_root_moves", lambda _: True)
    monkeypatch.setattr(job_progress, "watch", lambda *words, **_: fetched.append(words))
    with pytest.raises(MountError, match="the directory is not empty"):
        seal.make("/data", mountpoint=str(tmp_path / "full"))
    assert fetched == []


def test_an_interrupted_mount_says_that_the_seal_is_made_and_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = SealRecord("a", 1, "/d", "id", "image", 0, 0, 0.0, 2)
    node = SealNode("", "/", [str(tmp_path)], [], is_running=False)
    os.makedirs(node.catalogue.path(SealId("a", 1), ""))

    def interrupted(*_: object) -> None:
        assert (tmp_path / "new").is_dir()
        raise KeyboardInterrupt

    monkeypatch.setattr(SealNode, "_mount_view", interrupted)
    monkeypatch.setattr(mountpoint, "only_root_moves", lambda _: True)
    with pytest.raises(CancelledByUserError, match="the seal is made, and not mounted"):
        seal._mount_at(node, record, [Place(str(tmp_path / "new"))])
    assert not (tmp_path / "new").exists()
    assert node.catalogue.places(SealId("a", 1)) == []
