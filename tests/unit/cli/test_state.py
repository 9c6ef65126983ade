"""State files, and the end of the processes that they name."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from headrace.cli.state import RunState, drop_socket, end, write_state
from headrace.lab.processes import stopped
from headrace.store import spill
from headrace.store.volume import take_lock
from tests.integration.cli.host import wait_until


def test_a_process_that_its_user_stopped_ends(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            process.send_signal(signal.SIGSTOP)
            wait_until(lambda: stopped(process.pid))
            assert end(os.pidfd_open(process.pid), 60)
            assert process.wait(60) == -signal.SIGTERM
        finally:
            process.kill()


def test_the_spill_of_a_killed_node_goes_with_its_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes memory where the run directory is on a disk. The directory in memory goes with the last spill there."""
    run, memory = tmp_path / "run", tmp_path / "memory"
    monkeypatch.setattr(spill, "_memory_directory", lambda: str(memory))
    for name, parent in (("7", run), ("7", memory), ("8", memory)):
        (parent / f"{name}.spill/files").mkdir(parents=True)
        (parent / f"{name}.spill/files/1.part").touch()
    (run / "7.sock").touch()
    memory.chmod(0o777)
    drop_socket(str(run / "7.sock"))
    assert os.listdir(run) == []
    assert sorted(os.listdir(memory)) == ["7.spill", "8.spill"]  # another user may have exchanged it
    memory.chmod(0o700)
    lock_fd = take_lock(str(memory / "7.spill/lock"), "spill")
    drop_socket(str(run / "7.sock"))
    assert sorted(os.listdir(memory)) == ["7.spill", "8.spill"]  # of the cache's next node
    os.close(lock_fd)
    drop_socket(str(run / "7.sock"))
    assert os.listdir(memory) == ["8.spill"]
    drop_socket(str(run / "8.sock"))
    assert not memory.exists()


def test_a_state_that_can_not_be_written_leaves_no_file(tmp_path: Path) -> None:
    state = RunState(kind="up", pid=os.getpid(), socket="s", mountpoint=os.fsdecode(b"/mnt/\xff"))
    with pytest.raises(UnicodeEncodeError):
        write_state(str(tmp_path), state)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_a_write_names_the_state_file(tmp_path: Path) -> None:
    state = RunState(kind="up", pid=os.getpid(), socket="s")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # as on a full disk
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_state(str(tmp_path), state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.filename == f"{tmp_path}/{os.getpid()}.json"
    assert list(tmp_path.iterdir()) == []
