"""The holder: mounts, keeps /dev/fuse and the ledger open, starts sessions one after the other, unmounts at
the end.

Small on purpose: few imports, no threads, nothing that can fail with the work of a session. It never touches
the mounted tree. `python -m headrace.fuse.fd_store --mountpoint M --socket S`, or `run_holder`.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from headrace.base import capabilities
from headrace.base.capabilities import Capability
from headrace.base.errors import HeadraceError
from headrace.base.interpreter import module_command
from headrace.fuse import device, handover_state, mount
from headrace.fuse.backings import BackingsKeeper
from headrace.fuse.servers import Role, Servers, is_zombie

BACKOFF_S_MAX = 5.0
LOOK_S = 0.5
REAP_S = 0.5
STEADY_S = 10.0
STOP_LIMIT_S = 3.0
SAID_BYTES_MAX = 65536
_CLIENT = "headrace.sdk.node_client:connect"


ALONE = "alone"
"""Of a holder that keeps CAP_SYS_ADMIN, while its sessions run as the same user without it."""


class FdStore:
    """One mount. fuse_fd, ledger_fd: inherited from a dead holder, by way of its session, or from who started us."""

    def __init__(self, arguments: argparse.Namespace, *, fuse_fd: int, ledger_fd: int) -> None:
        self._arguments = arguments
        self._servers = Servers(arguments.lock_fd, arguments.mountpoint)
        self._servers.enter(Role.HOLDER)
        self._fuse_fd = fuse_fd
        self._ledger_fd = ledger_fd
        self._control: socket.socket | None = None
        self._backings: BackingsKeeper | None = None
        """Where this process alone has rights, for its session."""
        self._session: subprocess.Popen[bytes] | None = None
        self._session_pid = 0
        self._ended: list[subprocess.Popen[bytes]] = []
        """Sessions that were not yet waited for."""
        self._buffer = b""
        self._ready = False
        self._failure: dict[str, object] | None = None
        self._deaths = 0
        self._started_s = 0.0
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, self._stop)
        self._stopping = False

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def adopt(self, control: socket.socket, pid: int) -> None:
        self._control, self._session_pid, self._ready = control, pid, True
        self._started_s = time.monotonic()

    def resume(self) -> None:
        """Of a mount that lost its holder and its session."""
        self.start_session()
        self._ready = True

    def start_session(self) -> None:
        a = self._arguments
        mine, theirs = socket.socketpair()
        command = module_command("headrace.fuse.session_main", "--mountpoint", a.mountpoint)
        command += ["--socket", a.socket, "--io", a.io, "--client", a.client, "--fuse-fd", str(self._fuse_fd)]
        command += ["--ledger-fd", str(self._ledger_fd), "--control-fd", str(theirs.fileno())]
        command += ["--lock-fd", str(a.lock_fd)]
        fds = [self._fuse_fd, self._ledger_fd, theirs.fileno(), *([a.lock_fd] if a.lock_fd >= 0 else [])]
        if a.rights == ALONE:
            if self._backings is not None:
                self._backings.close()
            self._backings = BackingsKeeper(self._fuse_fd)
            command += ["--backings-fd", str(self._backings.theirs.fileno()), "--passthrough", a.passthrough]
            fds.append(self._backings.theirs.fileno())
        self._session = subprocess.Popen(
            command,
            pass_fds=fds,
            start_new_session=True,
            # in the child, before it is another program: no moment is without a lock when this process is killed
            preexec_fn=lambda: self._servers.enter(Role.SESSION),
        )
        theirs.close()
        if self._backings is not None:
            self._backings.theirs.close()
        self._control, self._buffer = mine, b""
        self._session_pid = self._session.pid
        self._started_s = time.monotonic()

    def run(self) -> int:
        """Until told to stop, or unmounted by somebody else."""
        while not self._stopping:
            assert self._control is not None
            watched: list[Any] = [self._control.fileno(), self._wake]
            if self._backings is not None:
                watched.append(self._backings)
            ready, _, _ = select.select(watched, [], [], LOOK_S)
            if self._backings in ready:
                self._register()
                if len(ready) == 1:
                    continue
            if self._wake in ready:
                os.read(self._wake, 64)
            gone = self._control.fileno() in ready and not self._on_control()
            if (gone or is_zombie(self._session_pid)) and not self._stopping:
                status = self._on_death()
                if status is not None:
                    return status
        self._unmount()
        self._end_session()
        return 0

    def _register(self) -> None:
        assert self._backings is not None
        if not self._backings.answer():
            self._backings.close()
            self._backings = None

    def _on_control(self) -> bool:
        """False: the session is gone, or says what none says."""
        assert self._control is not None
        try:
            data = self._control.recv(4096)
        except OSError:
            data = b""
        self._buffer += data
        if len(self._buffer) > SAID_BYTES_MAX:
            return False
        while b"\n" in self._buffer:
            line, _, self._buffer = self._buffer.partition(b"\n")
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                return False
            if not isinstance(message, dict):
                return False
            self._on_message(message)
        return bool(data)

    def _on_message(self, message: dict[str, object]) -> None:
        if "error" in message:
            self._failure = message
            return
        if not self._ready:
            device.set_read_ahead(self._arguments.mountpoint)
            where = {"ready": True, "mountpoint": self._arguments.mountpoint, "pid": os.getpid()}
            say(self._arguments.ready_fd, where | message)
        self._ready = True

    def _on_death(self) -> int | None:
        """Starts the next session; a status when there is none to start."""
        assert self._control is not None
        self._control.close()
        self._reap()
        if device.mounted_at(self._arguments.mountpoint) is None:
            return 0
        if not self._ready:
            self._unmount()
            unknown: dict[str, object] = {
                "error": "internal",
                "what": "the session process ended",
                "why": "",
                "hint": "see its log",
            }
            say(self._arguments.ready_fd, self._failure or unknown)
            return 1
        self._deaths = 0 if time.monotonic() - self._started_s > STEADY_S else self._deaths + 1
        if self._deaths > 1:
            select.select([self._wake], [], [], min(BACKOFF_S_MAX, 0.05 * 2.0 ** min(10, self._deaths)))
        if not self._stopping:
            self.start_session()
        return None

    def _reap(self) -> None:
        """A session that was killed while it told the kernel of a name may be unable to end: the kernel waits for the
        lock of a folder, whose holder waits for an answer to a request. The next session gives it; so nothing here
        waits for the end of the last one for long."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._session_pid, signal.SIGKILL)
        if self._session is not None:
            self._ended = [one for one in [*self._ended, self._session] if one.poll() is None]
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._session.wait(REAP_S)

    def _unmount(self) -> None:
        if device.unmount(self._arguments.mountpoint, detach=False) == errno.EBUSY:
            device.unmount(self._arguments.mountpoint, detach=True)

    def _end_session(self) -> None:
        """It ends by itself when the file system is gone; files still open on it are cut off after a
        while."""
        limit_s = time.monotonic() + STOP_LIMIT_S
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.kill(self._session_pid, signal_number)
            except ProcessLookupError:
                return
            while time.monotonic() < limit_s:
                if self._session is not None and self._session.poll() is not None:
                    return
                if self._session is None and not os.path.exists(f"/proc/{self._session_pid}"):
                    return
                time.sleep(0.01)


def say(fd: int | None, message: dict[str, object]) -> None:
    if fd is None or fd < 0:
        if "error" in message:
            sys.stderr.write(f"{message['what']}: {message['why']} ({message['hint']})\n")
        return
    try:
        os.write(fd, json.dumps(message).encode() + b"\n")
    except OSError:
        pass


def run_holder(
    *,
    mountpoint: str,
    socket_path: str,
    io: str = "auto",
    allow_other: bool = False,
    read_only: bool = True,
    ready_fd: int | None = None,
    client: str = _CLIENT,
    fds: tuple[int, int] | None = None,
    lock_fd: int = -1,
    rights: str = "",
    passthrough: str = "",
) -> int:
    """Mounts and holds until SIGTERM, SIGINT or an unmount; the exit status. Says on ready_fd, in one JSON
    line, that the mount answers, or {"error", "what", "why", "hint"}. Installs signal handlers: for a process
    of its own. fds: /dev/fuse, not mounted yet, and a ledger, which the caller keeps open too: the mount then
    outlives a holder and a session that die together, and `--adopt-fuse-fd`, `--adopt-ledger-fd` alone resume
    it. lock_fd: of `servers.py`; -1: nobody looks after the mount. rights: ALONE where this is the one process of the
    mount that has them: fds are mounted by root already. passthrough: of `session_main.py`."""
    arguments = argparse.Namespace(
        socket=socket_path,
        io=io,
        client=client,
        ready_fd=ready_fd,
        lock_fd=lock_fd,
        rights=rights,
        passthrough=passthrough,
        mountpoint=mountpoint,
    )
    try:
        if rights != ALONE:
            arguments.mountpoint = mount.prepare(mountpoint, is_served=lambda _: True)
        fuse_fd, ledger_fd = fds or (device.open_device(), handover_state.create())
        for fd in (fuse_fd, ledger_fd):
            os.set_inheritable(fd, False)
        if rights != ALONE:
            device.mount(fuse_fd, arguments.mountpoint, allow_other=allow_other, read_only=read_only)
    except HeadraceError as error:
        say(ready_fd, {"error": error.code, "what": error.what, "why": error.why, "hint": error.hint})
        return 1
    holder = FdStore(arguments, fuse_fd=fuse_fd, ledger_fd=ledger_fd)
    holder.start_session()
    return holder.run()


def _adopt(arguments: argparse.Namespace) -> int:
    for fd in (arguments.adopt_fuse_fd, arguments.adopt_ledger_fd):
        os.set_inheritable(fd, False)
    holder = FdStore(arguments, fuse_fd=arguments.adopt_fuse_fd, ledger_fd=arguments.adopt_ledger_fd)
    if arguments.adopt_control_fd < 0:
        holder.resume()
    else:
        os.set_inheritable(arguments.adopt_control_fd, False)
        holder.adopt(socket.socket(fileno=arguments.adopt_control_fd), arguments.adopt_pid)
    return holder.run()


def main() -> int:
    parser = argparse.ArgumentParser(prog="headrace.fuse.fd_store")
    parser.add_argument("--mountpoint", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--io", default="auto", choices=("auto", "passthrough", "splice", "noopen"))
    parser.add_argument("--allow-other", action="store_true")
    parser.add_argument("--writable", action="store_true")
    parser.add_argument("--ready-fd", type=int, default=None)
    parser.add_argument("--client", default=_CLIENT)
    parser.add_argument("--fds", type=int, nargs=2)
    parser.add_argument("--lock-fd", type=int, default=-1)
    parser.add_argument("--rights", default="")
    parser.add_argument("--passthrough", default="")
    for name in ("fuse-fd", "ledger-fd", "control-fd", "pid"):
        parser.add_argument(f"--adopt-{name}", type=int, default=-1)
    a = parser.parse_args()
    if a.rights == ALONE:
        capabilities.hold(frozenset({Capability.SYS_ADMIN}))  # a session that is executed has none
        capabilities.hide()
    if a.lock_fd >= 0:
        os.set_inheritable(a.lock_fd, False)
    if a.adopt_fuse_fd >= 0:
        return _adopt(a)
    return run_holder(
        mountpoint=a.mountpoint,
        socket_path=a.socket,
        io=a.io,
        allow_other=a.allow_other,
        read_only=not a.writable,
        ready_fd=a.ready_fd,
        client=a.client,
        fds=None if a.fds is None else (a.fds[0], a.fds[1]),
        lock_fd=a.lock_fd,
        rights=a.rights,
        passthrough=a.passthrough,
    )


if __name__ == "__main__":
    sys.exit(main())
