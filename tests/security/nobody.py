"""Being another user of the host. A process begins as root, as its interpreter may lie where only root can read, and
becomes the other user when it has imported what it needs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests import fork_server

WALK = """
result = []
for path in paths:
    for name, attempt in {
        "list": lambda: os.listdir(path),
        "read": lambda: os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1),
        "path": lambda: os.open(path, os.O_PATH),
        "write": lambda: os.open(path, os.O_WRONLY | os.O_NONBLOCK),
        "chmod": lambda: os.chmod(path, 0o777),
        "chown": lambda: os.chown(path, 65534, 65534),
        "times": lambda: os.utime(path),
        "truncate": lambda: os.truncate(path, 0),
        "unlink": lambda: os.unlink(path),
        "rename": lambda: os.rename(path, path + ".theirs"),
        "link": lambda: os.link(path, f"/tmp/headrace-stolen-{os.getpid()}"),
        "make": lambda: os.mkdir(path + "/theirs"),
        "attributes": lambda: os.setxattr(path, "user.theirs", b"1"),
        "connect": lambda: socket.socket(socket.AF_UNIX).connect(path),
    }.items():
        try:
            attempt()
            result.append([name, path])
        except OSError:
            pass
"""

NOBODY = 65534
_BECOME = "import os; os.setgroups([]); os.setresgid(*[{0}] * 3); os.setresuid(*[{0}] * 3)"
BECOME_NOBODY = _BECOME.format(NOBODY)
_IMPORTS = """
import errno, json, os, socket, stat, sys

def refused(call):
    "The name of the error; what it returned, where there was none."
    try:
        return f"{call()!r}"
    except Exception as error:
        return type(error).__name__
"""
LIBRARY = """
import ctypes, encodings.idna, hashlib, mmap, random, headrace
import headrace.sdk.brokered_bulk_read, headrace.vfs.brokered.broker_registry
import headrace.vfs.remote.remote_registry, concurrent.futures.thread
"""
"""The first lines of a program that reads by the library."""


def as_nobody(program: str, *, imports: str = "", **given: object) -> Any:
    """Return what a program of another user puts into `result`. given: variables of it."""
    return as_user(NOBODY, program, imports=imports, **given)


def as_user(uid: int, program: str, *, imports: str = "", **given: object) -> Any:
    """The same, of the user with that number, and of the group with it."""
    text = "\n".join(
        [
            _IMPORTS,
            imports,
            _BECOME.format(uid) if uid else "",
            "given = json.load(sys.stdin); globals().update(given)",
            program,
        ]
    )
    ended = fork_server.run(
        [sys.executable, "-c", text + "\nprint(json.dumps(result))"],
        input=json.dumps(given),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def below(*tops: Path) -> list[str]:
    return [str(path) for top in tops for path in [top, *top.rglob("*")]]
