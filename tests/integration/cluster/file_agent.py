"""Run file operations below one directory in a process of its own, because a mount may hang.

Each request is a JSON line [kind, …]; each answer is a JSON line with the errno, or 0, and the bytes read."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

LIMIT_S = 60.0
Tree = dict[str, str]
"""Name → "dir", or the bytes in base64."""


class FileAgent:
    """The test's end of an agent."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process: subprocess.Popen[str] | None = None

    def do(self, *request: Any) -> Any:
        """Run a request and return [errno, bytes read]."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(self._root)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        readable, _, _ = select.select([process.stdout], [], [], LIMIT_S)
        line = process.stdout.readline() if readable else ""
        assert line, f"no answer to {request} below {self._root}"
        return json.loads(line)

    def tree(self, folder: str) -> Tree:
        number, answer = self.do("tree", folder)
        assert number == 0, (number, folder)
        tree: Tree = answer
        return tree

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)


def _write(path: str, data: str, mode: str) -> None:
    with open(path, mode) as file:
        file.write(base64.b64decode(data))


def _replace(path: str, data: str) -> None:
    _write(f"{path}.new", data, "xb")
    try:
        os.rename(f"{path}.new", path)
    except OSError:
        os.unlink(f"{path}.new")
        raise


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return base64.b64encode(file.read()).decode()


def _tree(top: str) -> Tree:
    tree = {}
    for folder, folders, files in os.walk(top, onerror=_raise):
        for name in folders:
            tree[os.path.relpath(os.path.join(folder, name), top)] = "dir"
        for name in files:
            if not name.startswith(
                ".headrace-put-"
            ):  # what a killed put left at an origin; no listing shows it
                tree[os.path.relpath(os.path.join(folder, name), top)] = _read(os.path.join(folder, name))
    return tree


def _raise(error: OSError) -> None:
    raise error


def _do(kind: str, path: str, *more: Any) -> Any:
    match kind:
        case "write":
            return _write(path, more[0], "wb")
        case "append":
            return _write(path, more[0], "ab")
        case "replace":
            return _replace(path, more[0])
        case "truncate":
            return os.truncate(path, more[0])
        case "mkdir":
            return os.mkdir(path)
        case "makedirs":
            return os.makedirs(path)
        case "rmdir":
            return os.rmdir(path)
        case "unlink":
            return os.unlink(path)
        case "rename":
            return os.rename(path, more[0])
        case "read":
            return _read(path)
        case "tree":
            return _tree(path)
    raise ValueError(kind)


def _main() -> None:
    os.umask(0o022)
    root = sys.argv[1]
    for line in sys.stdin:
        kind, path, *more = json.loads(line)
        if kind == "rename":
            more = [os.path.join(root, more[0])]
        try:
            answer = [0, _do(kind, os.path.join(root, path), *more)]
        except OSError as error:
            answer = [error.errno, None]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _main()
