"""The lock of the layer: one at a time, also after its holder died in a way that leaves its files open."""

from __future__ import annotations

import platform
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headrace.overlay.lock import LayerLock

HOLDS = """
import ctypes, sys, threading, time
from headrace.overlay.lock import LayerLock
lock = LayerLock(sys.argv[1])
threading.Thread(target=time.sleep, args=(60,)).start()  # keeps the descriptors
lock.__enter__()
print("held", flush=True)
sys.stdin.readline()
if sys.argv[2] == "dies":
    ctypes.CDLL(None).syscall(60, 0)  # exit(2) of x86-64: of this thread only, as when another one can't be killed
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path, request: pytest.FixtureRequest) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path / "lock"), request.param],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    request.addfinalizer(process.wait)
    request.addfinalizer(process.kill)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of the system call")
@pytest.mark.parametrize("holder", ["dies"], indirect=True)
def test_a_holder_that_died_but_for_a_thread(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    inside, most = [0], [0]
    tell(holder)

    def work() -> None:
        lock = LayerLock(str(tmp_path / "lock"))
        for _ in range(20):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.001)
                inside[0] -= 1
        lock.close()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert most == [1]


@pytest.mark.parametrize("holder", ["lives"], indirect=True)
def test_a_holder_that_lives_is_waited_for(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    taken = threading.Event()

    def work() -> None:
        with LayerLock(str(tmp_path / "lock")):
            taken.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert not taken.wait(1.5)
    holder.kill()
    assert taken.wait(60)
    thread.join(60)
