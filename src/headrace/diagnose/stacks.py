"""Python stacks of running processes, by py-spy, which reads their memory and does not stop them.

One py-spy a process, since its time lines take threads of two processes for one where a fork left them the same
address. It writes what it saw when it is told to end, so stacks are known after the sampling.
"""

from __future__ import annotations

import bisect
import json
import linecache
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

ENDS_WITHIN_S = 10.0
TRIES = 4
"""Of a process whose interpreter may not be ready yet, as often as the tree is looked at."""
_THREAD = "thread ("


@dataclass(slots=True)
class Line:
    """What one thread's stack was, since when."""

    since_s: list[float] = field(default_factory=list)
    stacks: list[tuple[Frame, ...]] = field(default_factory=list)

    def at(self, at_s: float, period_s: float) -> tuple[Frame, ...]:
        """The sample nearest to that time; () before the first one."""
        place = bisect.bisect_right(self.since_s, at_s + period_s / 2) - 1
        return self.stacks[place] if place >= 0 else ()


@dataclass(slots=True)
class _Spy:
    process: subprocess.Popen[bytes]
    output: str
    began_s: float


class StackSampler:
    """follow() while the job runs, stop() once. Times are time.monotonic()'s."""

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
        """Begins with a process, or again when py-spy could not yet: an interpreter needs a moment to be one."""
        if self._program is None:
            return
        before = self._spies.get(pid)
        if before is not None and (before.process.poll() in (None, 0) or self._tries[pid] >= TRIES):
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
                start_new_session=True,  # ^C at the terminal is for us, who then end it
            )
        self._spies[pid] = _Spy(process, output, began_s)

    def stop(self) -> dict[tuple[int, int], Line]:
        """Ends all; (process, thread as the kernel numbers it) → its line."""
        found: dict[tuple[int, int], Line] = {}
        try:
            for spy in self._spies.values():
                if spy.process.poll() is None:
                    spy.process.send_signal(signal.SIGINT)
            give_up_s = time.monotonic() + ENDS_WITHIN_S
            for pid, spy in self._spies.items():
                try:
                    spy.process.wait(max(0.1, give_up_s - time.monotonic()))
                except subprocess.TimeoutExpired:
                    spy.process.kill()
                    spy.process.wait()
                lines = self._read(pid, spy)
                found |= {(pid, tid): line for tid, line in lines.items()}
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        return found

    def _read(self, pid: int, spy: _Spy) -> dict[int, Line]:
        try:
            with open(spy.output, "rb") as file:
                events = json.load(file)
        except (OSError, ValueError):
            with open(spy.output + ".log", errors="replace") as file:
                self.trouble[pid] = _last_words(file.read())
            return {}
        return lines_of(events, spy.began_s)


def find_py_spy() -> str | None:
    """Beside this Python, or on the PATH."""
    beside = os.path.join(sysconfig.get_path("scripts"), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


def lines_of(events: list[dict[str, Any]], began_s: float) -> dict[int, Line]:
    """py-spy's events of one process: B puts a frame on its thread's stack, E takes one away; the outermost frame names
    the thread as the kernel numbers it. Its clock begins with it, some milliseconds after it was started."""
    lines: dict[int, Line] = {}
    building: dict[int, list[dict[str, Any]]] = {}
    changed: dict[int, int] = {}
    for event in events:
        thread = int(event["tid"])
        if thread in changed and changed[thread] != event["ts"]:
            _note(lines, building[thread], began_s + changed[thread] / 1e6)
        changed[thread] = event["ts"]
        stack = building.setdefault(thread, [])
        if event["ph"] == "B":
            stack.append(event)
        elif stack:
            stack.pop()
    return lines


def _note(lines: dict[int, Line], stack: list[dict[str, Any]], at_s: float) -> None:
    if not stack or not stack[0]["name"].startswith(_THREAD):
        return
    word = stack[0]["name"][len(_THREAD) :].split(")", 1)[0]
    if not word.isdigit():  # an interpreter that doesn't tell the kernel's number
        return
    frames = tuple(_frame(event) for event in stack[1:])
    if frames:
        last = frames[-1]
        text = linecache.getline(last.file, last.line).strip()
        frames = (*frames[:-1], Frame(last.name, last.file, last.line, text))
    line = lines.setdefault(int(word), Line())
    line.since_s.append(at_s)
    line.stacks.append(frames)


def _frame(event: dict[str, Any]) -> Frame:
    return Frame(event["name"], event["args"]["filename"], event["args"].get("line") or 0)


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if "rror" in line or "ermission" in line] or lines
    return said[0][:200] if said else "py-spy said nothing"
