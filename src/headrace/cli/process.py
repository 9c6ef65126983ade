"""Starts a node, an FD store or a gateway as a process, and waits until it is ready."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.base.capabilities import Capability, pass_on
from headrace.base.errors import HeadraceError, error_classes
from headrace.base.interpreter import module_command
from headrace.base.logs import keep_bounded
from headrace.config.schema import Config


class Child:
    """Runs a process that writes one JSON line to a pipe when it is ready, or with the reason why it is not.

    The constructor raises OSError if the process can't be started; it leaves no descriptor open then.
    """

    def __init__(
        self,
        name: str,
        words: list[str],
        *,
        log_path: str,
        pass_fds: tuple[int, ...] = (),
        before_exec: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._received = b""
        self.exit_fd = -1
        self.ready_fd, child_fd = os.pipe()
        try:
            log = open_log(log_path)
            try:
                self.process = subprocess.Popen(
                    module_command(*words, "--ready-fd", str(child_fd)),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(child_fd, *pass_fds),
                    start_new_session=True,  # ^C of the terminal reaches this process alone
                    preexec_fn=before_exec,
                )
            finally:
                os.close(log)
            self._open_exit()
        except BaseException:
            self.drop_ready()
            raise
        finally:
            os.close(child_fd)

    def _open_exit(self) -> None:
        """Open the pidfd of the process. Kills the process, which nobody would follow, if that fails."""
        try:
            self.exit_fd = os.pidfd_open(self.process.pid)
        except OSError:
            self.process.kill()
            self.process.wait()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def read_ready(self) -> dict[str, Any] | None:
        """Read from a readable ready_fd, and return the line, None until it is complete.

        Raises the error that the process reports, and HeadraceError if it ended without a line.
        """
        chunk = os.read(self.ready_fd, 65536)
        self._received += chunk
        if chunk and b"\n" not in self._received:
            return None
        self.drop_ready()
        if b"\n" not in self._received:
            raise HeadraceError(
                f"the {self.name} process ended before it was ready",
                why=self._last_words(),
                hint=f"see {self.log_path}",
            )
        answer: dict[str, Any] = json.loads(self._received.split(b"\n", 1)[0])
        if "error" in answer:
            self.stop(5)
            raise error_of(answer)
        return answer

    def stop(self, patience_s: float) -> None:
        """Send SIGTERM, and SIGKILL if the process has not ended within patience_s. Returns when it has ended."""
        for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 5.0)):
            if self.process.poll() is None:
                self.process.send_signal(number)
                try:
                    self.process.wait(wait_s)
                except subprocess.TimeoutExpired:
                    continue
            break
        self.drop_ready()
        self.drop_exit()

    def drop_exit(self) -> None:
        if self.exit_fd >= 0:
            os.close(self.exit_fd)
            self.exit_fd = -1

    def drop_ready(self) -> None:
        if self.ready_fd >= 0:
            os.close(self.ready_fd)
            self.ready_fd = -1

    def _last_words(self) -> str:
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            pass
        try:
            with open(self.log_path, "rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - 2000))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            lines = []  # the status says that it ended; its supervisor goes on
        messages = [line.strip() for line in lines if line.strip()]
        return f"status {self.process.returncode}" + (f", {messages[-1]}" if messages else "")


def start_node(config: Config, log_path: str, *, again: bool) -> Child:
    """Start a node. again: it ran before, so it starts even if its origins are unreachable now.

    The configuration is passed in memory, because it may hold secrets.
    """
    return _start_configured("node", ["headrace.node", *["--again"] * again], config, log_path)


def start_gateway(name: str, word: str, config: Config, socket: str, log_path: str) -> Child:
    """Start a gateway. name: its name in messages. word: names its module, headrace.WORD.main. socket: the socket of
    its node."""
    return _start_configured(name, [f"headrace.{word}.main", "--socket", socket], config, log_path)


def _start_configured(name: str, words: list[str], config: Config, log_path: str) -> Child:
    fd = os.memfd_create("headrace-config", 0)
    try:
        os.write(fd, msgspec.json.encode(config))
        words = [words[0], "--config-json", f"/proc/self/fd/{fd}", *words[1:]]
        return Child(name, words, log_path=log_path, pass_fds=(fd,))
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class MountOptions:
    """Holds the options of a mount. io: the I/O mode. writable: the settings of the node permit writes."""

    io: str
    allow_other: bool
    writable: bool


def start_fd_store(
    mountpoint: str,
    socket: str,
    log_path: str,
    options: MountOptions,
    *,
    fds: tuple[int, int],
    lock_fd: int,
    passthrough: str | None = None,
    mounted: bool = False,
) -> Child:
    """Start the FD store of a mount. fds, lock_fd: as in `fuse/fd_store.py`.

    mounted: the mount exists and its processes are dead; the FD store then reports nothing when it is ready.
    passthrough: as in `fuse/session_main.py`, if this process is a user's and has CAP_SYS_ADMIN. Of all processes that
    it starts, only the FD store receives that capability. None: all processes have the rights of this one.
    """
    words = ["headrace.fuse.fd_store", "--mountpoint", mountpoint, "--socket", socket]
    words += ["--io", options.io, "--lock-fd", str(lock_fd)]
    if mounted:
        words += ["--adopt-fuse-fd", str(fds[0]), "--adopt-handover-fd", str(fds[1])]
    else:
        words += ["--fds", str(fds[0]), str(fds[1])]
        words += ["--allow-other"] * options.allow_other
    words += ["--writable"] * options.writable
    if passthrough is None:
        return Child("mount", words, log_path=log_path, pass_fds=(*fds, lock_fd))
    words += ["--rights", "alone", "--passthrough", passthrough]
    return Child(
        "mount",
        words,
        log_path=log_path,
        pass_fds=(*fds, lock_fd),
        before_exec=lambda: pass_on(frozenset({Capability.SYS_ADMIN})),
    )


def error_of(answer: dict[str, Any]) -> HeadraceError:
    """Return the error that a child reported, as its own class."""
    kind = error_classes().get(str(answer["error"]), HeadraceError)
    return kind(str(answer.get("what", "")), why=str(answer.get("why", "")), hint=str(answer.get("hint", "")))


def open_log(path: str) -> int:
    """Open the log of a process for appending; the caller closes it."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    keep_bounded(log)
    return log
