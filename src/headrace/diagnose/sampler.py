"""Sample a running job many times a second, from outside, and make a recording of it.

All work is in the caller's thread. Each sample reads the states of the job's processes from /proc. py-spy takes the
Python stacks, which are matched with the samples at the end. The job is neither stopped nor changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.diagnose import kernel
from headrace.diagnose.frames import calls_headrace, is_worker
from headrace.diagnose.gpus import GpuWatch
from headrace.diagnose.kernel import JobProcess, ProcessState, ThreadState
from headrace.diagnose.marks import MarksReader
from headrace.diagnose.places import PlaceWatch, StatusOf, link_bytes_s
from headrace.diagnose.recording import KernelCall, Recording, Thread, TimelineSample, Worker
from headrace.diagnose.stacks import Line, StackSampler

RATE_HZ = 10
TREE_EVERY_S = 0.2
PLANS_EVERY_S = 2.0
"""Seconds between two looks at the plans of nodes: each is a request."""
NAME_MAX = 200
"""Characters of a command on the timeline."""
SPIED_WORKERS_MAX = 8
"""Workers of which stacks are taken: all do the same work, and each needs a py-spy of its own."""
_RECORDED_CALLS = (KernelCall.RUN, KernelCall.READ, KernelCall.OPEN, KernelCall.WRITE, KernelCall.FAULT)


@dataclass(slots=True)
class _Sample:
    at_s: float
    states: dict[int, ProcessState]
    marked: dict[int, bool]
    gpu_busy: float | None


class Sampler:
    """Sample a job. Call run() once, then recording() once."""

    def __init__(self, root: int, status_of: StatusOf, rate_hz: int = RATE_HZ) -> None:
        self._root = root
        self._period_s = 1 / rate_hz
        self._stacks = StackSampler(rate_hz)
        self._gpus = GpuWatch()
        self._places = PlaceWatch(status_of, root)
        self._processes: dict[int, JobProcess] = {}
        self._marks: dict[int, MarksReader] = {}
        self._marked_before: dict[int, tuple[int, int]] = {}
        self._untraceable: set[int] = set()
        self._bytes_read: dict[int, list[int]] = {}
        self._samples: list[_Sample] = []
        self._alive: list[int] = []
        self._known_states: dict[ProcessState, ProcessState] = {}  # most samples repeat an earlier state
        self._began_s = time.monotonic()
        self._tree_at_s = float("-inf")
        self._plans_at_s = self._began_s

    def run(self, ended: Callable[[], bool], limit_s: float | None) -> None:
        """Sample until the job's first process has ended, ended() returns True, or time is up.

        KeyboardInterrupt passes through; the samples so far are kept.
        """
        next_s = time.monotonic()
        while not ended():
            now_s = time.monotonic()
            if limit_s is not None and now_s - self._began_s >= limit_s:
                return
            if now_s - self._tree_at_s >= TREE_EVERY_S:
                self._tree_at_s = now_s
                if not self._follow():
                    return
            if now_s - self._plans_at_s >= PLANS_EVERY_S:
                self._plans_at_s = now_s
                self._places.note_plans()
            self._take_sample(time.monotonic())
            next_s = max(next_s + self._period_s, time.monotonic() + self._period_s / 4)
            time.sleep(max(0.0, next_s - time.monotonic()))

    def recording(self) -> Recording:
        """End the sampling and return its recording; takes some seconds after a long sampling."""
        wall_s = time.monotonic() - self._began_s
        lines = self._stacks.stop()
        self._gpus.close()
        workers = self._workers(lines)
        trainers = self._trainers(workers)
        moments = tuple(moment for trainer in trainers for moment in self._moments(trainer, workers, lines))
        threads = _threads_of(moments)
        counts = {pid: self._marks[pid].read() for pid in trainers if pid in self._marks}
        before = [self._marked_before[pid] for pid in counts]
        marks = list(counts.values())
        self._close_marks()
        return Recording(
            moments=moments,
            cores=len(os.sched_getaffinity(0)),
            ended=kernel.state_of(self._root, all_threads=False) is None,
            places=self._places.usage(
                {thread.path for thread in threads if thread.path.startswith("/")},
                wall_s,
                by_library=any(calls_headrace(thread.stack) for thread in threads),
            ),
            link_bytes_s=link_bytes_s(),
            bytes_read=sum(last - first for first, last in self._bytes_read.values()),
            steps=sum(page.steps for page in marks) - sum(steps for steps, _ in before) if marks else None,
            samples=sum(page.samples for page in marks) - sum(count for _, count in before)
            if marks
            else None,
            loader=next((page.loader for page in marks if page.loader), None),
            gpus=self._gpus.names,
            missing=self._missing(trainers, lines),
            names=self._names(workers),
        )

    def _close_marks(self) -> None:
        for reader in self._marks.values():
            reader.close()

    # ------------------------------------------------------------ while it runs

    def _follow(self) -> bool:
        """Start to follow new processes; return False when the first process has ended."""
        processes = kernel.tree(self._root)
        spied = 0
        self._alive = [process.pid for process in processes if process.is_python]
        for process in processes:
            previous = self._processes.get(process.pid)
            self._processes[process.pid] = process
            if previous is None and not kernel.may_trace(process.pid):
                self._untraceable.add(process.pid)
            spied += process.is_loader_worker
            if process.is_python and (
                not process.is_loader_worker or (previous is not None and spied <= SPIED_WORKERS_MAX)
            ):
                self._stacks.follow(process.pid)  # a worker only at its second sample: some live very briefly
            if not process.is_loader_worker and process.pid not in self._marks:
                reader = MarksReader.find(process.pid)
                if reader is not None:
                    self._marks[process.pid] = reader
                    self._marked_before[process.pid] = reader.read().steps, reader.read().samples
            read = kernel.bytes_read(process.pid)
            self._bytes_read.setdefault(process.pid, [read, read])[1] = read
        return bool(processes)

    def _take_sample(self, now_s: float) -> None:
        states = {}
        for pid in self._alive:
            state = kernel.state_of(pid, all_threads=True)
            if state is not None:
                recorded = _without_waiting_threads(state)
                states[pid] = self._known_states.setdefault(recorded, recorded)
        marked = {pid: reader.read().in_step for pid, reader in self._marks.items() if pid in states}
        self._samples.append(_Sample(now_s, states, marked, self._gpus.busy(now_s, states)))

    # ------------------------------------------------------------ afterwards

    def _workers(self, lines: dict[tuple[int, int], Line]) -> dict[int, int]:
        """Return worker → trainer, for processes that have torch's name for workers or its worker loop on a stack."""
        trainer_by_worker = {}
        for pid, process in self._processes.items():
            line = lines.get((pid, pid))
            if process.is_loader_worker or (
                line is not None and any(is_worker(stack) for stack in line.stacks)
            ):
                trainer_by_worker[pid] = process.parent
        return trainer_by_worker

    def _trainers(self, workers: dict[int, int]) -> list[int]:
        """Return the processes that have workers.

        If none has, return those without a Python process below them: a launcher of ranks only waits.
        """
        parents = {parent for parent in workers.values() if parent in self._processes}
        if parents:
            return sorted(parents)
        python = {
            pid
            for pid, process in self._processes.items()
            if process.is_python and "resource_tracker" not in process.command
        }
        inner = {self._processes[pid].parent for pid in python}
        return sorted(python - inner) or sorted(python)

    def _moments(
        self, trainer: int, workers: dict[int, int], lines: dict[tuple[int, int], Line]
    ) -> list[TimelineSample]:
        own = [pid for pid, parent in workers.items() if parent == trainer]
        samples = [sample for sample in self._samples if trainer in sample.states]
        moments = []
        for sample, following in zip(samples, [*samples[1:], None], strict=True):
            span_s = self._period_s if following is None else following.at_s - sample.at_s
            state = sample.states[trainer]
            threads = self._threads(state, sample.at_s, lines)
            moments.append(
                TimelineSample(
                    at_s=sample.at_s - self._began_s,
                    span_s=span_s,
                    main=threads[0],
                    workers=tuple(
                        self._worker(sample.states[pid], sample.at_s, lines)
                        for pid in own
                        if pid in sample.states
                    ),
                    others=tuple(threads[1:]),
                    running=sum(thread.call is KernelCall.RUN for thread in state.threads),
                    marked=sample.marked.get(trainer),
                    trainer=trainer,
                    gpu_busy=sample.gpu_busy,
                )
            )
        return moments

    def _worker(self, state: ProcessState, at_s: float, lines: dict[tuple[int, int], Line]) -> Worker:
        main, *others = self._threads(state, at_s, lines)
        return Worker(state.pid, main, tuple(others))

    def _threads(self, state: ProcessState, at_s: float, lines: dict[tuple[int, int], Line]) -> list[Thread]:
        threads = []
        for thread in state.threads:
            line = lines.get((state.pid, thread.tid))
            stack = line.at(at_s, self._period_s) if line is not None else ()
            threads.append(Thread(thread.call, stack, thread.path))
        return threads

    def _names(self, workers: dict[int, int]) -> dict[int, str]:
        return {
            pid: f"loader worker {pid}" if pid in workers else process.command[:NAME_MAX]
            for pid, process in self._processes.items()
        }

    def _missing(self, trainers: list[int], lines: dict[tuple[int, int], Line]) -> tuple[str, ...]:
        missing = []
        if not trainers:
            missing.append("processes: the job has no Python process")
        elif not self._stacks.available:
            missing.append("Python stacks: py-spy is missing (pip install 'headrace[diagnose]')")
        elif not any(pid == tid and pid in trainers for pid, tid in lines):
            why = next(
                (self._stacks.trouble[pid] for pid in trainers if pid in self._stacks.trouble),
                "py-spy returned none",
            )
            missing.append(f"Python stacks of the trainer: {why}")
        if self._untraceable & set(self._processes):
            missing.append(
                "system calls and files of the job: the kernel forbids tracing it (run as its user with "
                "/proc/sys/kernel/yama/ptrace_scope at 0, or as root; in a container: --cap-add SYS_PTRACE)"
            )
        if not self._gpus.names:
            why = self._gpus.missing or "NVML found none"
            missing.append(f"GPUs: {why}, so time in a step counts as compute, whatever the step does")
        return tuple(missing)


def _without_waiting_threads(state: ProcessState) -> ProcessState:
    """Remove the threads that wait: a recording of an hour must fit into memory."""
    main, *others = state.threads
    recorded: list[ThreadState] = [thread for thread in others if thread.call in _RECORDED_CALLS]
    return ProcessState(state.pid, (main, *recorded))


def _threads_of(moments: tuple[TimelineSample, ...]) -> set[Thread]:
    return {
        thread
        for moment in moments
        for thread in (moment.main, *moment.others, *(t for w in moment.workers for t in (w.main, *w.others)))
    }
