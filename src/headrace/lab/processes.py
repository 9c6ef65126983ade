"""Processes that outlive who started them, and finding them again later.

Every process of a node has the node's run folder in its environment, whoever started it: that is what is asked
before any signal, so that a pid which has gone to somebody else is never hit.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from headrace.base.errors import DeadlineExceededError, HeadraceError

MARK = "HEADRACE_RUN_FOLDER"
EXEC_LOOKS = 50
_PF_KTHREAD = 0x200000
"""proc(5), field 9 of stat; linux/sched.h."""


def spawn(argv: Sequence[str], folder: str, *, name: str, environment: Mapping[str, str]) -> int:
    """Its pid. It runs on after us, in a session of its own, marked by `folder`; output goes to folder/NAME.log.

    HeadraceError when the program can't be run.
    """
    os.makedirs(folder, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log = os.open(log_of(folder, name), flags, 0o600)
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, **environment, MARK: folder},
            start_new_session=True,
        )
    except OSError as error:
        raise HeadraceError(f"{argv[0]} does not run", why=error.strerror or str(error)) from error
    finally:
        os.close(log)
    process.returncode = 0  # it is not waited for: quiet at our end
    return process.pid


def log_of(folder: str, name: str) -> str:
    return os.path.join(folder, f"{name}.log")


def last_words(folder: str, name: str) -> str:
    """The last line that it said."""
    try:
        with open(log_of(folder, name), "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 2000))
            lines = log.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return "no log"
    return lines[-1] if lines else "it said nothing"


def marked(folder: str) -> dict[int, str]:
    """Living processes with that run folder: pid → command line."""
    mark = f"{MARK}={folder}".encode()
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and _has(int(name), mark):
            found[int(name)] = _command(int(name))
    return found


def send(folder: str, number: signal.Signals, *, among: Callable[[str], bool] | None = None) -> list[int]:
    """To all processes of the folder, or those whose command line `among` takes; whom it reached."""
    mark = f"{MARK}={folder}".encode()
    reached = []
    for pid, command in marked(folder).items():
        if among is not None and not among(command):
            continue
        try:
            held = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            if _has(pid, mark):  # held: the number can't change hands between this look and the signal
                signal.pidfd_send_signal(held, number)
                reached.append(pid)
        except ProcessLookupError:
            pass
        finally:
            os.close(held)
    return reached


def stopped(pid: int) -> bool:
    """Whether it stands still: SIGSTOP ends the kill call at once, and each thread of the process a little later."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return all(_state(f"/proc/{pid}/task/{thread}/stat") in (b"T", b"Z", b"X") for thread in threads)


def end(folder: str, *, patience_s: float) -> None:
    """SIGTERM to all of the folder's, SIGKILL to those left after patience_s. Blocks until they are gone."""
    send(folder, signal.SIGCONT)
    send(folder, signal.SIGTERM)
    if not _gone(folder, patience_s):
        kill(folder)


def kill(folder: str) -> None:
    """SIGKILL to all of the folder's; they are gone on return. DeadlineExceededError after 20 s."""
    until_s = time.monotonic() + 20
    while send(folder, signal.SIGKILL):  # again: one may have had a child meanwhile
        if time.monotonic() > until_s:
            raise DeadlineExceededError(f"processes of {folder} do not end")
        _gone(folder, 1)


def _gone(folder: str, within_s: float) -> bool:
    until_s = time.monotonic() + within_s
    while left := marked(folder):
        if time.monotonic() > until_s:
            return False
        _wait_for_end(next(iter(left)), 0.2)
    return True


def _wait_for_end(pid: int, within_s: float) -> None:
    try:
        held = os.pidfd_open(pid)
    except OSError:
        return
    try:
        select.select([held], [], [], within_s)
        _reap(pid)
    finally:
        os.close(held)


def _reap(pid: int) -> None:
    """Where it is our own child it stays a zombie until somebody waits for it."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass


def wait_until(ready: Callable[[], bool], folder: str, *, name: str, within_s: float) -> None:
    """HeadraceError with its last words when it has ended or time is up."""
    until_s = time.monotonic() + within_s
    while not ready():
        dead = not marked(folder)
        if dead or time.monotonic() > until_s:
            why = last_words(folder, name)
            state = "ended before it was ready" if dead else f"was not ready in {within_s:.0f} s"
            raise HeadraceError(f"{name} {state}", why=why, hint=f"see {log_of(folder, name)}")
        time.sleep(0.03)  # between two questions, not instead of one


def _has(pid: int, mark: bytes) -> bool:
    """A zombie has no environment any more, so it is nobody's."""
    for _ in range(EXEC_LOOKS):
        try:
            with open(f"/proc/{pid}/environ", "rb") as source:
                words = source.read()
        except OSError:
            return False
        if words or not _is_in_exec(pid):
            return mark in words.split(b"\0")
        time.sleep(0.001)
    return False


def _is_in_exec(pid: int) -> bool:
    """No environment although it is neither a zombie nor the kernel's own: the new program's is not there yet."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as source:
            fields = source.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return fields[0] not in (b"Z", b"X") and not int(fields[6]) & _PF_KTHREAD


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as source:
            return source.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _state(stat: str) -> bytes:
    """Of a process or thread, a letter of proc(5); X: it is gone."""
    try:
        with open(stat, "rb") as source:
            return source.read().rpartition(b")")[2].split()[0]
    except OSError:
        return b"X"
