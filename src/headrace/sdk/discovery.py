"""Which nodes run on this host: by the state files of the run folder, and by who listens there.

The files are written by the command line (`cli/state.py`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import NodeUnavailableError, UsageError
from headrace.base.trusted_owner import is_trusted
from headrace.config.load import Loaded, load
from headrace.config.schema import socket_path_of

STARTED_AGAIN_S = 5.0
"""That a command, or a program, waits for a node that ended and is being started again."""


class RunState(msgspec.Struct, kw_only=True):
    """kind: "up", "fuse", "s3", "webhdfs", "rest" or "node". s3, webhdfs, rest: where a gateway of it listens. Pids are
    0 where there is no such process. began: of `pid`, by `began_at`, so that another process that got its number later
    is not taken for it. credentials: files that its gateways made for clients of this host, by the same words."""

    kind: str
    pid: int
    socket: str
    cache: list[str] = []
    mountpoint: str = ""
    url: str = ""
    s3: str = ""
    rest: str = ""
    webhdfs: str = ""
    io: str = ""
    why: str = ""
    node_pid: int = 0
    holder_pid: int = 0
    session_pid: int = 0
    log: str = ""
    began: int = 0
    credentials: dict[str, str] = {}

    def alive(self) -> bool:
        """The process that wrote this runs, and is no other one with its pid: a file that only this user can write says
        when it began."""
        return self.began != 0 and self.began == began_at(self.pid)


def find_node(*, socket: str | None = None, cache: str | None = None) -> str:
    """The socket of a node of this host: the one named, or the one that owns this cache folder, whether it runs or not;
    else the only one that runs. NodeUnavailableError when none does, UsageError when several do."""
    if socket is not None:
        return _of_believed(os.path.abspath(socket))
    loaded = load()
    run_folder = loaded.config.run_folder
    if cache is not None:
        return _of_believed(socket_path_of(run_folder, cache.split(":", 1)[0]))
    states = [state for state in read_states(run_folder) if state.alive() or answers(state.socket)]
    hint = "choose by cache=DIR, or HEADRACE_CACHE=DIR:SIZE"
    return select_node(running_sockets(run_folder, states), loaded, states, hint=hint)


def _of_believed(socket_path: str) -> str:
    """A socket in a run folder of another user's is no node of this one's, also for root, who could enter it."""
    folder = os.path.dirname(socket_path)
    with contextlib.suppress(FileNotFoundError, PermissionError):
        if not is_trusted(os.stat(folder).st_uid):
            raise NodeUnavailableError(
                f"no node of this user's at {socket_path}",
                why=f"{folder} is of another user",
                hint="have it be open to others (`--allow-other`)",
            )
    return socket_path


def configured_nodes() -> str:
    """REST APIs of nodes of other hosts, by the settings; "": none."""
    return load().config.nodes


def read_states(folder: str) -> list[RunState]:
    """All there are, those of dead processes too."""
    found = []
    for name in _names_in(folder):
        if name.endswith(".json"):
            try:
                with open(os.path.join(folder, name), "rb", opener=_own_file) as source:
                    found.append(decode_json(source.read(), RunState))
            except (OSError, msgspec.MsgspecError):
                continue  # removed meanwhile, or of another version
    return found


def _own_file(path: str, flags: int) -> int:
    """Opens no link, and waits for no pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _names_in(folder: str) -> list[str]:
    """None where there is no such folder, or it is another user's, also for root."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return sorted(os.listdir(fd)) if is_trusted(os.fstat(fd).st_uid) else []
    except OSError:
        return []
    finally:
        os.close(fd)


def answers(socket_path: str) -> bool:
    """Somebody listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.settimeout(1)
        try:
            one.connect(socket_path)
        except OSError:
            return False
    return True


def running_sockets(run_folder: str, states: list[RunState]) -> list[str]:
    """The sockets of the nodes of this run folder that answer."""
    known = {state.socket for state in states}
    known |= {os.path.join(run_folder, name) for name in _names_in(run_folder) if name.endswith(".sock")}
    return sorted(one for one in known if answers(one))


def select_node(running: list[str], loaded: Loaded, states: list[RunState], *, hint: str) -> str:
    """Of several, the one whose cache the settings name. NodeUnavailableError, UsageError. hint: how to choose."""
    config = loaded.config
    if not running:
        away = [state for state in states if state.kind == "up" and state.alive()]
        if away:
            if len(away) == 1 and _comes_back(away[0].socket):  # of several, nobody said which
                return away[0].socket
            raise NodeUnavailableError(
                f"the node of {away[0].mountpoint or away[0].socket} does not answer",
                why="it is being started again",
                hint=f"try again; {away[0].log} says why it ended",
            )
        raise NodeUnavailableError(
            "no node runs on this host",
            why=f"none listens in {config.run_folder}",
            hint="start one with `headrace up`",
        )
    if len(running) > 1 and loaded.sources["cache"] != "default" and config.socket_path in running:
        return config.socket_path
    if len(running) > 1:
        raise UsageError(
            f"{len(running)} nodes run on this host",
            why="; ".join(_described(one, states) for one in running),
            hint=hint,
        )
    return running[0]


def _comes_back(socket_path: str) -> bool:
    """Whether a node answers within the time that starting it again usually takes."""
    end_s = time.monotonic() + STARTED_AGAIN_S
    while not answers(socket_path):
        if time.monotonic() > end_s:
            return False
        time.sleep(0.05)
    return True


def _described(socket: str, states: list[RunState]) -> str:
    ours = [state for state in states if state.socket == socket]
    folders = [folder for state in ours for folder in state.cache[:1]]
    mountpoints = [state.mountpoint for state in ours if state.mountpoint]
    return " ".join(
        [
            f"--cache {folders[0]}" if folders else f"--socket {socket}",
            *([f"at {', '.join(mountpoints)}"] if mountpoints else []),
        ]
    )


def began_at(pid: int) -> int:
    """When a process began, in clock ticks since the boot (proc(5), field 22 of stat); 0 when there is none, or it has
    ended and was not waited for."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as source:
            words = source.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if words[0] in (b"Z", b"X") else int(words[19])
