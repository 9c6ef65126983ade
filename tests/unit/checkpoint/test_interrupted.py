"""Threads of a save that can't start, and Ctrl-C while a save begins: no thread keeps the process from its end."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from headrace.checkpoint import PosixStorage, SaveOptions, Saver, load, steps
from headrace.checkpoint.worker_pool import WorkerPool
from tests.unit.checkpoint.states import same

KIB = 1024
JOIN_S = 60.0
SMALL = SaveOptions(chunk_bytes=4 * KIB, slot_bytes=16 * KIB, budget_bytes=64 * KIB)
STATE = {"w": np.arange(20_000)}


def refuse(patch: pytest.MonkeyPatch, name: str) -> None:
    """Let the system refuse a thread, as it does above a limit of processes."""
    start = threading.Thread.start

    def start_unless_refused(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    patch.setattr(threading.Thread, "start", start_unless_refused)


def assert_ended(prefix: str) -> None:
    """Fail if a thread does not end whose name begins so."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(prefix)]
    for thread in threads:
        thread.join(JOIN_S)
        assert not thread.is_alive(), thread.name


def assert_only_the_next_is_saved(saver: Saver, folder: Path) -> None:
    """Fail if a thread of the first save stays, or that save left a step."""
    assert_ended("checkpoint-1")
    saver.save(STATE, 2)
    saver.close()
    assert steps(PosixStorage(str(folder))) == [2]
    assert same(load(str(folder)), STATE)


def test_of_a_pool_that_lacks_a_thread_no_other_stays() -> None:
    with pytest.MonkeyPatch.context() as patch:
        refuse(patch, "work-2")
        with pytest.raises(RuntimeError, match="new thread"):
            WorkerPool(4, "work")
    assert_ended("work-")


@pytest.mark.parametrize("name", ["checkpoint-1", "checkpoint-1-1"])
def test_a_save_without_its_threads_fails_alone(tmp_path: Path, name: str) -> None:
    saver = Saver(str(tmp_path), options=SMALL)
    with pytest.MonkeyPatch.context() as patch:
        refuse(patch, name)
        with pytest.raises(RuntimeError, match="new thread"):
            saver.save(STATE, 1)
    assert_only_the_next_is_saved(saver, tmp_path)


@pytest.mark.expected_warnings("a checkpoint was not saved")
@pytest.mark.parametrize(
    "call", [2, 3]
)  # before the thread of the save starts, and after the state is staged
def test_ctrl_c_in_a_save_ends_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    calls = 0

    def perf_counter() -> float:
        nonlocal calls
        if threading.current_thread() is threading.main_thread():
            calls += 1
            if calls == call:
                raise KeyboardInterrupt
        return time.perf_counter()

    module = sys.modules["headrace.checkpoint.save"]  # the package has a function of this name
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=perf_counter))
    saver = Saver(str(tmp_path), options=SMALL)
    with pytest.raises(KeyboardInterrupt):
        saver.save(STATE, 1)
    assert_only_the_next_is_saved(saver, tmp_path)
