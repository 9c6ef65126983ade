"""A host whose node runs as a user without rights, by a program that this user can read, wherever the tests' lies."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import headrace
from tests.integration.cli.host import LIMIT_S, Host

NODE_USER = 64991
"""Neither root nor nobody, who is a third."""
USER = f"{NODE_USER}:{NODE_USER}"
SYS_ADMIN, NOTHING = f"{1 << 21:016x}", f"{0:016x}"
"""Capabilities, as /proc/PID/status shows them."""
MS_BIND, MNT_DETACH = 4096, 2
STARTERS = ("up", "fuse", "s3")
"""Commands of which a process goes on as the user."""
_OF_PROGRAM = ("PYTHONPATH", "LD_LIBRARY_PATH")
_libc = ctypes.CDLL(None, use_errno=True)


class ForkedCommandsHost(Host):
    """Is a host whose short commands, which root gives, are forks (`tests/fork_server.py`). All that becomes the user
    is executed."""

    def headrace(self, *words: object, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
        if words[0] in STARTERS:
            return super().headrace(*words, limit_s=limit_s)
        program, environment = self.python, self.environment
        self.python = sys.executable
        self.environment = {name: value for name, value in environment.items() if name not in _OF_PROGRAM} | {
            name: os.environ[name] for name in _OF_PROGRAM if name in os.environ
        }
        try:
            return super().headrace(*words, limit_s=limit_s)
        finally:
            self.python, self.environment = program, environment


def status_of(pid: int) -> dict[str, str]:
    """The fields of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: " ".join(value.split()) for name, _, value in (line.partition(":") for line in lines)}


@contextmanager
def unprivileged_host(
    base: Path, *, kind: type[Host] = ForkedCommandsHost, **settings: object
) -> Iterator[Host]:
    """All words of `up` but `--user` are the caller's. Below `base`, `project` is the directory of the tests.
    kind: Host executes each command, also where its own start is what a test is about."""
    host = kind(base, **settings)
    places = {
        "python": sys.base_prefix,
        "packages": sysconfig.get_path("purelib"),
        "project": str(Path(__file__).parents[2]),
        "source": os.path.dirname(os.path.dirname(headrace.__file__)),
    }
    for name, place in places.items():
        (base / name).mkdir()
        _bind(place, str(base / name))
    try:
        host.python = str(base / "python/bin" / os.path.basename(os.path.realpath(sys.executable)))
        host.environment |= {
            "PYTHONPATH": f"{base}/source:{base}/packages",
            "LD_LIBRARY_PATH": f"{base}/python/lib",
        }
        yield host
    finally:
        host.close()
        for name in places:
            _libc.umount2(os.fsencode(base / name), MNT_DETACH)


def _bind(place: str, target: str) -> None:
    if _libc.mount(os.fsencode(place), os.fsencode(target), None, ctypes.c_ulong(MS_BIND), None) != 0:
        raise OSError(ctypes.get_errno(), "bind", place)


def descriptor_of(pid: int, name: str) -> int:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return int(words[words.index(f"--{name}-fd".encode()) + 1])


def ready(host: Host) -> dict[str, Any]:
    (state,) = host.run_folder.glob("*.json")
    document: dict[str, Any] = json.loads(state.read_bytes())
    return document
