"""Headrace as its users run it: by the command line only. What depends on its wording is in this file."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from typing import Any

from headrace.config.secret_options import option_words

from .machine import NotRunError, Workplace, discard, memory_bytes, run, stop, tool, unmount

READY_S = 30


class HeadraceMount:
    def __init__(
        self,
        place: Workplace,
        url: str,
        *,
        io: str,
        endpoint: str = "",
        options: dict[str, str] | None = None,
    ) -> None:
        self.name = f"headrace-{io}"
        self.place, self.url, self.io, self.endpoint = place, url, io, endpoint
        self.options = options or {}
        self.cache = place.folder(f"{self.name}-cache")
        self.mountpoint = self.root = place.folder(f"{self.name}-mount")
        self.process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}
        self.up_s = 0.0

    def command(self) -> list[str]:
        words = [tool("headrace"), "up", self.url, self.mountpoint, "--cache", f"{self.cache}:20GiB"]
        if self.endpoint:
            words += ["--endpoint", self.endpoint]
        words += option_words(self.options, self.place.folder(f"{self.name}-secrets"))
        return [*words, "--io", self.io, "--json"]

    def start(self) -> None:
        command = self.command()
        self.place.undo.callback(self.stop)
        log = self.place.log(self.name)
        start = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, env=self.environment(), start_new_session=True
        )
        os.close(log)
        self.ready = self._ready_line()
        self.up_s = time.perf_counter() - start

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def _ready_line(self) -> dict[str, Any]:
        assert self.process is not None and self.process.stdout is not None
        selector = selectors.DefaultSelector()
        selector.register(self.process.stdout, selectors.EVENT_READ)
        end = time.monotonic() + READY_S
        while (left := end - time.monotonic()) > 0:
            if not selector.select(left):
                break
            line = self.process.stdout.readline()
            if not line:
                raise NotRunError(f"headrace up ended: {self.place.log_tail(self.name)}")
            if line.startswith(b"{"):
                answer: dict[str, Any] = json.loads(line)
                if answer.get("ready"):
                    return answer
        raise NotRunError(f"headrace up not ready in {READY_S} s: {self.place.log_tail(self.name)}")

    def _ask(self, *words: str, timeout_s: float = 300) -> Any:
        out = run([tool("headrace"), *words], timeout_s=timeout_s, env=self.environment())
        lines = [line for line in out.splitlines() if line.startswith(("{", "["))]
        if out.lstrip().startswith("{"):
            try:
                return json.loads(out)
            except ValueError:
                pass
        return json.loads(lines[-1]) if lines else None

    def load_command(self, folder: str) -> list[str]:
        return [tool("headrace"), "load", f"{self.mountpoint}/{folder}", "--json"]

    def load(self, folder: str = "") -> Any:
        """Blocks until all below `folder` is cached."""
        return self._ask(*self.load_command(folder)[1:])

    def status(self) -> Any:
        return self._ask("status", "--json", timeout_s=30)

    def memory(self) -> dict[str, int]:
        """`session rss`, `session anon`, `node rss`, `node anon`, in bytes."""
        sizes = {}
        for who in ("session", "node"):
            for kind, value in memory_bytes(self.ready[f"{who}_pid"]).items():
                sizes[f"{who} {kind}"] = value
        return sizes

    def stop(self) -> None:
        if self.process is None:
            return
        stop(self.process, grace_s=15)
        for who in ("session_pid", "node_pid", "fd_store_pid"):
            kill_if_headrace(self.ready.get(who))
        unmount(self.mountpoint)
        self.process = None
        discard(self.cache)


def kill_if_headrace(pid: int | None) -> None:
    """End a process of headrace's. The id may belong to another one by now, which is left alone."""
    if pid is None:
        return
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as words:
            if b"headrace" in words.read():
                os.kill(pid, 9)
    except (FileNotFoundError, ProcessLookupError):
        pass
