"""Rates, names and addresses of a lab's network; finding processes by their mark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.proc_stat import stat_fields
from headrace.lab import processes, state
from headrace.lab.lab import Lab, LabPlan
from headrace.lab.network import Loopback, Namespaces, parse_rate


@pytest.mark.parametrize(
    ("text", "rate"), [("1Gbit", 10**9), ("200Mbit", 2 * 10**8), ("1.5gbit", 15 * 10**8), ("56kbit", 56_000)]
)
def test_rates(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "1", "1G", "fastMbit", "-1Gbit", "0Mbit"])
def test_what_is_no_rate_is_said(text: str) -> None:
    with pytest.raises(UsageError):
        parse_rate(text)


def test_names_of_devices_fit_and_addresses_differ() -> None:
    net, loopback = Namespaces("/somewhere", 10**9), Loopback("/somewhere")
    assert len(net._outside(64)) <= 15  # IFNAMSIZ
    assert len({loopback.address(number) for number in range(1, 65)}) == 64
    assert Namespaces("/elsewhere", 0).namespace(1) != net.namespace(1)


def test_loopback_can_not_be_cut() -> None:
    with pytest.raises(UsageError, match="no links"):
        Loopback("/somewhere").cut(1, ("in",))


def test_only_marked_processes_are_found_and_killed(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import sys; sys.stdin.read(); import time; time.sleep(60)"]
    other = subprocess.Popen([*words[:2], "import time; time.sleep(60)"])
    try:
        folder = str(tmp_path / "one")
        pid = processes.spawn(words, folder, name="sleeper", environment={})
        assert list(processes.marked(folder)) == [pid]
        assert processes.marked(str(tmp_path / "on")) == {}  # a part of the name is not the name
        processes.kill(folder)
        assert processes.marked(folder) == {}
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_process_that_executes_its_program_slowly_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no environment until the kernel has loaded the program, which may wait for the disk."""
    mark = f"{processes.MARK}={tmp_path}".encode()
    in_exec = stat_of(os.getpid(), environment=("0", "0"))
    environments = iter([b""] * 60 + [b"A=b\0" + mark + b"\0"])
    monkeypatch.setattr(processes, "_environment", lambda pid: next(environments))
    monkeypatch.setattr(processes, "stat_fields", lambda pid: in_exec)
    monkeypatch.setattr(processes, "EXEC_WAIT_S", 60.0)
    assert processes._has(os.getpid(), mark)
    assert next(environments, None) is None


def test_a_program_that_was_loaded_between_two_looks_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = f"{processes.MARK}={tmp_path}".encode()
    environments = iter([b"", mark])
    monkeypatch.setattr(processes, "_environment", lambda pid: next(environments))
    assert processes._has(os.getpid(), mark)


def test_a_process_without_environment_is_not_waited_for() -> None:
    words = "import time; print('up', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", words], env={}, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert processes._environment(process.pid) == b""
        assert not processes._is_in_exec(process.pid)
        assert not processes._has(process.pid, b"A=b")
    finally:
        process.kill()
        process.communicate()


def stat_of(pid: int, *, environment: tuple[str, str]) -> list[str]:
    """Return the fields of a process, with other addresses of its environment."""
    fields = stat_fields(pid)
    assert fields is not None
    return [*fields[:47], *environment, *fields[49:]]


def test_end_takes_who_ignores_sigterm(tmp_path: Path) -> None:
    folder = str(tmp_path)
    words = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    pid = processes.spawn([sys.executable, "-c", words], folder, name="stubborn", environment={})
    log = Path(processes.log_of(folder, "stubborn"))
    processes.wait_until(lambda: log.read_text() == "up\n", pid, folder, name="stubborn", within_s=20)
    processes.end(folder, patience_s=0.3)
    assert processes.marked(folder) == {}


def test_who_ends_before_it_is_ready_is_quoted(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "raise SystemExit('no such luck')"]
    pid = processes.spawn(words, str(tmp_path), name="unlucky", environment={})
    with pytest.raises(HeadraceError, match="no such luck"):
        processes.wait_until(lambda: False, pid, str(tmp_path), name="unlucky", within_s=20)


def test_state_is_kept_and_for_its_owner_only(tmp_path: Path) -> None:
    path = str(tmp_path / "lab" / "lab.json")
    assert state.read(path) is None
    kept = state.LabState(folder="/somewhere", network="loopback", nodes=[1, 2], cuts={2: "in"})
    state.write(path, kept)
    assert state.read(path) == kept
    assert os.stat(path).st_mode & 0o077 == 0
    state.remove(path)
    state.remove(path)
    assert state.read(path) is None


def test_without_a_lab(tmp_path: Path) -> None:
    lab = Lab(str(tmp_path / "lab.json"))
    lab.down()
    with pytest.raises(UsageError, match="no lab is running"):
        lab.status()
    with pytest.raises(UsageError, match="--nodes 0"):
        lab.up(LabPlan(nodes=0))
    assert os.listdir(tmp_path) == []
