"""Being another user of the host. A process begins as root, as its interpreter may lie where only root can read, and
becomes the other user when it has imported what it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

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
"""Of a program that reads by the library."""


def as_nobody(program: str, *, imports: str = "", **given: object) -> Any:
    """What a program of another user puts into `found`. given: variables of it."""
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
    ended = subprocess.run(
        [sys.executable, "-c", text + "\nprint(json.dumps(found))"],
        input=json.dumps(given),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)
