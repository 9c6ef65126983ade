"""Read the state of processes and their threads from /proc: states, system calls and the files of those calls.

Reading another process's `syscall`, `fd` and `mem` needs the permission to trace it (the same user, and ptrace_scope 0
or CAP_SYS_PTRACE). Without it a sleeping thread is KernelCall.UNKNOWN. Sources: proc(5), and the tables of system calls
in the kernel's arch/x86/entry/syscalls and include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

from headrace.base.proc_stat import ENDED, stat_fields
from headrace.diagnose.recording import KernelCall

THREADS_MAX = 64
"""Threads of a process that are read, the oldest first; trainers on large machines have hundreds that only compute."""
CALLS_MAX = 24
"""Threads of these whose system call is read."""
_WORKER_NAME = b"pt_data_worker"

_X86: dict[KernelCall, tuple[int, ...]] = {
    KernelCall.READ: (0, 17, 19, 295, 327, 40, 326, 275),
    KernelCall.OPEN: (2, 3, 4, 5, 6, 21, 78, 89, 217, 257, 262, 267, 269, 332, 437, 439),
    KernelCall.WRITE: (1, 18, 20, 74, 75, 77, 82, 83, 87, 263, 264, 277, 285, 296, 306, 316, 328),
    KernelCall.SOCKET: (42, 43, 44, 45, 46, 47, 288, 299, 307),
    KernelCall.WAIT: (7, 23, 61, 232, 270, 271, 281, 247, 441),
    KernelCall.LOCK: (202, 449, 454, 455, 456),
    KernelCall.SLEEP: (35, 230),
}
_GENERIC: dict[KernelCall, tuple[int, ...]] = {
    KernelCall.READ: (63, 65, 67, 69, 71, 76, 285, 286),
    KernelCall.OPEN: (17, 48, 56, 57, 61, 78, 79, 80, 291, 437, 439),
    KernelCall.WRITE: (34, 35, 38, 46, 47, 64, 66, 68, 70, 81, 82, 83, 84, 276, 287),
    KernelCall.SOCKET: (202, 203, 206, 207, 211, 212, 242, 243, 269),
    KernelCall.WAIT: (20, 21, 22, 72, 73, 95, 260, 441),
    KernelCall.LOCK: (98, 449, 454, 455, 456),
    KernelCall.SLEEP: (101, 115),
}
_TABLE = _X86 if platform.machine() in ("x86_64", "AMD64") else _GENERIC
_CALL = {number: call for call, numbers in _TABLE.items() for number in numbers}
_ON_DESCRIPTOR = frozenset(
    (0, 1, 3, 5, 17, 18, 19, 20, 74, 75, 77, 78, 217, 285, 295, 296, 327, 328)
    if _TABLE is _X86
    else (46, 47, 57, 61, 63, 64, 65, 66, 67, 68, 69, 70, 80, 82, 83, 286, 287)
)
"""Calls whose first argument is the descriptor of their file."""
_PATH_FIRST = frozenset((2, 4, 6, 21, 82, 83, 87, 89) if _TABLE is _X86 else ())
_PATH_SECOND = frozenset(
    (257, 262, 267, 269, 332, 437, 439) if _TABLE is _X86 else (48, 56, 78, 79, 291, 437, 439)
)
_PATH_BYTES_MAX = 512


@dataclass(frozen=True, slots=True)
class ThreadState:
    tid: int
    call: KernelCall
    path: str = ""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Hold the threads of a process, the main thread first."""

    pid: int
    threads: tuple[ThreadState, ...]


@dataclass(frozen=True, slots=True)
class JobProcess:
    """Describe a process of the job."""

    pid: int
    parent: int
    command: str
    is_loader_worker: bool
    """Its main thread has the name that torch gives to workers."""
    is_python: bool


def tree(root: int) -> list[JobProcess]:
    """Return the process and all its descendants, parents first. Processes that end meanwhile may be missing."""
    processes: list[JobProcess] = []
    pending = [(root, 0)]
    while pending:
        pid, parent = pending.pop(0)
        process = _read_process(pid, parent)
        if process is None:
            continue
        processes.append(process)
        pending += [(child, pid) for child in _children(pid)]
    return processes


def state_of(pid: int, *, all_threads: bool) -> ProcessState | None:
    """Return the threads of a process; None if it has ended."""
    fields = stat_fields(pid)
    if fields is None or fields[0] in ENDED:
        return None
    threads = [_thread(pid, pid, fields[0])]
    if all_threads and int(fields[17]) > 1:
        threads += _other_threads(pid)
    return ProcessState(pid, tuple(threads))


def may_trace(pid: int) -> bool:
    """Return whether this process may read the other's system calls."""
    try:
        with open(f"/proc/{pid}/syscall", "rb") as file:
            file.read()
    except OSError:
        return False
    return True


def bytes_read(pid: int) -> int:
    """Return the bytes of its read calls, including sockets and pipes; 0 if they are not readable."""
    try:
        with open(f"/proc/{pid}/io") as file:
            return int(file.readline().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _other_threads(pid: int) -> list[ThreadState]:
    try:
        tids = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid)
    except OSError:
        return []
    threads = []
    for number, tid in enumerate(tids[:THREADS_MAX]):
        fields = stat_fields(f"{pid}/task/{tid}")
        if fields is not None:
            threads.append(_thread(pid, tid, fields[0], with_call=number < CALLS_MAX))
    return threads


def _thread(pid: int, tid: int, state: str, *, with_call: bool = True) -> ThreadState:
    if state == "R":
        return ThreadState(tid, KernelCall.RUN)
    if not with_call:
        return ThreadState(tid, KernelCall.UNKNOWN)
    try:
        with open(f"/proc/{pid}/task/{tid}/syscall", "rb") as file:
            fields = file.read().split()
    except OSError:
        return ThreadState(tid, KernelCall.UNKNOWN)
    if not fields or fields[0] == b"running":
        return ThreadState(tid, KernelCall.RUN)
    number = int(fields[0])
    if number == -1:  # asleep, but not in a call: it waits for a page
        return ThreadState(tid, KernelCall.FAULT)
    call = _CALL.get(number, KernelCall.OTHER)
    path = _path(pid, number, fields)
    if path.startswith(("pipe:", "anon_inode:")):
        return ThreadState(tid, KernelCall.WAIT)
    if path.startswith("socket:"):
        return ThreadState(tid, KernelCall.SOCKET)
    return ThreadState(tid, call, path)


def _path(pid: int, number: int, fields: list[bytes]) -> str:
    """Return the file of a call: the descriptor's, or a path argument."""
    try:
        if number in _ON_DESCRIPTOR:
            return os.readlink(f"/proc/{pid}/fd/{int(fields[1], 16)}")
        if number in _PATH_FIRST:
            return _text_at(pid, int(fields[1], 16))
        if number in _PATH_SECOND:
            name = _text_at(pid, int(fields[2], 16))
            descriptor = int(fields[1], 16) & 0xFFFFFFFF
            if name.startswith("/"):
                return name
            directory = "cwd" if descriptor == 0xFFFFFF9C else f"fd/{descriptor}"  # AT_FDCWD is -100
            return os.path.join(os.readlink(f"/proc/{pid}/{directory}"), name).rstrip("/")
    except (OSError, ValueError, IndexError):
        pass
    return ""


def _text_at(pid: int, address: int) -> str:
    """Return the string at an address; if it continues on an unmapped page, the kernel returns the part before."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return os.fsdecode(os.pread(memory.fileno(), _PATH_BYTES_MAX, address).split(b"\0", 1)[0])


def _children(pid: int) -> list[int]:
    pids: list[int] = []
    try:
        for tid in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{tid}/children") as file:
                pids += map(int, file.read().split())
    except OSError:
        pass
    return pids


def _read_process(pid: int, parent: int) -> JobProcess | None:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            name = file.read().strip()
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
        program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return None
    return JobProcess(pid, parent, command, name.startswith(_WORKER_NAME), program.startswith("python"))
