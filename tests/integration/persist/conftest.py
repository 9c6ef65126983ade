"""A host whose mount is written to. Writing is done by other processes, with a limit: a mount may hang."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server
from tests.integration.cli.conftest import MakeHost, host, make_host
from tests.integration.cli.host import Host, wait_until

__all__ = ["MakeHost", "Writer", "host", "make_host", "settled", "tree_of", "wait_until"]

LIMIT_S = 40.0
AWAY = 30
HIDDEN = ".headrace-put-"
"""Begins the name of what an upload into a folder left when its node was killed; listings don't show it."""


@pytest.fixture(autouse=True)
def _needs_root(needs_fuse: None) -> None:
    """Mark all tests here."""


class Writer:
    """Runs Python in another process, whose working directory is the mount; what it prints comes back."""

    def __init__(self, mount: Path) -> None:
        self.mount = mount

    def run(self, code: str, *, limit_s: float = LIMIT_S) -> str:
        done = fork_server.run(
            [sys.executable, "-c", "import os, json, errno\n" + code],
            cwd=self.mount,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def start(self, code: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-u", "-c", "import os, sys, json, errno\n" + code],
            cwd=self.mount,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tree(self, *, is_changed_elsewhere: bool = False) -> dict[str, str]:
        """Name → "dir", or the bytes of a file, as hex; of all that the mount shows. Looks again where a name goes
        between the look at its folder and its open, as another node removed it; not for ever. is_changed_elsewhere: so
        it does for ESTALE, which a reader may get until its node hears of a change (docs/semantics/nodes.md)."""
        passing = "(errno.ENOENT, errno.ESTALE)" if is_changed_elsewhere else "(errno.ENOENT,)"
        tree: dict[str, str] = json.loads(
            self.run(
                f"passing = {passing}\n"
                """
import time

def tree():
    result = {}
    for folder, folders, files in os.walk("."):
        for name in folders:
            result[os.path.normpath(os.path.join(folder, name))] = "dir"
        for name in files:
            path = os.path.join(folder, name)
            result[os.path.normpath(path)] = open(path, "rb").read().hex()
    return result

for left in reversed(range(10)):
    try:
        print(json.dumps(tree()))
        break
    except OSError as error:
        if left == 0 or error.errno not in passing:
            raise
        time.sleep(0.2)
"""
            )
        )
        return tree


def tree_of(folder: Path) -> dict[str, str]:
    """The same of a plain folder, which may change meanwhile."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            return _tree_of(folder)


def _tree_of(folder: Path) -> dict[str, str]:
    tree = {}
    for path in folder.rglob("*"):
        if path.name.startswith(HIDDEN):
            continue
        tree[str(path.relative_to(folder))] = "dir" if path.is_dir() else path.read_bytes().hex()
    return tree


def settled(host: Host) -> dict[str, Any]:
    """Everything that was written is persisted; the node's account of writing. A node that was killed is waited for."""
    wait_until(lambda: host.headrace("persist", "/", limit_s=LIMIT_S).returncode != AWAY, LIMIT_S)
    host.ok("persist", "/", limit_s=LIMIT_S)
    status: dict[str, Any] = host.status()["write"]
    return status
