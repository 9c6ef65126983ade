"""What programs do with threads, signals and forks is the same with the hook, and their loaders are planned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.hook.answering_node import AnsweringNode
from tests.unit.hook.hooked_programs import run

STARTING = """
import json, os, signal, sys, threading, time
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        with open(sys.argv[1] + "/file"):
            return index

def load(**options):
    return [batch.tolist() for batch in DataLoader(Files(), 4, **options)]

def wait_for(name):
    path = os.path.join(sys.argv[1], name)
    while not os.path.exists(path):
        time.sleep(0.02)
"""
THREADS = """
traced = set()
threading.settrace(lambda *_: traced.add(threading.current_thread().name))
load()
threading.settrace(None)
wait_for("go")
others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
for thread in others:
    thread.join(5)
print(len(others), sorted(traced))
"""
SIGNALS = """
def threads_that_take(signal_number):
    taking = set()
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/status") as status:
            blocked = next(line for line in status if line.startswith("SigBlk"))
        if not int(blocked.split()[1], 16) >> signal_number - 1 & 1:
            taking.add(thread)
    return taking
before = threads_that_take(signal.SIGUSR1)  # those of libraries, too
load()
wait_for("go")
print(len(threads_that_take(signal.SIGUSR1) - before))
"""
FORK = """
import multiprocessing
def train():
    load()
    wait_for("go")
load()
process = multiprocessing.get_context("fork").Process(target=train)
process.start()
process.join()
print(process.exitcode, load())
"""
FETCHER = """
iterator = iter(DataLoader(Files(), 4))
next(iterator)
print(type(iterator._dataset_fetcher.dataset).__name__)
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AnsweringNode]:
    node = AnsweringNode(tmp_path / "node")
    yield node
    node.close()


def run_program(tmp_path: Path, node: AnsweringNode | None, program: str, streams: int) -> str:
    """Return what a program prints. It goes on when the node knows so many streams."""
    (tmp_path / "file").touch()
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(
            run, tmp_path, node.path if node else None, "-c", STARTING + program, str(tmp_path)
        )
        if node is not None:
            node.wait_for("PlanProgress", streams)
        (tmp_path / "go").touch()
        printed, said, _ = done.result()
    (tmp_path / "go").unlink()
    assert said == ""
    return printed


@pytest.mark.parametrize("program", [THREADS, SIGNALS, FETCHER], ids=["threads", "signals", "fetcher"])
def test_a_program_sees_nothing_of_the_hook(tmp_path: Path, node: AnsweringNode, program: str) -> None:
    plain = run_program(tmp_path, None, program, 0)
    assert run_program(tmp_path, node, program, 1) == plain


def test_a_trainer_that_was_forked_has_plans_of_its_own(tmp_path: Path, node: AnsweringNode) -> None:
    """Launchers of notebooks fork their trainers."""
    plain = run_program(tmp_path, None, FORK, 0)
    assert run_program(tmp_path, node, FORK, 2) == plain
    pids = {int(request.key.partition(":")[0]) for request in node.requests if hasattr(request, "digest")}
    assert len(pids) >= 2, json.dumps(node.received)
