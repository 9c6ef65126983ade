"""Run calls that wait for the node, and end those whose caller was killed.

A call is not interrupted by a signal that its program survives, as on a local disk (docs/decisions/0025). So the
session refuses INTERRUPT, and the kernel reports no fatal signal to it. But the kernel keeps a killed process until
each of its calls is answered. A thread therefore checks the callers of calls that wait long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from signal import SIGCHLD, SIGCONT, SIGKILL, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH
from typing import NamedTuple

from headrace.base.cancel import Cancel
from headrace.base.fair_queue import FairPool
from headrace.base.proc_stat import stat_fields
from headrace.fuse.operations import Deferred

THREADS = 80
USER_THREADS_MAX = 64
"""Most threads for the calls of one user. Further calls of that user wait, and leave threads to other users."""
CHECK_INTERVAL_S = 0.25
"""Seconds between two checks of the callers. A call that is answered sooner costs no check."""
_EXITING = 4  # PF_EXITING, of the flags in proc(5)
_MASKS = (b"SigPnd", b"ShdPnd", b"SigBlk", b"SigIgn", b"SigCgt")


class Caller(NamedTuple):
    """Identifies who waits, as the request names it. `thread` is 0 where this process can't see the thread."""

    user: int
    thread: int


class WaitingCall:
    """Holds one call that waits. `work` is the rest of its work; `begun` tells that a thread does it."""

    __slots__ = ("begun", "caller", "cancel", "opcode", "since_s", "unique", "work")

    def __init__(self, opcode: int, unique: int, caller: Caller, work: Deferred) -> None:
        self.opcode = opcode
        self.unique = unique
        self.caller = caller
        self.work = work
        self.cancel = Cancel()
        self.since_s = time.monotonic()
        self.begun = False


class WaitingCalls:
    """Schedules waiting calls fairly among users. `run` does the work of a call and answers it. `disk` runs a call
    that is cancelled before it began; its work then waits for no node."""

    def __init__(self, run: Callable[[WaitingCall], None], disk: Executor) -> None:
        self._run = run
        self._disk = disk
        self._pool: FairPool[int] = FairPool(
            ThreadPoolExecutor(THREADS, thread_name_prefix="miss"), share=USER_THREADS_MAX
        )
        self._calls: dict[int, WaitingCall] = {}
        self._lock = threading.Lock()
        self._any = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="callers").start()

    def submit(self, call: WaitingCall) -> None:
        """Queue the call's work, the first or the rest of it."""
        with self._lock:
            self._calls[call.unique] = call
            call.begun = False
        self._pool.submit(call.caller.user, lambda: self._begin(call))
        if not self._any.is_set():
            self._any.set()

    def end(self, call: WaitingCall) -> None:
        """Forget a call that has its answer."""
        with self._lock:
            self._calls.pop(call.unique, None)
            call.cancel.close()

    def _begin(self, call: WaitingCall) -> None:
        if self._take(call):
            self._run(call)

    def _take(self, call: WaitingCall) -> bool:
        with self._lock:
            begun, call.begun = call.begun, True
        return not begun

    def _watch(self) -> None:
        while True:
            self._any.wait()
            time.sleep(CHECK_INTERVAL_S)
            with self._lock:
                calls = list(self._calls.values())
                if not calls:
                    self._any.clear()
            self._cancel_killed(calls)

    def _cancel_killed(self, calls: list[WaitingCall]) -> None:
        long_ago_s = time.monotonic() - CHECK_INTERVAL_S
        waiting = [call for call in calls if call.since_s < long_ago_s]
        killed = {caller for caller in {call.caller for call in waiting} if is_killed(caller.thread)}
        for call in waiting:
            if call.caller in killed:
                call.cancel.set()
                if self._take(call):  # all threads of the pool, or of the user, are busy
                    self._disk.submit(self._run, call)


def is_killed(thread: int) -> bool:
    """Return whether a thread ends before its program sees the result of the call it is in.

    False for a thread that this process can't see: one of a pid namespace beside the mount's is 0 in its requests.
    """
    try:
        with open(f"/proc/{thread}/status", "rb") as file:
            status = file.read()
    except OSError:
        return False
    fields = stat_fields(thread)
    return fields is not None and (_will_be_killed(status) or _dies_of_a_signal(fields))


def _will_be_killed(status: bytes) -> bool:
    fields = dict(line.split(b":", 1) for line in status.splitlines())
    own, shared, blocked, ignored, caught = (int(fields[mask], 16) for mask in _MASKS)
    fatal = ~(blocked | ignored | caught | _SURVIVED)
    if int(fields[b"TracerPid"]):
        fatal &= _bits(SIGKILL)  # its tracer may withhold the other signals from it
    return bool((own | shared) & fatal)


def _dies_of_a_signal(numbers: list[str]) -> bool:
    """Return whether a signal ends a thread; `numbers` are proc(5)'s `stat` from the third field on. It closes its
    files, and no program waits for the result of that FLUSH. A program that exits by itself does wait."""
    flags, exit_code = int(numbers[6]), int(numbers[49])
    return bool(flags & _EXITING and exit_code & 0x7F)


def _bits(*signals: int) -> int:
    return sum(1 << number - 1 for number in signals)


_SURVIVED = _bits(SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH)
"""Signals that end no program that has no handler for them."""
