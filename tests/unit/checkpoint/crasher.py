"""A process that forks children which save until they are killed: by a failpoint, by the clock, or not at all.

Run as `python -m tests.unit.checkpoint.crasher`. One JSON line in, one out: what was acknowledged, how it ended.
It has no threads itself, so that forking it is safe; a child costs some milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from headrace.base import failpoint
from headrace.base.errors import CheckpointFailedError
from headrace.checkpoint import Retention, SaveOptions, Saver
from headrace.checkpoint.saving import SaveHandle
from tests.unit.checkpoint.states import state_of

RETENTION = Retention(last=3, every=4)


class Crasher:
    """The test's end of such a process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.checkpoint.crasher"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[3],
        )

    def run(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


def options_of(choose: random.Random) -> SaveOptions:
    return SaveOptions(
        budget_bytes=choose.choice([32768, 65536, 1 << 20]),
        chunk_bytes=4096,
        slot_bytes=16384,
        compress=choose.choice(["never", "always"]),
        full_share=choose.choice([0.3, 0.6, 1.0]),
        chain_max=choose.choice([1, 2, 8]),
        retention=RETENTION,
    )


def saves(order: dict[str, Any], tell: int) -> None:
    """Some saves, one or two under way at a time; tells each that is acknowledged."""
    choose = random.Random(f"{order['seed']}/{order['attempt']}")
    waiting: list[SaveHandle] = []
    with Saver(order["folder"], options=options_of(choose)) as saver:
        for step in order["steps"]:
            waiting.append(saver.save(state_of(order["seed"], step, order["attempt"]), step))
            if len(waiting) > choose.randrange(2):
                acknowledge(waiting.pop(0), tell)
        for saving in waiting:
            acknowledge(saving, tell)


def acknowledge(saving: SaveHandle, tell: int) -> None:
    saving.wait()
    os.write(tell, f"{saving.step}\n".encode())


def child(order: dict[str, Any], tell: int) -> None:
    failpoint._ARMED = order["failpoint"]
    failpoint._left = order["hits"]
    if order["after_s"]:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the process ends between any two instructions
        signal.setitimer(signal.ITIMER_REAL, order["after_s"])
    saves(order, tell)


def one_rank(order: dict[str, Any], rank: int, tell: int) -> None:
    """Only one of the ranks is killed at a failpoint."""
    if rank == order["killed"]:
        failpoint._ARMED, failpoint._left = order["failpoint"], order["hits"]
    options = SaveOptions(chunk_bytes=4096, slot_bytes=16384, timeout_s=100)
    run = f"run{order['attempt']}"
    saver = Saver(order["folder"], options=options, rank=rank, ranks=order["ranks"], run=run)
    for step in order["steps"]:
        saving = saver.save(state_of(100 + rank, step, order["attempt"]), step)
        try:
            saving.wait()
        except CheckpointFailedError:
            return
        os.write(tell, f"{step}\n".encode())


def run_ranks(order: dict[str, Any]) -> dict[str, Any]:
    """acknowledged: steps that some rank was told of. When the one rank ended, the others are killed."""
    hear, tell = os.pipe()
    pids = []
    for rank in range(order["ranks"]):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(hear)
                one_rank(order, rank, tell)
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    os.close(tell)
    _, status = os.waitpid(pids.pop(order["killed"]), 0)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    with os.fdopen(hear) as lines:
        acknowledged = sorted({int(line) for line in lines.read().split()})
    return {"acknowledged": acknowledged, "status": os.waitstatus_to_exitcode(status)}


def run(order: dict[str, Any]) -> dict[str, Any]:
    hear, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(hear)
            child(order, tell)
            status = 0
        finally:
            os._exit(status)
    os.close(tell)
    with os.fdopen(hear) as lines:
        acknowledged = [int(line) for line in lines.read().split()]
    _, status = os.waitpid(pid, 0)
    return {"acknowledged": acknowledged, "status": os.waitstatus_to_exitcode(status)}


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        answer = run_ranks(order) if order.get("kind") == "ranks" else run(order)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
