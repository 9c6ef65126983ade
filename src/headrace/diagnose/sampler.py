"""Looks at a running job many times a second, from outside, and makes a recording of it.

One thread, the caller's. Each look reads the states of the job's processes from /proc; Python stacks are py-spy's and
are laid beside them in the end. Nothing of the job is stopped, and nothing in it is changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.diagnose import kernel
from headrace.diagnose.frames import asks_headrace, is_worker
from headrace.diagnose.gpus import GpuWatch
from headrace.diagnose.kernel import JobProcess, ProcessState, ThreadState
from headrace.diagnose.marks import MarksReader
from headrace.diagnose.places import PlaceWatch, StatusOf, link_bytes_s
from headrace.diagnose.recording import KernelCall, Recording, Thread, TimelineSample, Worker
from headrace.diagnose.stacks import Line, StackSampler

RATE_HZ = 10
TREE_EVERY_S = 0.2
NAME_MAX = 200
"""Letters of a command on the time line."""
SPIED_WORKERS_MAX = 8
"""Of a trainer's workers, whose stacks are taken: they do the same work, and each costs a py-spy."""
_TOLD = (KernelCall.RUN, KernelCall.READ, KernelCall.OPEN, KernelCall.WRITE, KernelCall.FAULT)


@dataclass(slots=True)
class _Look:
    at_s: float
    states: dict[int, ProcessState]
    marked: dict[int, bool]
    gpu_busy: float | None


class Sampler:
    """run() once, then recording() once."""

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
        self._looks: list[_Look] = []
        self._alive: list[int] = []
        self._kept: dict[ProcessState, ProcessState] = {}  # most looks find what an earlier one found
        self._began_s = time.monotonic()
        self._tree_at_s = float("-inf")

    def run(self, ended: Callable[[], bool], limit_s: float | None) -> None:
        """Until the job's first process has gone, ended() says so, or time is up. KeyboardInterrupt passes through;
        what was seen so far is kept."""
        next_s = time.monotonic()
        while not ended():
            now_s = time.monotonic()
            if limit_s is not None and now_s - self._began_s >= limit_s:
                return
            if now_s - self._tree_at_s >= TREE_EVERY_S:
                self._tree_at_s = now_s
                if not self._follow():
                    return
            self._look(time.monotonic())
            next_s = max(next_s + self._period_s, time.monotonic() + self._period_s / 4)
            time.sleep(next_s - time.monotonic() if next_s > time.monotonic() else 0)

    def recording(self) -> Recording:
        """Ends what the sampling started; some seconds of work after a long one."""
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
        return Recording(
            moments=moments,
            cores=len(os.sched_getaffinity(0)),
            ended=kernel.state_of(self._root, all_threads=False) is None,
            places=self._places.seen(
                {one.path for one in threads if one.path.startswith("/")},
                wall_s,
                by_library=any(asks_headrace(one.stack) for one in threads),
            ),
            link_bytes_s=link_bytes_s(),
            bytes_read=sum(last - first for first, last in self._bytes_read.values()),
            steps=sum(one.steps for one in marks) - sum(steps for steps, _ in before) if marks else None,
            samples=sum(one.samples for one in marks) - sum(count for _, count in before) if marks else None,
            loader=next((one.loader for one in marks if one.loader), None),
            gpus=self._gpus.names,
            missing=self._missing(trainers, lines),
            names=self._names(workers),
        )

    # ------------------------------------------------------------ while it runs

    def _follow(self) -> bool:
        """Learns of new processes; False when the first one has gone."""
        found = kernel.tree(self._root)
        spied = 0
        self._alive = [one.pid for one in found if one.python]
        for one in found:
            known = self._processes.get(one.pid)
            self._processes[one.pid] = one
            if known is None and not kernel.may_trace(one.pid):
                self._untraceable.add(one.pid)
            spied += one.loads
            if one.python and (not one.loads or (known is not None and spied <= SPIED_WORKERS_MAX)):
                self._stacks.follow(one.pid)  # a worker at its second sight: some live for a moment only
            if not one.loads and one.pid not in self._marks:
                reader = MarksReader.find(one.pid)
                if reader is not None:
                    self._marks[one.pid] = reader
                    self._marked_before[one.pid] = reader.read().steps, reader.read().samples
            read = kernel.bytes_read(one.pid)
            self._bytes_read.setdefault(one.pid, [read, read])[1] = read
        return bool(found)

    def _look(self, now_s: float) -> None:
        states = {}
        for pid in self._alive:
            state = kernel.state_of(pid, all_threads=True)
            if state is not None:
                told = _told(state)
                states[pid] = self._kept.setdefault(told, told)
        marked = {pid: reader.read().in_step for pid, reader in self._marks.items() if pid in states}
        self._looks.append(_Look(now_s, states, marked, self._gpus.busy(now_s, states)))

    # ------------------------------------------------------------ afterwards

    def _workers(self, lines: dict[tuple[int, int], Line]) -> dict[int, int]:
        """Processes of loaders → their trainer: by the name that torch gives them, or by a stack of theirs."""
        found = {}
        for pid, process in self._processes.items():
            line = lines.get((pid, pid))
            if process.loads or (line is not None and any(is_worker(stack) for stack in line.stacks)):
                found[pid] = process.parent
        return found

    def _trainers(self, workers: dict[int, int]) -> list[int]:
        """Those that have workers. Where none has, those that have no Python below them: what starts ranks waits."""
        parents = {parent for parent in workers.values() if parent in self._processes}
        if parents:
            return sorted(parents)
        python = {
            pid
            for pid, one in self._processes.items()
            if one.python and "resource_tracker" not in one.command
        }
        inner = {self._processes[pid].parent for pid in python}
        return sorted(python - inner) or sorted(python)

    def _moments(
        self, trainer: int, workers: dict[int, int], lines: dict[tuple[int, int], Line]
    ) -> list[TimelineSample]:
        own = [pid for pid, parent in workers.items() if parent == trainer]
        looks = [one for one in self._looks if trainer in one.states]
        moments = []
        for look, following in zip(looks, [*looks[1:], None], strict=True):
            span_s = self._period_s if following is None else following.at_s - look.at_s
            state = look.states[trainer]
            threads = self._threads(state, look.at_s, lines)
            moments.append(
                TimelineSample(
                    at_s=look.at_s - self._began_s,
                    span_s=span_s,
                    main=threads[0],
                    workers=tuple(
                        self._worker(look.states[pid], look.at_s, lines) for pid in own if pid in look.states
                    ),
                    others=tuple(threads[1:]),
                    running=sum(one.call is KernelCall.RUN for one in state.threads),
                    marked=look.marked.get(trainer),
                    trainer=trainer,
                    gpu_busy=look.gpu_busy,
                )
            )
        return moments

    def _worker(self, state: ProcessState, at_s: float, lines: dict[tuple[int, int], Line]) -> Worker:
        main, *others = self._threads(state, at_s, lines)
        return Worker(state.pid, main, tuple(others))

    def _threads(self, state: ProcessState, at_s: float, lines: dict[tuple[int, int], Line]) -> list[Thread]:
        found = []
        for one in state.threads:
            line = lines.get((state.pid, one.tid))
            stack = line.at(at_s, self._period_s) if line is not None else ()
            found.append(Thread(one.call, stack, one.path))
        return found

    def _names(self, workers: dict[int, int]) -> dict[int, str]:
        return {
            pid: f"loader worker {pid}" if pid in workers else one.command[:NAME_MAX]
            for pid, one in self._processes.items()
        }

    def _missing(self, trainers: list[int], lines: dict[tuple[int, int], Line]) -> tuple[str, ...]:
        said = []
        if not trainers:
            said.append("no Python process was seen")
        elif not self._stacks.available:
            said.append("Python stacks: py-spy is missing (pip install 'headrace[diagnose]')")
        elif not any(pid == tid and pid in trainers for pid, tid in lines):
            why = next(
                (self._stacks.trouble[pid] for pid in trainers if pid in self._stacks.trouble), "none came"
            )
            said.append(f"Python stacks of the trainer: {why}")
        if self._untraceable & set(self._processes):
            said.append(
                "system calls and files of the job: it may not be traced (be its user with "
                "/proc/sys/kernel/yama/ptrace_scope at 0, or root; in a container: --cap-add SYS_PTRACE)"
            )
        if not self._gpus.names:
            why = self._gpus.missing or "NVML knows none"
            said.append(f"GPUs: {why}, so time in a step counts as compute, whatever the step does")
        return tuple(said)


def _told(state: ProcessState) -> ProcessState:
    """Without the threads that wait: a recording of an hour must fit into memory."""
    main, *others = state.threads
    kept: list[ThreadState] = [one for one in others if one.call in _TOLD]
    return ProcessState(state.pid, (main, *kept))


def _threads_of(moments: tuple[TimelineSample, ...]) -> set[Thread]:
    return {
        thread
        for one in moments
        for thread in (one.main, *one.others, *(t for w in one.workers for t in (w.main, *w.others)))
    }
