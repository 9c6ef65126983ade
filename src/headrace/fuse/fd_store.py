"""Run the FD store: mount, keep /dev/fuse and the handover state open, start session after session, unmount at the
end.

It is small on purpose: few imports, no threads, and nothing that can fail with the work of a session. It never touches
the mounted tree. Start `python -m headrace.fuse.fd_store --mountpoint M --socket S`, or call `run_fd_store`.
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
from functools import partial
from typing import Any

from headrace.base import capabilities
from headrace.base.capabilities import Capability
from headrace.base.errors import HeadraceError
from headrace.base.interpreter import module_command
from headrace.base.mount_table import mounted_at
from headrace.fuse import device, handover_state, mount
from headrace.fuse.backings import BackingsKeeper
from headrace.fuse.servers import Role, Servers, has_ended, is_zombie

BACKOFF_S_MAX = 5.0
"""Longest pause before a session is started again, in seconds."""
POLL_S = 2.0
"""Seconds between two checks whether the session's main thread has ended, while another one can't end."""
REAP_S = 0.5
"""Most seconds that the FD store waits for the end of a session that it killed."""
STEADY_S = 10.0
"""A session that served for this many seconds did not fail at its start: the next one is started without a pause."""
STOP_LIMIT_S = 3.0
"""Seconds that a session has to end after SIGTERM, before it is killed."""
MESSAGE_BYTES_MAX = 65536
_CLIENT = "headrace.client.node_client:connect"


ALONE = "alone"
"""Value of `rights` for an FD store that keeps CAP_SYS_ADMIN while its sessions run as the same user without it."""


class FdStore:
    """Serves one mount: it holds the mount's descriptors, and has one session running. `fuse_fd` and `handover_fd` come
    from the process that started this one, or from a dead FD store by way of its session."""

    def __init__(self, arguments: argparse.Namespace, *, fuse_fd: int, handover_fd: int) -> None:
        self._arguments = arguments
        self._servers = Servers(arguments.lock_fd, arguments.mountpoint)
        self._servers.enter(Role.FD_STORE)
        self._fuse_fd = fuse_fd
        self._ledger_fd = handover_fd
        self._control: socket.socket | None = None
        self._backings: BackingsKeeper | None = None
        """Registers files for the session where only this process has CAP_SYS_ADMIN."""
        self._session: subprocess.Popen[bytes] | None = None
        self._session_pid = 0
        self._adopted_fd = -1
        """Pidfd of a session that is no child of this process, as its pid may become that of another one."""
        self._ended: list[subprocess.Popen[bytes]] = []
        """Sessions whose exit status was not read yet."""
        self._buffer = b""
        self._ready = False
        self._failure: dict[str, object] | None = None
        self._deaths = 0
        self._started_s = 0.0
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, self._stop)
        self._stopping = False

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def adopt(self, control: socket.socket, pid: int, pidfd: int) -> None:
        """Continue with a session that is running, after its FD store died."""
        self._control, self._session_pid, self._adopted_fd, self._ready = control, pid, pidfd, True
        self._started_s = time.monotonic()

    def resume(self) -> None:
        """Start a session for a mount that lost both its FD store and its session."""
        self.start_session()
        self._ready = True

    def start_session(self) -> None:
        a = self._arguments
        own_end, session_end = socket.socketpair()
        command = module_command("headrace.fuse.session_main", "--mountpoint", a.mountpoint)
        command += ["--socket", a.socket, "--io", a.io, "--client", a.client, "--fuse-fd", str(self._fuse_fd)]
        command += ["--handover-fd", str(self._ledger_fd), "--control-fd", str(session_end.fileno())]
        command += ["--lock-fd", str(a.lock_fd)]
        fds = [self._fuse_fd, self._ledger_fd, session_end.fileno(), *([a.lock_fd] if a.lock_fd >= 0 else [])]
        if a.rights == ALONE:
            if self._backings is not None:
                self._backings.close()
            self._backings = BackingsKeeper(self._fuse_fd, read_only=not a.writable)
            command += ["--backings-fd", str(self._backings.theirs.fileno()), "--passthrough", a.passthrough]
            fds.append(self._backings.theirs.fileno())
        self._session = subprocess.Popen(
            command,
            pass_fds=fds,
            start_new_session=True,
            # in the child before exec, so that the mount has a lock at any moment when this process is killed
            preexec_fn=partial(self._servers.enter, Role.SESSION),
        )
        session_end.close()
        if self._backings is not None:
            self._backings.theirs.close()
        self._control, self._buffer = own_end, b""
        self._session_pid = self._session.pid
        self._started_s = time.monotonic()

    def run(self) -> int:
        """Serve until a signal stops this process or the mount is unmounted. Return the exit status."""
        while not self._stopping:
            assert self._control is not None
            watched: list[Any] = [self._control.fileno(), self._wake]
            if self._backings is not None:
                watched.append(self._backings)
            ready, _, _ = select.select(watched, [], [], POLL_S)
            if self._backings in ready:
                self._register()
                if len(ready) == 1:
                    continue
            if self._wake in ready:
                os.read(self._wake, 64)
            session_ended = self._control.fileno() in ready and not self._on_control()
            if (session_ended or is_zombie(self._session_pid)) and not self._stopping:
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
        """Handle the session's messages. Return False when the session has ended or sent an invalid message."""
        assert self._control is not None
        try:
            data = self._control.recv(4096)
        except OSError:
            data = b""
        self._buffer += data
        if len(self._buffer) > MESSAGE_BYTES_MAX:
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
            status = {"ready": True, "mountpoint": self._arguments.mountpoint, "pid": os.getpid()}
            report(self._arguments.ready_fd, status | message)
        self._ready = True

    def _on_death(self) -> int | None:
        """Start the next session. Return an exit status instead when there is none to start."""
        assert self._control is not None
        self._control.close()
        self._reap()
        if mounted_at(self._arguments.mountpoint) is None:
            return 0
        if not self._ready:
            self._unmount()
            unknown: dict[str, object] = {
                "error": "internal",
                "what": "the session process ended",
                "why": "",
                "hint": "see its log",
            }
            report(self._arguments.ready_fd, self._failure or unknown)
            return 1
        self._deaths = 0 if time.monotonic() - self._started_s > STEADY_S else self._deaths + 1
        if self._deaths > 1:
            select.select([self._wake], [], [], min(BACKOFF_S_MAX, 0.05 * 2.0 ** min(10, self._deaths)))
        if not self._stopping:
            self.start_session()
        return None

    def _reap(self) -> None:
        """Kill the session, and wait for its end for at most `REAP_S`.

        A session that was killed while it notified the kernel of a name may be unable to end. The kernel waits for
        the lock of a directory, and the lock's owner waits for the reply to a request. The next session sends that
        reply, so nothing here may wait long for the last session.
        """
        self._send(signal.SIGKILL)
        if self._adopted_fd >= 0:
            os.close(self._adopted_fd)
            self._adopted_fd = -1
        if self._session is not None:
            self._ended = [process for process in [*self._ended, self._session] if process.poll() is None]
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._session.wait(REAP_S)

    def _send(self, number: signal.Signals) -> None:
        """Send a signal to the session, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self._adopted_fd >= 0:
                signal.pidfd_send_signal(self._adopted_fd, number)
            elif self._session is not None:
                self._session.send_signal(number)

    def _has_session_ended(self) -> bool:
        if self._session is not None:
            return self._session.poll() is not None
        return self._adopted_fd < 0 or bool(select.select([self._adopted_fd], [], [], 0)[0])

    def _unmount(self) -> None:
        if device.unmount(self._arguments.mountpoint, detach=False) == errno.EBUSY:
            device.unmount(self._arguments.mountpoint, detach=True)

    def _end_session(self) -> None:
        """Terminate the session, and kill it after `STOP_LIMIT_S`. It ends by itself once the file system is gone,
        unless files are still open there."""
        deadline_s = time.monotonic() + STOP_LIMIT_S
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            self._send(signal_number)
            while time.monotonic() < deadline_s:
                if self._has_session_ended():
                    return
                time.sleep(0.01)


def report(fd: int | None, message: dict[str, object]) -> None:
    """Write a message to `fd` as one JSON line. Without a descriptor, write an error to stderr, and nothing else."""
    if fd is None or fd < 0:
        if "error" in message:
            sys.stderr.write(f"{message['what']}: {message['why']} ({message['hint']})\n")
        return
    try:
        os.write(fd, json.dumps(message).encode() + b"\n")
    except OSError:
        pass


def run_fd_store(
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
    """Mount and serve, until SIGTERM, SIGINT or an unmount. Return the exit status.

    On `ready_fd` it writes one JSON line: that the mount answers, or {"error", "what", "why", "hint"}. It installs
    signal handlers, so it needs a process of its own.

    - `fds`: /dev/fuse, not mounted yet, and the descriptor of a handover state; the caller keeps both open. The mount
      then outlives an FD store and a session that die together: `--adopt-fuse-fd`, `--adopt-handover-fd` resume it.
    - `lock_fd`: the descriptor for `servers.py`; -1 when nobody supervises the mount.
    - `rights`: ALONE where only this process of the mount has CAP_SYS_ADMIN; root has then mounted `fds` already.
    - `passthrough`: see `session_main.py`.
    """
    arguments = argparse.Namespace(
        socket=socket_path,
        io=io,
        client=client,
        ready_fd=ready_fd,
        lock_fd=lock_fd,
        rights=rights,
        passthrough=passthrough,
        writable=not read_only,
        mountpoint=mountpoint,
    )
    try:
        if rights != ALONE:
            arguments.mountpoint = mount.prepare(mountpoint, is_served=lambda _: True)
        fuse_fd, handover_fd = fds or (device.open_device(), handover_state.create())
        for fd in (fuse_fd, handover_fd):
            os.set_inheritable(fd, False)
        # it handles signals, so one that comes from here on unmounts
        fd_store = FdStore(arguments, fuse_fd=fuse_fd, handover_fd=handover_fd)
        if rights != ALONE:
            device.mount(fuse_fd, arguments.mountpoint, allow_other=allow_other, read_only=read_only)
    except HeadraceError as error:
        report(ready_fd, error.as_report())
        return 1
    fd_store.start_session()
    return fd_store.run()


def _adopt(arguments: argparse.Namespace) -> int:
    for fd in (arguments.adopt_fuse_fd, arguments.adopt_handover_fd):
        os.set_inheritable(fd, False)
    fd_store = FdStore(arguments, fuse_fd=arguments.adopt_fuse_fd, handover_fd=arguments.adopt_handover_fd)
    if arguments.adopt_control_fd < 0:
        fd_store.resume()
    else:
        os.set_inheritable(arguments.adopt_control_fd, False)
        control = socket.socket(fileno=arguments.adopt_control_fd)
        pidfd = _pidfd_of(arguments.adopt_pid, control)
        if arguments.lock_fd >= 0 and (pidfd < 0 or is_zombie(arguments.adopt_pid)):
            return 1  # `headrace up` may have seen neither's lock; it starts both again
        fd_store.adopt(control, arguments.adopt_pid, pidfd)
    return fd_store.run()


def _pidfd_of(pid: int, control: socket.socket) -> int:
    """Return a pidfd of the session at the other end of a control socket; -1 if it has ended. A pid that is used again
    is not taken for it, as the session ended before that."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return -1
    if not has_ended(control):
        return fd
    os.close(fd)
    return -1


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
    for name in ("fuse-fd", "handover-fd", "control-fd", "pid"):
        parser.add_argument(f"--adopt-{name}", type=int, default=-1)
    a = parser.parse_args()
    if a.rights == ALONE:
        capabilities.hold(frozenset({Capability.SYS_ADMIN}))  # a session loses it by exec
        capabilities.hide()
    if a.lock_fd >= 0:
        os.set_inheritable(a.lock_fd, False)
    if a.adopt_fuse_fd >= 0:
        return _adopt(a)
    return run_fd_store(
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
