"""Programs do the same with threads, signals and forks with the hook, and their loaders are planned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.wire.messages import PlanLearn, PlanStart
from tests.unit.hook.answering_node import AnsweringNode
from tests.unit.hook.hooked_programs import run

pytestmark = pytest.mark.timeout(240)

STARTING = """
import json, os, signal, sys, threading, time
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        with open(sys.argv[1] + "/file"):
            return index

kept = []  # a loader that is gone is not reported any more

def load():
    kept.append(DataLoader(Files(), 4))
    return [batch.tolist() for batch in kept[-1]]

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
wait_for("go 0")
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
wait_for("go 0")
print(len(threads_that_take(signal.SIGUSR1) - before))
"""
FORK = """
import multiprocessing
def train():
    load()
    wait_for("go 0")
load()
process = multiprocessing.get_context("fork").Process(target=train)
process.start()
process.join()
print(process.exitcode, load())
"""
FETCHER = """
iterator = iter(DataLoader(Files(), 4))
next(iterator)
wait_for("go 0")  # one that ends at once may tell the node nothing
print(type(iterator._dataset_fetcher.dataset).__name__)
"""
CHANGING = """
class Names(Files):
    def __init__(self):
        self.names = [f"file{number}" for number in range(8)]
    def __getitem__(self, index):
        with open(os.path.join(sys.argv[1], "file")):
            return self.names[index]
data_set = Names()
loader = DataLoader(data_set, 4, num_workers=1)
for epoch in range(3):
    print(list(loader))
    if epoch == 1:
        wait_for("go 0")
        data_set.names.reverse()
wait_for("go 1")
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AnsweringNode]:
    node = AnsweringNode(tmp_path / "node")
    yield node
    node.close()


def run_program(tmp_path: Path, node: AnsweringNode | None, program: str, *streams: int) -> str:
    """Return what a program prints. It waits for a file, until the node knows so many streams, and then for the next
    one."""
    (tmp_path / "file").touch()
    files = [tmp_path / f"go {number}" for number in range(len(streams))]
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(
            run, tmp_path, node.path if node else None, "-c", STARTING + program, str(tmp_path)
        )
        try:
            for count, file in zip(streams, files, strict=True):
                if node is not None:
                    node.wait_for("PlanStart", count)
                file.touch()
        finally:
            for file in files:
                file.touch()
        printed, said, _ = done.result()
    for file in files:
        file.unlink()
    assert said == ""
    return printed


@pytest.mark.parametrize("program", [THREADS, SIGNALS, FETCHER], ids=["threads", "signals", "fetcher"])
def test_a_program_sees_nothing_of_the_hook(tmp_path: Path, node: AnsweringNode, program: str) -> None:
    plain = run_program(tmp_path, None, program, 1)
    assert run_program(tmp_path, node, program, 1) == plain


def test_a_trainer_that_was_forked_has_plans_of_its_own(tmp_path: Path, node: AnsweringNode) -> None:
    """Launchers of notebooks fork their trainers."""
    plain = run_program(tmp_path, None, FORK, 2)
    assert run_program(tmp_path, node, FORK, 2) == plain
    pids = {int(request.key.partition(":")[0]) for request in node.requests if hasattr(request, "digest")}
    assert len(pids) >= 2, json.dumps(node.received)


def test_a_data_set_whose_files_change_is_another_one(tmp_path: Path, node: AnsweringNode) -> None:
    """Reports of its workers belong to the stream that has begun then."""
    plain = run_program(tmp_path, None, CHANGING, 1, 2)
    assert run_program(tmp_path, node, CHANGING, 1, 2) == plain
    started = [request.key for request in node.requests if isinstance(request, PlanStart)]
    learned = [request.key for request in node.requests if isinstance(request, PlanLearn)]
    assert len(set(started)) == 2
    assert set(learned) == set(started)
