"""The sampler's parts see real processes where that is cheap, and py-spy's and NVML's words where it is not."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
import torch

from headrace.diagnose import kernel, sampler, stacks, watch
from headrace.diagnose.attribute import attribute
from headrace.diagnose.frames import TrainerPhase, WorkerActivity, is_worker, phase_of, work_of
from headrace.diagnose.gpus import GpuWatch
from headrace.diagnose.marks import MarksReader
from headrace.diagnose.places import PlaceWatch, mounts
from headrace.diagnose.recording import Frame, KernelCall, LoaderFacts, Storage
from headrace.diagnose.report import lines_of as words_of
from headrace.diagnose.report import value_of
from headrace.diagnose.stacks import lines_of
from headrace.diagnose.timeline import events_of
from headrace.testing.waiting import wait_for

from .moments import (
    AUGMENTS,
    DECODES,
    FETCHES,
    IDLE,
    SCRIPT,
    STARTS,
    WAITS,
    recording,
    stepping,
    waiting,
    worker,
)

READER = """
import ctypes, mmap, os, sys
path, page_bytes = os.fsencode(sys.argv[1]) + b"\\0", mmap.PAGESIZE
os.mkfifo(sys.argv[1])
memory = mmap.mmap(-1, 3 * page_bytes)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
start = page_bytes - 10 if sys.argv[2] == "over" else 2 * page_bytes - len(path)
memory[start : start + len(path)] = path
libc = ctypes.CDLL(None)
libc.munmap(ctypes.c_void_p(address + 2 * page_bytes), page_bytes)
print("ready", flush=True)
libc.open(ctypes.c_void_p(address + start), os.O_RDONLY)  # until somebody writes
"""


@pytest.fixture(params=["over", "before"])
def opening(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """A process that waits in an open, and the path: it lies over a page's end, or before memory that isn't there."""
    path = str(tmp_path / "fifo")
    with subprocess.Popen(
        [sys.executable, "-c", READER, path, request.param], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid, path
        process.kill()


@pytest.mark.skipif(not kernel.may_trace(os.getpid()), reason="/proc/PID/syscall is not here")
def test_a_thread_in_an_open_is_seen_with_its_path(opening: tuple[int, str]) -> None:
    pid, path = opening

    def is_in_open() -> bool:
        state = kernel.state_of(pid, all_threads=True)
        assert state is not None
        return state.threads[0] == kernel.ThreadState(pid, KernelCall.OPEN, path)

    wait_for(is_in_open)


def test_a_process_that_has_gone_is_none_and_a_tree_has_its_children(opening: tuple[int, str]) -> None:
    processes = kernel.tree(os.getpid())
    (child,) = [process for process in processes if process.pid == opening[0]]
    assert (child.parent, child.is_python, child.is_loader_worker) == (os.getpid(), True, False)
    assert kernel.state_of(2**22 + 1, all_threads=True) is None
    assert kernel.tree(2**22 + 1) == []


def test_stacks_are_rebuilt_from_what_py_spy_writes(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("one\ntwo = x.to(device)\n")
    frame = {"filename": str(script), "line": 2}
    shared = {"pid": 7, "tid": 1400}
    events = [
        {
            **shared,
            "ph": "B",
            "name": "thread (71): MainThread",
            "ts": 1_000_000,
            "args": {"filename": "", "line": 0},
        },
        {**shared, "ph": "B", "name": "<module>", "ts": 1_000_000, "args": frame},
        {
            **shared,
            "ph": "B",
            "name": "Net.to",
            "ts": 2_000_000,
            "args": {"filename": "/x/module.py", "line": 5},
        },
        {
            **shared,
            "ph": "E",
            "name": "Net.to",
            "ts": 3_000_000,
            "args": {"filename": "/x/module.py", "line": 5},
        },
        {**shared, "ph": "E", "name": "<module>", "ts": 4_000_000, "args": frame},
    ]
    (line,) = [lines_of(events, began_s=10.0)[71]]
    module = Frame("<module>", str(script), 2, "two = x.to(device)")
    assert line.at(10.5, 0.02) == ()
    assert line.at(11.5, 0.02) == (module,)
    assert line.at(12.5, 0.02) == (Frame("<module>", str(script), 2), Frame("Net.to", "/x/module.py", 5))
    assert line.at(13.5, 0.02) == (module,)
    assert phase_of((module,)) is TrainerPhase.COPY


@pytest.mark.parametrize(
    ("stack", "phase", "work"),
    [
        (WAITS, TrainerPhase.WAIT_DATA, None),
        (STARTS, TrainerPhase.LOADER_START, None),
        (IDLE, None, WorkerActivity.IDLE),
        (DECODES, None, WorkerActivity.DECODE),
        (AUGMENTS, None, WorkerActivity.TRANSFORM),
        (
            (*FETCHES, Frame("default_collate", "/x/torch/utils/data/_utils/collate.py", 1)),
            None,
            WorkerActivity.COLLATE,
        ),
        (
            (*FETCHES, Frame("get", "/x/fsspec/asyn.py", 1), Frame("wait", "/x/threading.py", 1)),
            None,
            WorkerActivity.NETWORK,
        ),
        (
            (*FETCHES, Frame("__getitem__", "/home/me/a.py", 1, "zlib.decompress(x)")),
            None,
            WorkerActivity.DECODE,
        ),
        ((SCRIPT, Frame("Tensor.backward", "/x/torch/_tensor.py", 1)), TrainerPhase.BACKWARD, None),
        ((SCRIPT, Frame("SGD.step", "/x/torch/optim/sgd.py", 1)), TrainerPhase.OPTIMIZER, None),
        ((SCRIPT, Frame("f", "/home/me/a.py", 1, "torch.save(x, y)")), TrainerPhase.CHECKPOINT, None),
        ((SCRIPT, Frame("_send_to_device", "/home/me/a.py", 1)), TrainerPhase.OWN, None),
        ((SCRIPT, Frame("send_to_device", "/x/accelerate/utils/operations.py", 1)), TrainerPhase.COPY, None),
        ((), None, WorkerActivity.OWN),
    ],
)
def test_what_stacks_say(
    stack: tuple[Frame, ...], phase: TrainerPhase | None, work: WorkerActivity | None
) -> None:
    if phase is not None or not stack:
        assert phase_of(stack) is phase
    if work is not None:
        assert work_of(stack) is work
    assert is_worker(stack) is (stack in (IDLE, DECODES, AUGMENTS) or stack[: len(FETCHES)] == FETCHES)


def test_the_hook_writes_what_the_sampler_reads() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters())
    rows = torch.utils.data.TensorDataset(torch.zeros(64, 3))
    loader = torch.utils.data.DataLoader(
        rows, batch_size=32, num_workers=2, prefetch_factor=3, persistent_workers=True, pin_memory=True
    )
    watching = watch(model, optimizer, loader)
    reader = MarksReader.find(os.getpid())
    assert reader is not None
    loss = model(torch.zeros(32, 3)).sum()
    assert reader.read().in_step
    loss.backward()
    optimizer.step()
    marks = reader.read()
    assert (marks.in_step, marks.steps, marks.samples) == (False, 1, 32)
    assert marks.loader == LoaderFacts(2, 3, 32, True, True)
    model.eval()
    model(torch.zeros(8, 3))
    assert not reader.read().in_step, "an evaluation is no step"
    watching.close()
    watching.close()
    model.train()
    model(torch.zeros(32, 3)).sum().backward()
    optimizer.step()
    assert MarksReader.find(os.getpid()) is None


def test_a_sampler_that_waits_for_a_processor_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It slept for a negative time when the next sample became due between two looks at the clock."""
    period_s = 0.02
    looks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(looks) * period_s * 0.225, sleep=time.sleep)
    monkeypatch.setattr(sampler, "time", clock)
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    watched = sampler.Sampler(os.getpid(), lambda mountpoint: None, rate_hz=round(1 / period_s))
    watched.run(lambda: False, period_s * 5)
    watched.recording()
    assert next(looks) > 25


def test_places_are_told_apart(tmp_path: Path) -> None:
    asked: list[str] = []
    watch = PlaceWatch(lambda mountpoint: asked.append(mountpoint), os.getpid())
    (tmp_path / "file").write_text("x")
    places = {
        usage.mountpoint: usage for usage in watch.usage([str(tmp_path / "file"), "/proc/self"], wall_s=1.0)
    }
    assert places["/proc"].storage is Storage.MEMORY
    assert {"/proc", "/"} <= {mount.mountpoint for mount in mounts(os.getpid())}
    assert len(places) == 2
    assert asked[0] == ""


@pytest.fixture
def nvml() -> SimpleNamespace:
    """NVML of a host with two GPUs, where process 40 uses the first one, and process 41 the second one."""
    return SimpleNamespace(
        NVMLError=type("NVMLError", (Exception,), {}),
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: b"H100" if handle else "A100",
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=handle + 40)],
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=90 if handle else 10),
    )


def test_the_fake_nvml_has_the_names_and_signatures_of_the_real_one(nvml: SimpleNamespace) -> None:
    assert issubclass(pynvml.NVMLError, Exception)
    for name, fake in vars(nvml).items():
        if name != "NVMLError":
            assert inspect.signature(fake) == inspect.signature(getattr(pynvml, name)), name
    for result, layout in (
        (nvml.nvmlDeviceGetComputeRunningProcesses(0)[0], pynvml.c_nvmlProcessInfo_v3_t),
        (nvml.nvmlDeviceGetUtilizationRates(0), pynvml.c_nvmlUtilization_t),
    ):
        assert vars(result).keys() <= dict(layout._fields_).keys()


def test_nvml_is_asked_for_the_gpus_of_the_job(
    monkeypatch: pytest.MonkeyPatch, nvml: SimpleNamespace
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpus = GpuWatch()
    assert gpus.names == ("A100", "H100")
    assert gpus.busy(1.0, {41}) == 0.9
    assert gpus.busy(1.01, {40}) == 0.9  # not asked again so soon
    assert gpus.busy(2.0, {40}) == 0.1
    assert gpus.busy(3.0, {99}) == 0.5
    gpus.close()
    assert gpus.busy(4.0, {40}) is None


def test_the_report_says_cause_share_evidence_remedy_and_gain() -> None:
    diagnosis = attribute(
        recording((9, waiting(worker(KernelCall.RUN, DECODES))), (1, stepping()), cores=1, missing=("GPUs",))
    )
    text = "\n".join(words_of(diagnosis))
    for words in (
        "decoding and transforms",
        "90%",
        "loader.processor",
        "try: ",
        "up to 1.82×",
        "not observed",
        "- GPUs",
    ):
        assert words in text, text
    value = json.loads(json.dumps(value_of(diagnosis)))
    assert [cause["cause"] for cause in value["causes"]] == ["loader.processor"]
    assert value["causes"][0]["gain"] == pytest.approx(1.818, abs=0.001)


def test_the_time_line_joins_moments_that_look_alike() -> None:
    moments = recording((3, waiting(worker(KernelCall.RUN, DECODES, pid=8))), (2, stepping()))
    spans = [event for event in events_of(moments) if event["ph"] == "X"]
    assert {(span["pid"], span["name"]) for span in spans} == {
        (0, "waits for data"),
        (0, "own code"),
        (8, "decoding"),
    }
    assert len(spans) == 3
