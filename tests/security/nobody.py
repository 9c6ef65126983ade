"""Being another user of the host. A process begins as root, as its interpreter may lie where only root can read, and
becomes the other user when it has imported what it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

NOBODY = 65534
BECOME_NOBODY = f"import os; os.setgroups([]); os.setresgid(*[{NOBODY}] * 3); os.setresuid(*[{NOBODY}] * 3)"
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
import headrace.sdk.brokered.cache, headrace.sdk.brokered.reach, headrace.sdk.remote.reach, concurrent.futures.thread
"""
"""Of a program that reads by the library."""


def as_nobody(program: str, *, imports: str = "", **given: object) -> Any:
    """What a program of another user puts into `found`. given: variables of it."""
    text = "\n".join(
        [_IMPORTS, imports, BECOME_NOBODY, "given = json.load(sys.stdin); globals().update(given)", program]
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
