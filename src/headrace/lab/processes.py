"""Start processes that outlive their parent, and find them again later.

Every process of a node has the node's run directory in its environment, whoever started it. That is checked before
any signal, so a recycled pid is never hit.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from headrace.base.errors import DeadlineExceededError, HeadraceError
from headrace.base.proc_stat import ENDED, stat_fields, state_of

MARK = "HEADRACE_RUN_FOLDER"
EXEC_WAIT_S = 1.0
"""Longest wait for the environment of a process that is executing a new program. It may wait for its disk, or for a
core."""
LINE_PREFIX = "headrace: "
"""Begins the line of an error of the command line."""
_PF_KTHREAD = 0x200000
"""proc(5), field 9 of stat; linux/sched.h."""


class NotReadyError(HeadraceError):
    """A process of a lab ended before it was ready, or was not ready in time. status: its exit status; None if it is
    unknown. last_line: of its log."""

    def __init__(self, subject: str, last_line: str, *, hint: str, status: int | None) -> None:
        super().__init__(subject, why=last_line.removeprefix(LINE_PREFIX), hint=hint)
        self.status = status
        self._is_own_line = last_line.startswith(LINE_PREFIX)

    def of_node(self, number: int) -> NotReadyError:
        """Return the error as that of a node, which names its own error in the last line of its log."""
        subject = f"node {number} can't start" if self._is_own_line else f"node {number}: {self.what}"
        return NotReadyError(subject, self._last_line, hint=self.hint, status=self.status)

    def without_log(self) -> NotReadyError:
        """Return the error of a process whose log is removed."""
        return NotReadyError(self.what, self._last_line, hint="", status=self.status)

    @property
    def _last_line(self) -> str:
        return f"{LINE_PREFIX if self._is_own_line else ''}{self.why}"


def spawn(argv: Sequence[str], directory: str, *, name: str, environment: Mapping[str, str]) -> int:
    """Start a process and return its pid. It continues after this process, in a session of its own, marked by
    `directory`; its output goes to directory/NAME.log. Raise HeadraceError if the program can't be run."""
    os.makedirs(directory, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log = os.open(log_of(directory, name), flags, 0o600)
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            env={**os.environ, **environment, MARK: directory},
            start_new_session=True,
        )
    except OSError as error:
        raise HeadraceError(f"{argv[0]} can't be started", why=error.strerror or str(error)) from error
    finally:
        os.close(log)
    process.returncode = 0  # nobody waits for it: suppresses a warning when this process ends
    return process.pid


def log_of(directory: str, name: str) -> str:
    return os.path.join(directory, f"{name}.log")


def last_log_line(directory: str, name: str) -> str:
    """Return the last line of a process's log."""
    try:
        with open(log_of(directory, name), "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 2000))
            lines = log.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return "no log"
    return lines[-1] if lines else "the log is empty"


def marked(directory: str) -> dict[int, str]:
    """Return the living processes with that run directory: pid → command line."""
    mark = f"{MARK}={directory}".encode()
    commands = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and _has(int(name), mark):
            commands[int(name)] = _command(int(name))
    return commands


def send(directory: str, number: signal.Signals, *, among: Callable[[str], bool] | None = None) -> list[int]:
    """Send a signal to all processes of the directory, or those whose command line `among` accepts. Return the pids
    reached."""
    mark = f"{MARK}={directory}".encode()
    reached = []
    for pid, command in marked(directory).items():
        if among is not None and not among(command):
            continue
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            if _has(pid, mark):  # the pidfd names this process even if the pid is reused now
                signal.pidfd_send_signal(pidfd, number)
                reached.append(pid)
        except ProcessLookupError:
            pass
        finally:
            os.close(pidfd)
    return reached


def stopped(pid: int) -> bool:
    """Return whether a process is stopped. The kill call returns at once after SIGSTOP, and each thread stops a
    little later."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return all(state_of(f"{pid}/task/{thread}") in ("T", "", *ENDED) for thread in threads)


def end(directory: str, *, patience_s: float) -> None:
    """Send SIGTERM to all processes of the directory, then SIGKILL to those left after patience_s. Blocks until they
    have ended."""
    send(directory, signal.SIGCONT)
    send(directory, signal.SIGTERM)
    if not _wait_for_all(directory, patience_s):
        kill(directory)


def kill(directory: str) -> None:
    """Send SIGKILL to all processes of the directory, and wait for their end. Raise DeadlineExceededError after 20
    s."""
    until_s = time.monotonic() + 20
    while send(directory, signal.SIGKILL):  # repeated, because one may have started a child meanwhile
        if time.monotonic() > until_s:
            raise DeadlineExceededError(
                f"processes of {directory} do not end", why="they are alive 20 s after SIGKILL"
            )
        _wait_for_all(directory, 1)


def _wait_for_all(directory: str, within_s: float) -> bool:
    until_s = time.monotonic() + within_s
    while left := marked(directory):
        if time.monotonic() > until_s:
            return False
        _wait_for_end(next(iter(left)), 0.2)
    return True


def _wait_for_end(pid: int, within_s: float) -> None:
    """Wait for the end of a process, and reap it."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        watched = select.poll()  # not select.select: a program may have descriptors above 1023
        watched.register(pidfd, select.POLLIN)
        watched.poll(within_s * 1000)
        _reap(pid)
    finally:
        os.close(pidfd)


def _reap(pid: int) -> int | None:
    """Reap the process if it is a child of this one: it stays a zombie until then. Return its exit status; None if it
    is unknown."""
    try:
        reaped, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if reaped else None


def wait_until(ready: Callable[[], bool], pid: int, directory: str, *, name: str, within_s: float) -> None:
    """Poll `ready` until it returns true. Raise NotReadyError with the last log line if the process ended or time is
    up. pid: as `spawn` returned it."""
    until_s = time.monotonic() + within_s
    while not ready():
        has_ended = state_of(pid) in ("", *ENDED)
        if has_ended or time.monotonic() > until_s:
            state = "ended before it was ready" if has_ended else f"was not ready in {within_s:.0f} s"
            raise NotReadyError(
                f"{name} {state}",
                last_log_line(directory, name),
                hint=f"see {log_of(directory, name)}",
                status=_reap(pid) if has_ended else None,
            )
        time.sleep(0.03)  # the pause between two polls


def _has(pid: int, mark: bytes) -> bool:
    """Return whether a process carries the mark. A zombie has no environment any more, so it carries none."""
    until_s = time.monotonic() + EXEC_WAIT_S
    while True:
        words = _environment(pid)
        if words is None:
            return False
        if words or not _is_in_exec(pid) or time.monotonic() > until_s:
            return mark in words.split(b"\0")
        time.sleep(0.001)


def _environment(pid: int) -> bytes | None:
    """Return the environment that a process began with; None if it has ended, or if only its owner may read it."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as source:
            return source.read()
    except OSError:
        return None


def _is_in_exec(pid: int) -> bool:
    """Return whether a process whose environment was empty was just executing a new program. The kernel sets the
    addresses of the environment last. They are equal, and not 0, if the program really has none."""
    fields = stat_fields(pid)
    if fields is None or fields[0] in ENDED or int(fields[6]) & _PF_KTHREAD:
        return False
    start, end = fields[47:49]
    return start == "0" or start != end


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as source:
            return source.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
