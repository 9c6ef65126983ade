"""Start the processes of Headrace as forks of a process that has imported its modules already.

The imports take most of the processor time of a command (0.1 s) and of a node (0.2 s), and the suite starts thousands
of both. A fork is a process of its own: a real child of the one that starts it, with its own arguments, environment,
directory, umask, session and descriptors, also as /proc shows them. `nsenter --net` before a command applies to the
fork, and so does a function of Headrace before exec (functools.partial). Scripts and `-c` programs run in forks, too.
What a fork can't imitate is executed as usual: other programs, other settings of Python. So are all processes where
this one is not root.

Programs that use torch are forks of a second server, which has imported torch, too (`run_with_torch`). They compute
with one thread. A program below the plan hook imports torch's loaders again, so that the hook patches them.

`up` starts a node, an FD store and gateways, and the FD store starts sessions. These are forks, too, of a twin that
`up` or the FD store forks before it runs anything: they have no state of it. Tests of the entry points, of the packages
and of the security of starts don't use this module.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import importlib.util
import io
import json
import os
import pickle
import platform
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, AnyStr, cast

from headrace.base.interpreter import module_command

MODULES = {
    "headrace": "headrace.__main__",
    "headrace.node": "headrace.node.__main__",
    "headrace.fuse.fd_store": "headrace.fuse.fd_store",
    "headrace.fuse.session_main": "headrace.fuse.session_main",
    "headrace.rest.main": "headrace.rest.main",
    "headrace.s3.main": "headrace.s3.main",
    "headrace.webhdfs.main": "headrace.webhdfs.main",
}
"""What is forked: the name on the command line, and the module that is run by it."""

STARTERS = ("up", "mount", "bench")
"""Commands that start further processes; so do FD stores."""

TORCH = "torch"
"""The server that has imported torch, by the word on its command line. The other one has none."""

WITH_TORCH = (
    "numpy",
    "torch.utils.data",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "safetensors.torch",
    "headrace.integrations.torch_data",
    "headrace.integrations.torch_checkpoint",
    "headrace.integrations.safetensors",
    "accelerate",
    "torchdata.stateful_dataloader",
    "torch._dynamo",  # torch's optimizers import it when they are made
)
"""What programs that use torch import, where it is installed."""

WITH_LOADERS = (
    "torch.utils.data",
    "accelerate",
    "torchdata",
    "headrace.integrations.torch_data",
    "headrace.sdk.watched_loader",
)
"""Packages that have torch's loaders, or derive from them. A program below the plan hook imports them again."""

FIRST = "first-in-forks"
"""The name of a directory of PYTHONPATH whose sitecustomize.py forks run, too, before the module of their command."""

_PROGRAM_SETTINGS = ("PYTHON", "LC_", "LANG", "LD_", "TZ")
"""Variables that a process reads when it starts, or when it imports its modules."""

_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_SYS_SET_ROBUST_LIST = {"x86_64": 273, "aarch64": 99}
_SYS_GET_ROBUST_LIST = {"x86_64": 274, "aarch64": 100}
_CLONE_PARENT, _CLONE_CHILD_SETTID = 0x8000, 0x01000000
_PR_SET_MM, _SET_MM_MAP = 35, 14
_MADV_COLLAPSE, _HUGE_PAGE_BYTES = 25, 1 << 21
_AREA = "HEADRACE_TESTS_AREA"
_AREA_BYTES = 100_000
"""Arguments and environment of a fork lie where those of the server lay, so the server has room there."""

_MESSAGE_BYTES_MAX = 200_000
_FDS_MAX = 64
ANSWER_WITHIN_S = 60.0
_CLONE_NEWNET = 0x40000000
_NETWORK_WORDS = ("nsenter", "--net=")

libc = ctypes.PyDLL(None, use_errno=True)


def parse_command(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return what a command that can be forked runs, and its arguments: a module, a script's path, or "-c"."""
    words = [os.fspath(word) for word in words]
    if not all(isinstance(word, str) for word in words) or words[:1] != [sys.executable]:
        return None
    words = words[2:] if words[1] == "-P" else words[1:]
    if words[0] == "-m":
        return (words[1], words[2:]) if is_module(words[1]) else None
    return (words[0], words[1:]) if words[0] == "-c" or words[0].startswith("/") else None


def without_script(words: Sequence[str]) -> Sequence[str]:
    """Return a command with `python -m headrace` in place of the script that an installation makes of it."""
    script = os.path.join(os.path.dirname(sys.executable), "headrace")
    return [*module_command("headrace"), *words[1:]] if words[:1] == [script] else words


def is_module(program: str) -> bool:
    """Return whether `-m` runs it, and a fork can."""
    return program in MODULES or program.startswith(("tests.", "headrace.bench."))


def split_network(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the file of the network namespace in which `nsenter` runs a command ("": none), and the command."""
    program, option = _NETWORK_WORDS
    if len(words) > 2 and words[0] == program and str(words[1]).startswith(option):
        return words[1].removeprefix(option), words[2:]
    return "", words


def starts_processes(module: str, arguments: Sequence[str]) -> bool:
    """Return whether a command starts further processes."""
    return module == "headrace.fuse.fd_store" or (
        module == "headrace" and bool({*arguments[:1]} & {*STARTERS})
    )


def program_settings(environment: dict[str, str]) -> dict[str, str]:
    settings = {name: value for name, value in environment.items() if name.startswith(_PROGRAM_SETTINGS)}
    return settings | {
        "PYTHONPATH": os.pathsep.join(
            path for path in python_path(environment) if path not in _OWN and not is_first(path)
        )
    }


def is_first(path: str) -> bool:
    return os.path.basename(path) == FIRST


def python_path(environment: dict[str, str]) -> list[str]:
    return [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]


_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_HOOK = os.path.join(_ROOT, "src/headrace/hook/site")
_OWN = (_ROOT, os.path.join(_ROOT, "src"), _HOOK)
"""Where modules of Headrace and of its tests lie. Each fork looks where its environment says."""


class Connection:
    """Orders forks from a server, one after the other."""

    def __init__(self, connection: socket.socket, settings: dict[str, str]) -> None:
        self._connection = connection
        self._settings = settings
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def can_fork(self, environment: dict[str, str]) -> bool:
        """Return whether a fork would begin as a process with this environment does."""
        return os.getpid() == self._owner and program_settings(environment) == self._settings

    def fork(self, order: dict[str, Any], fds: Sequence[int]) -> int:
        """Return the process id of a new child of this process. fds: what the order's `fds` names, in its order."""
        with self._lock:
            socket.send_fds(self._connection, [json.dumps(order).encode()], fds)
            answer = self._connection.recv(64)
        # the fork answers itself, so that /proc shows it as it will be, as a Popen returns after the exec
        assert answer.isdigit(), f"the fork server did not fork: {answer!r}"
        return int(answer)


_Popen = subprocess.Popen
_POPEN_NAMES = _Popen._execute_child.__code__.co_varnames[1:]  # type: ignore[attr-defined]


class ForkingPopen(subprocess.Popen[AnyStr]):
    """Is a Popen that forks the server, where that gives the same process as an exec."""

    server = ""

    def _execute_child(self, *words: Any) -> None:
        given = dict(zip(_POPEN_NAMES, words, strict=False))
        environment = dict(os.environ if given["env"] is None else given["env"])
        words_given: Sequence[str] = [] if isinstance(given["args"], (str, bytes)) else list(given["args"])
        network, command = split_network(words_given)
        command = without_script(command)
        before = _pickled(given["preexec_fn"])
        can_fork = not any(
            given[name] not in (None, False, -1)
            for name in ("executable", "shell", "gid", "gids", "uid", "umask", "process_group")
        )
        can_fork = can_fork and before is not None and parse_command(command) is not None
        connection = server_connection(self.server) if can_fork else None
        if connection is None or not connection.can_fork(environment):
            super()._execute_child(*words)  # type: ignore[misc]
            return
        ends = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        fds = {number: number if end == -1 else end for number, end in enumerate(ends)}
        fds |= {fd: fd for fd in given["pass_fds"]}
        order = {
            "command": [os.fspath(word) for word in command],
            "network": network,
            "before": before,
            "environment": environment,
            "directory": os.path.abspath(given["cwd"] or os.getcwd()),
            "umask": _umask(),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
            "session": bool(given["start_new_session"]),
            "fds": list(fds),
        }
        self.pid = connection.fork(order, list(fds.values()))
        self._child_created = True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in names))  # type: ignore[attr-defined]


class TorchPopen(ForkingPopen[AnyStr]):
    """Is a Popen that forks the server that has imported torch."""

    server = TORCH


def run(words: Iterable[object], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a command as subprocess.run does, with its options `timeout`, `input`, `capture_output` and those of
    Popen."""
    return _run_by(ForkingPopen, words, **options)


def run_with_torch(words: Iterable[object], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a command that uses torch."""
    return _run_by(TorchPopen, words, **options)


def _run_by(
    popen: type[ForkingPopen[Any]], words: Iterable[object], **options: Any
) -> subprocess.CompletedProcess[Any]:
    timeout_s, given = options.pop("timeout", None), options.pop("input", None)
    if given is not None:
        options["stdin"] = subprocess.PIPE
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with popen(list(map(str, words)), **options) as process:
        try:
            output, errors = process.communicate(given, timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """Make all code of this process that starts processes by subprocess fork the server where that is possible."""
    vars(subprocess)["Popen"] = ForkingPopen
    try:
        yield
    finally:
        vars(subprocess)["Popen"] = _Popen


def _pickled(function: Callable[[], object] | None) -> str | None:
    """Return the text of a function before exec for an order, "" for none; None if it can't be sent."""
    if function is None:
        return ""
    is_known = isinstance(function, functools.partial) and function.func.__module__.startswith("headrace.")
    return base64.b64encode(pickle.dumps(function)).decode() if is_known else None


def _umask() -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        line = next(line for line in status if line.startswith("Umask:"))
    return int(line.split()[1], 8)


_fork_connection: list[Connection] = []
"""The connection that a forked process has with its twin."""


def server_connection(server: str = "") -> Connection | None:
    """Return the connection with the twin of this fork, or with a server of this process, which is started if
    needed."""
    return _fork_connection[0] if _fork_connection else _start_server(server)


_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""A process with threads can't be forked."""


@functools.cache
def _start_server(server: str) -> Connection | None:
    if os.geteuid() != 0 or platform.machine() not in _SYS_CLONE:
        return None
    own_end, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own_end.settimeout(ANSWER_WITHIN_S)
    with server_end:
        process = _Popen(
            [sys.executable, "-P", __file__, str(server_end.fileno()), server],
            pass_fds=[server_end.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=_environment_of(server),
        )
    is_ready = own_end.recv(64) == b"ready"  # not in a machine that refuses prctl(PR_SET_MM)
    process.returncode = 0 if is_ready else process.wait()  # nobody waits: it ends with this process
    return Connection(own_end, program_settings(dict(os.environ))) if is_ready else None


def _environment_of(server: str) -> dict[str, str]:
    """Return the environment of a server: without what makes it a process of the host that is the first to use it, as
    it would end with that."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return own | {_AREA: "-" * _AREA_BYTES} | (_ONE_THREAD if server == TORCH else {})


# ---------------------------------------------------------------- in the server


class MemoryMap(ctypes.Structure):
    """Is struct prctl_mm_map of linux/prctl.h: where the kernel finds the parts of a program."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data")),
        *((name, ctypes.c_uint64) for name in ("start_brk", "brk", "start_stack")),
        *((name, ctypes.c_uint64) for name in ("arg_start", "arg_end", "env_start", "env_end")),
        *(("auxv", ctypes.c_void_p), ("auxv_size", ctypes.c_uint32), ("exe_fd", ctypes.c_int32)),
    )


_NAMES = (
    "start_code",
    "end_code",
    "start_stack",
    "start_data",
    "end_data",
    "start_brk",
    "arg_start",
    "env_end",
)
_FIELDS = dict(zip(_NAMES, (26, 27, 28, 45, 46, 47, 48, 51), strict=True))
"""Gives their positions in /proc/self/stat, by proc(5)."""


class Area:
    """The memory of the server in which the kernel finds its arguments and its environment."""

    def __init__(self) -> None:
        with open("/proc/self/stat", encoding="utf-8") as stat:
            fields = stat.read().rpartition(")")[2].split()
        self._numbers = {name: int(fields[number - 3]) for name, number in _FIELDS.items()}

    def replace(self, command: Sequence[str], environment: dict[str, str]) -> None:
        """Show /proc's readers this command and environment, and set the environment of this process. Raise OSError
        where the kernel refuses that."""
        arguments = b"".join(os.fsencode(word) + b"\0" for word in command)
        variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
        start = self._numbers["arg_start"]
        middle = start + len(arguments)
        end = middle + len(variables)
        assert end <= self._numbers["env_end"], "more environment than the area takes"
        os.environ.clear()  # before the memory that the C library's environment points to is overwritten
        ctypes.memmove(start, arguments + variables, end - start)
        os.environ.update(environment)
        libc.sbrk.restype = ctypes.c_void_p
        ends = {"arg_end": middle, "env_start": middle, "env_end": end, "brk": libc.sbrk(0), "exe_fd": -1}
        memory = MemoryMap(**{**self._numbers, **ends})
        none, bytes_ = ctypes.c_ulong(0), ctypes.c_ulong(ctypes.sizeof(memory))
        if libc.prctl(_PR_SET_MM, ctypes.c_ulong(_SET_MM_MAP), ctypes.byref(memory), bytes_, none) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_MM_MAP)")


class Cloning:
    """Forks this process as os.fork does, but as a child of its parent."""

    def __init__(self) -> None:
        machine = platform.machine()
        self._clone, self._set_robust_list = _SYS_CLONE[machine], _SYS_SET_ROBUST_LIST[machine]
        self._robust_list, self._robust_bytes = ctypes.c_void_p(), ctypes.c_size_t()
        references = ctypes.byref(self._robust_list), ctypes.byref(self._robust_bytes)
        libc.syscall(_SYS_GET_ROBUST_LIST[machine], 0, *references)
        self._thread_id = ctypes.c_void_p(_thread_id_address())

    def clone(self) -> int:
        """Return 0 in the child. The C library's state of the thread becomes the child's: its thread id, and the list
        by which the kernel releases the locks of a killed process, as LMDB needs it."""
        assert len(os.listdir("/proc/self/task")) == 1, "a fork of a process with threads may hang"
        python = ctypes.pythonapi
        python.PyOS_BeforeFork()
        flags = ctypes.c_ulong(_CLONE_PARENT | _CLONE_CHILD_SETTID | signal.SIGCHLD)
        none = ctypes.c_void_p(0)
        # two machines have the last two arguments in different orders; without CLONE_SETTLS, only the address is used
        pid = int(libc.syscall(self._clone, flags, none, none, self._thread_id, self._thread_id))
        if pid == 0:
            libc.syscall(self._set_robust_list, self._robust_list, self._robust_bytes)
            python.PyOS_AfterFork_Child()
        else:
            python.PyOS_AfterFork_Parent()
        assert pid >= 0, "clone"
        return pid


def _thread_id_address() -> int:
    """Return where the C library keeps the id of this thread: some 720 bytes after the start of its description."""
    libc.pthread_self.restype = ctypes.c_void_p
    start, thread_id = cast(int, libc.pthread_self()), threading.get_native_id()
    return next(a for a in range(start, start + 2048, 4) if ctypes.c_int.from_address(a).value == thread_id)


def preload(server: str) -> None:
    """Import what commands, nodes, FD stores and sessions import, and what programs with torch do. The modules that
    `-m` runs are imported again then, as by a process that begins."""
    from headrace.base.decoding import describe
    from headrace.cli.main import COMMANDS, FILE_JOBS, build_app
    from headrace.config.schema import Config

    describe(Config)  # each node does, and most commands: some 6 ms
    for name in dict.fromkeys("file_jobs" if name in FILE_JOBS else name for name in COMMANDS):
        importlib.import_module(f"headrace.cli.{name}")
    build_app("status")
    for name in LAZY:
        importlib.import_module(name)
    for name in EXTRAS:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    for name in MODULES.values():
        importlib.import_module(name)
        del sys.modules[name]
    for name in WITH_TORCH if server == TORCH else ():
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    for finalizer in vars(weakref.finalize)[
        "_registry"
    ]:  # torch has many, which take 0.1 s when a process ends
        finalizer.atexit = False
    gc.collect()
    gc.freeze()
    use_huge_pages()


def use_huge_pages() -> None:
    """Ask the kernel to collect memory of this process in huge pages: a fork copies, and its end releases, many entries
    of page tables at once. That takes 3 to 10 % off the kernel's time of tests with nodes (docs/decisions/0081)."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        regions = [line.split() for line in maps if " rw-p 00000000 00:00 0 " in line]
    for addresses, *_ in regions:
        first, last = (int(address, 16) for address in addresses.split("-"))
        start, end = (
            -(-first // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES,
            last // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES,
        )
        if start < end:  # a kernel that has no huge pages refuses, and all works as before
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_COLLAPSE)


LAZY = (
    "headrace.base.rate_meter",
    "headrace.cli.exit_codes",
    "headrace.cli.job_progress",
    "headrace.cli.request",
    "headrace.cli.supervise",
    "headrace.client.path_reader",
    "headrace.vfs.sealed_reader",
    "lmdb._envid",
    "typer._click.decorators",
    "encodings.ascii",
    "encodings.idna",
    "headrace.node.node",
    "headrace.node.cluster_link",
    "headrace.node.cluster_reading",
    "headrace.node.cluster_services",
    "headrace.cluster.etcd",
    "headrace.origin.local",
    "headrace.origin.cloud",
    "headrace.fuse.session",
    "obstore.store",
    "uvloop",
)
"""Modules that are imported only when they are needed, by most processes."""

EXTRAS = ("aetcd", "aetcd.rpc.rpc_pb2_grpc", "grpc.aio", "grpc.experimental")
"""Modules that nodes of a cluster import, where they are installed."""


def serve(connection: socket.socket, area: Area, cloning: Cloning) -> tuple[str, list[str]]:
    """Fork at each order. Return in each fork, with the module to run and its arguments."""
    while True:
        message, fds, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES_MAX, _FDS_MAX)
        if not message:
            os._exit(0)
        if cloning.clone() == 0:
            break
        for fd in fds:
            os.close(fd)
    order = json.loads(message)
    command = parse_command(order["command"])
    assert command is not None
    _enter_network(order["network"])
    if starts_processes(*command):
        own_end, twin_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            for file in (connection, own_end):
                file.close()
            for fd in fds:
                os.close(fd)
            return serve(twin_end, area, cloning)
        twin_end.close()
        own_end = _move_above(own_end, _lowest_free(order["fds"], fds))
        _fork_connection.append(Connection(own_end, program_settings(order["environment"])))
        vars(subprocess)["Popen"] = ForkingPopen
    connection = become(order, fds, area, connection)
    with contextlib.suppress(BrokenPipeError):  # who ordered it died: an executed process goes on, too
        connection.send(str(os.getpid()).encode())
    connection.close()
    return command


def become(order: dict[str, Any], fds: list[int], area: Area, connection: socket.socket) -> socket.socket:
    """Take over what the order says of a process that begins. Return the connection, which may have moved."""
    targets: list[int] = order["fds"]
    lowest = _lowest_free(targets, fds)
    moved = [_duplicate_above(fd, lowest) for fd in fds]
    connection = _move_above(connection, lowest)
    for fd, target in zip(moved, targets, strict=True):
        os.dup2(fd, target, inheritable=True)
        os.close(fd)
    if order["session"]:
        os.setsid()
    os.chdir(order["directory"])
    os.umask(order["umask"])
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(order["files"]))
    area.replace(order["command"], order["environment"])
    sys.path[:0] = [path for path in python_path(order["environment"]) if path in _OWN]
    importlib.reload(importlib.import_module("headrace.base.failpoint"))  # it reads the environment
    tempfile.tempdir = None  # is read from the environment at the first use
    if order["before"]:
        pickle.loads(base64.b64decode(order["before"]))()
    for path in filter(is_first, python_path(order["environment"])):
        with open(os.path.join(path, "sitecustomize.py"), encoding="utf-8") as program:
            exec(compile(program.read(), program.name, "exec"), {"__name__": "sitecustomize"})
    if order["command"][1] != "-P":
        sys.path.insert(0, _path_of_modules(order["command"][1], order["directory"]))
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = _opened_again(vars(sys)[f"__{name}__"], mode)
        vars(sys)[name] = vars(sys)[f"__{name}__"] = stream
    if _HOOK in python_path(order["environment"]):
        _load_hook()
    return connection


def _load_hook() -> None:
    """Import what Python does when it starts below the hook, then the loaders that the hook waits for."""
    packages = tuple(f"{name}." for name in WITH_LOADERS)
    for name in [name for name in sys.modules if f"{name}.".startswith(packages)]:
        del sys.modules[name]
    sys.modules.pop("sitecustomize", None)
    importlib.import_module("sitecustomize")
    if "torch" in sys.modules:
        importlib.import_module("torch.utils.data")


def _path_of_modules(option: str, directory: str) -> str:
    """Return where Python looks first for modules, by the first word of its command line."""
    return {"-m": directory, "-c": ""}.get(option, os.path.dirname(option))


def _enter_network(path: str) -> None:
    if path:
        namespace = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if libc.setns(namespace, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        os.close(namespace)


def _lowest_free(targets: Sequence[int], fds: Sequence[int]) -> int:
    """Return a number above all descriptors of an order, where they are and where they will be."""
    return max([2, *targets, *fds]) + 1


def _move_above(connection: socket.socket, lowest: int) -> socket.socket:
    return socket.socket(fileno=_duplicate_above(connection.detach(), lowest))


def _duplicate_above(fd: int, lowest: int) -> int:
    duplicate = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
    os.close(fd)
    return duplicate


def _opened_again(stream: io.TextIOWrapper, mode: str) -> io.TextIOWrapper:
    """Return a stream of the same descriptor as Python opens it when it starts."""
    fd = stream.fileno()
    is_unbuffered = stream.write_through
    binary = open(fd, f"{mode}b", buffering=0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(
        cast(Any, binary),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=fd == 2 or os.isatty(fd),
        write_through=is_unbuffered,
    )


def _end(code: Any) -> None:
    """End as Python does, but don't free all objects: each page of them would be copied first."""
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    vars(threading)["_shutdown"]()
    vars(atexit)["_run_exitfuncs"]()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(1 if isinstance(code, str) else int(code or 0))


def _main() -> tuple[str, list[str]]:
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    area = Area()
    del os.environ[_AREA]
    area.replace(sys.orig_argv, dict(os.environ))  # ends the server where the kernel refuses it
    preload(sys.argv[2])
    cloning = Cloning()
    connection.send(b"ready")
    return serve(connection, area, cloning)


def _run(program: str, arguments: list[str]) -> None:
    """Run what `parse_command` returned as Python does."""
    if program == "-c":
        sys.argv = ["-c", *arguments[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(arguments[0], "<string>", "exec"), vars(main))
        return
    sys.argv = [program, *arguments]
    if is_module(program):
        sys.modules.pop(program, None)
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    command = _main()
    try:
        _run(*command)
    except SystemExit as end:
        _end(end.code)
    _end(0)
