"""Take Python stacks of running processes by py-spy, which reads their memory and does not stop them.

Each process has a py-spy of its own: py-spy's timelines merge threads of two processes which a fork left at the same
address. py-spy writes its output when it ends, so stacks are known only after the sampling.
"""

from __future__ import annotations

import bisect
import json
import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

from headrace.diagnose.recording import Frame
from headrace.diagnose.source_lines import SourceLines

ENDS_WITHIN_S = 10.0
TRIES = 4
"""Attempts per process, one for each scan of the process tree: its interpreter may not be ready yet."""
_THREAD = "thread ("


@dataclass(slots=True)
class Line:
    """Hold the stacks of one thread, and the times from which they were valid."""

    since_s: list[float] = field(default_factory=list)
    stacks: list[tuple[Frame, ...]] = field(default_factory=list)

    def at(self, at_s: float, period_s: float) -> tuple[Frame, ...]:
        """Return the stack nearest to that time; () before the first sample."""
        index = bisect.bisect_right(self.since_s, at_s + period_s / 2) - 1
        return self.stacks[index] if index >= 0 else ()


@dataclass(slots=True)
class _Spy:
    process: subprocess.Popen[bytes]
    output: str
    began_s: float


class StackSampler:
    """Run the py-spys: follow() while the job runs, stop() once. Times are time.monotonic()'s."""

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._folder = tempfile.mkdtemp(prefix="headrace-diagnose-")
        self._spies: dict[int, _Spy] = {}
        self._tries: dict[int, int] = {}
        self._program = find_py_spy()
        self.trouble: dict[int, str] = {}

    @property
    def available(self) -> bool:
        return self._program is not None

    def follow(self, pid: int) -> None:
        """Start with a process, or retry if py-spy failed: a new interpreter is not readable at once."""
        if self._program is None:
            return
        previous = self._spies.get(pid)
        if previous is not None and (previous.process.poll() in (None, 0) or self._tries[pid] >= TRIES):
            return
        self._tries[pid] = self._tries.get(pid, 0) + 1
        output = os.path.join(self._folder, f"{pid}-{self._tries[pid]}.json")
        with open(output + ".log", "wb") as log:
            began_s = time.monotonic()
            process = subprocess.Popen(
                [
                    *(
                        self._program,
                        "record",
                        "--pid",
                        str(pid),
                        "--format",
                        "chrometrace",
                        "--idle",
                        "--threads",
                    ),
                    *("--nonblocking", "--full-filenames", "--rate", str(self._rate_hz), "--output", output),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # ^C at the terminal must not reach it: stop() ends it
            )
        self._spies[pid] = _Spy(process, output, began_s)

    def stop(self) -> dict[tuple[int, int], Line]:
        """End all py-spys; return (process, kernel thread id) → its line."""
        line_by_thread: dict[tuple[int, int], Line] = {}
        try:
            for spy in self._spies.values():
                if spy.process.poll() is None:
                    spy.process.send_signal(signal.SIGINT)
            deadline_s = time.monotonic() + ENDS_WITHIN_S
            for pid, spy in self._spies.items():
                try:
                    spy.process.wait(max(0.1, deadline_s - time.monotonic()))
                except subprocess.TimeoutExpired:
                    spy.process.kill()
                    spy.process.wait()
                lines = self._read(pid, spy)
                line_by_thread |= {(pid, tid): line for tid, line in lines.items()}
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        return line_by_thread

    def _read(self, pid: int, spy: _Spy) -> dict[int, Line]:
        try:
            with open(spy.output, "rb") as file:
                events = json.load(file)
        except (OSError, ValueError):
            with open(spy.output + ".log", errors="replace") as file:
                self.trouble[pid] = _error_line(file.read())
            return {}
        return lines_of(events, spy.began_s)


def find_py_spy() -> str | None:
    """Return the path of py-spy, next to this Python or on the PATH; None without one."""
    beside = os.path.join(sysconfig.get_path("scripts"), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


def lines_of(events: list[dict[str, Any]], began_s: float) -> dict[int, Line]:
    """Convert py-spy's events of one process to lines, by kernel thread id.

    B pushes a frame on its thread's stack, E pops one. The name of the outermost frame has the kernel's thread id. The
    clock starts with py-spy, some milliseconds after the process was started.
    """
    lines: dict[int, Line] = {}
    building: dict[int, list[dict[str, Any]]] = {}
    changed: dict[int, int] = {}
    sources = SourceLines()
    for event in events:
        thread = int(event["tid"])
        if thread in changed and changed[thread] != event["ts"]:
            _add_sample(lines, building[thread], began_s + changed[thread] / 1e6, sources)
        changed[thread] = event["ts"]
        stack = building.setdefault(thread, [])
        if event["ph"] == "B":
            stack.append(event)
        elif stack:
            stack.pop()
    return lines


def _add_sample(
    lines: dict[int, Line], stack: list[dict[str, Any]], at_s: float, sources: SourceLines
) -> None:
    if not stack or not stack[0]["name"].startswith(_THREAD):
        return
    thread_id = stack[0]["name"][len(_THREAD) :].split(")", 1)[0]
    if not thread_id.isdigit():  # this interpreter does not report the kernel's id
        return
    frames = tuple(_frame(event) for event in stack[1:])
    if frames:
        last = frames[-1]
        text = sources.text(last.file, last.line)
        frames = (*frames[:-1], Frame(last.name, last.file, last.line, text))
    line = lines.setdefault(int(thread_id), Line())
    line.since_s.append(at_s)
    line.stacks.append(frames)


def _frame(event: dict[str, Any]) -> Frame:
    return Frame(event["name"], event["args"]["filename"], event["args"].get("line") or 0)


def _error_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line or "ermission" in line] or lines
    return errors[0][:200] if errors else "py-spy failed without a message"
