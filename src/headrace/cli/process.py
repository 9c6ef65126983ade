"""Starting a node or a mount holder as a process of its own, and hearing from it that it is ready."""

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
    """A process that says one JSON line on a pipe when it is ready, or why it is not."""

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
        self._said = b""
        self.ready_fd, theirs = os.pipe()
        log = _open_log(log_path)
        try:
            self.process = subprocess.Popen(
                module_command(*words, "--ready-fd", str(theirs)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs, *pass_fds),
                start_new_session=True,  # a terminal's ^C is ours alone
                preexec_fn=before_exec,
            )
        finally:
            os.close(log)
            os.close(theirs)
        self.exit_fd = os.pidfd_open(self.process.pid)

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> dict[str, Any] | None:
        """When ready_fd is readable: its line, or None when it is not whole yet. Raises the error it reports."""
        part = os.read(self.ready_fd, 65536)
        self._said += part
        if part and b"\n" not in self._said:
            return None
        self.drop_ready()
        if b"\n" not in self._said:
            raise HeadraceError(
                f"the {self.name} process ended before it was ready",
                why=self._last_words(),
                hint=f"see {self.log_path}",
            )
        answer: dict[str, Any] = json.loads(self._said.split(b"\n", 1)[0])
        if "error" in answer:
            self.stop(5)
            raise error_of(answer)
        return answer

    def stop(self, patience_s: float) -> None:
        """SIGTERM, and SIGKILL when it takes too long."""
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
        with open(self.log_path, "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 2000))
            lines = log.read().decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f"status {self.process.returncode}" + (f", {said[-1]}" if said else "")


def start_node(config: Config, log_path: str, *, again: bool) -> Child:
    """The configuration goes over in memory: it may hold secrets. again: it ran before, and its origins were there:
    it starts also when they are away now."""
    return _start_configured("node", ["headrace.node", *["--again"] * again], config, log_path)


def start_gateway(name: str, word: str, config: Config, socket: str, log_path: str) -> Child:
    """name: for messages. word: the module is headrace.WORD.main. socket: of its node."""
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
    """io: how the kernel reads. writable: of a node whose settings let something be written."""

    io: str
    allow_other: bool
    writable: bool


def start_holder(
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
    """fds, lock_fd: of `fuse/fd_store.py`. mounted: they are, and what served them is dead; then it says nothing when
    it is ready. passthrough: of `fuse/session_main.py`, where this process is an unprivileged user's but for
    CAP_SYS_ADMIN: of all that it starts, the holder alone has that, too. None: rights are as they are."""
    words = ["headrace.fuse.fd_store", "--mountpoint", mountpoint, "--socket", socket]
    words += ["--io", options.io, "--lock-fd", str(lock_fd)]
    if mounted:
        words += ["--adopt-fuse-fd", str(fds[0]), "--adopt-ledger-fd", str(fds[1])]
    else:
        words += ["--fds", str(fds[0]), str(fds[1])]
        words += ["--allow-other"] * options.allow_other + ["--writable"] * options.writable
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
    """The error a child reported, as the class it was."""
    kind = error_classes().get(str(answer["error"]), HeadraceError)
    return kind(str(answer.get("what", "")), why=str(answer.get("why", "")), hint=str(answer.get("hint", "")))


def _open_log(path: str) -> int:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    keep_bounded(log)
    return log
