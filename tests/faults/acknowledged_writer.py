"""Changes files of a mount at random until it fails, as programs do that want their work to survive a power loss.

argv: the mount, a log on another disk, a seed; "without-library" where only the mount can be written to. A line of the
log says what is about to be done, the next one that it was: fsync had returned, of the file or of the directory.
`replay` says what such a log promises.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
from headrace.base.errors import HeadraceError

SIZE_MAX = 20_000
FOLDERS = ("", "a/", "b/", "b/c/")
NAMES = 5
"""The names of each kind in each directory."""
LOOSE = "loose-"
"""Begins a name that nobody syncs: what is there after a power loss is any state of it, or a torn one."""

Tree = dict[str, bytes]


def content(seed: str, number: int) -> bytes:
    chance = random.Random(f"{seed} {number}")
    return chance.randbytes(chance.randrange(1, SIZE_MAX))


class Writer:
    def __init__(self, log: str, seed: str, *, by_library: bool = True) -> None:
        self._library = headrace.connect()
        self._by_library = by_library
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._seed = seed
        self._chance = random.Random(seed)
        self._number = 0

    def run(self) -> None:
        kinds: list[tuple[str, Callable[[str], None]]] = [
            *[("replace", self._replace)] * 4,
            *[("overwrite", self._overwrite)] * 3,
            *[("append", self._append)] * 3,
            *[("append", self._append_by_the_library)] * (2 if self._by_library else 0),
            *[("rename", self._rename)] * 2,
            *[("remove", self._remove)] * 2,
            *[("loose", self._loose)] * 4,
            ("folder", self._folder),
        ]
        while True:
            self._number += 1
            kind, work = self._chance.choice(kinds)
            work(kind)

    def _note(self, **row: object) -> None:
        os.write(self._log, json.dumps(row).encode() + b"\n")

    def _do(self, kind: str, names: list[str], work: Callable[[], None]) -> None:
        self._note(kind=kind, names=names, number=self._number, seed=self._seed)
        work()
        self._note(done=self._number)

    def _name(self, kind: str = "name-") -> str:
        return f"{self._chance.choice(FOLDERS)}{kind}{self._chance.randrange(NAMES)}"

    def _there(self) -> str | None:
        names = [f"{folder}name-{number}" for folder in FOLDERS for number in range(NAMES)]
        there = [name for name in names if os.path.exists(name)]
        return self._chance.choice(there) if there else None

    def _write(self, name: str, flags: int, *, sync: bool = True) -> None:
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | flags, 0o644)
        os.write(fd, content(self._seed, self._number))
        if sync:
            os.fsync(fd)
        os.close(fd)

    def _overwrite(self, kind: str) -> None:
        name = self._name()
        self._do(kind, [name], lambda: self._write(name, os.O_TRUNC))

    def _append(self, kind: str) -> None:
        name = self._name()
        self._do(kind, [name], lambda: self._write(name, os.O_APPEND))

    def _append_by_the_library(self, kind: str) -> None:
        name = self._name()

        def work() -> None:
            os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
            with self._library.open(f"/{name}", "ab") as file:
                file.write(content(self._seed, self._number))
                os.fsync(file.fileno())

        self._do(kind, [name], work)

    def _replace(self, kind: str) -> None:
        name, new = self._name(), f"new-{self._number}"

        def work() -> None:
            self._write(new, os.O_EXCL)
            os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
            os.rename(new, name)
            sync_folders(name, new)

        self._do(kind, [name, new], work)

    def _rename(self, kind: str) -> None:
        source, target = self._there(), self._name()
        if source is None or source == target:
            return

        def work() -> None:
            os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
            os.rename(source, target)
            sync_folders(source, target)

        self._do(kind, [source, target], work)

    def _remove(self, kind: str) -> None:
        name = self._there()
        if name is not None:
            self._do(kind, [name], lambda: self._unlink(name))

    def _unlink(self, name: str) -> None:
        os.unlink(name)
        sync_folders(name)

    def _unlink_all(self, top: str) -> None:
        shutil.rmtree(top)
        sync_folders(top)

    def _loose(self, _: str) -> None:
        name = self._name(LOOSE)
        way = self._chance.randrange(4)
        if way == 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        elif way == 1:
            self._write(name, os.O_TRUNC, sync=False)
        elif way == 2:
            self._write(name, 0, sync=False)
        else:
            self._write(f"{name}.new", os.O_TRUNC, sync=False)
            os.rename(f"{name}.new", name)

    def _folder(self, kind: str) -> None:
        """A folder of a round is made, filled and removed."""
        top = f"folder-{self._chance.randrange(3)}"
        if os.path.isdir(top):
            names = [
                os.path.normpath(os.path.join(folder, name))
                for folder, _, files in os.walk(top)
                for name in files
            ]
            self._do("remove", names, lambda: self._unlink_all(top))
            return

        def fill() -> None:
            os.makedirs(f"{top}/x")
            self._write(f"{top}/x/{self._number}", os.O_EXCL)

        self._do(kind, [f"{top}/x/{self._number}"], fill)


def sync_folders(*names: str) -> None:
    for folder in {os.path.dirname(name) or "." for name in names}:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(fd)
        os.close(fd)


def replay(log: Path, before: Tree, moment_bytes: int) -> tuple[Tree, set[str]]:
    """Returns what must be there, and the names of which nothing is promised. Those are of changes that were not
    acknowledged when the log had `moment_bytes`, just before power was lost."""
    tree, under_way = dict(before), set[str]()
    row: dict[str, Any] = {}
    written_bytes = 0
    for line in log.read_bytes().splitlines(keepends=True):
        written_bytes += len(line)
        parsed = json.loads(line)
        if "done" not in parsed:
            row = parsed
            under_way.update(parsed["names"])
        elif written_bytes <= moment_bytes:
            _apply(tree, row["kind"], row["names"], content(row["seed"], row["number"]))
            under_way.difference_update(row["names"])
    return tree, under_way


def _apply(tree: Tree, kind: str, names: list[str], data: bytes) -> None:
    if kind == "remove":
        for name in names:
            tree.pop(name, None)
    elif kind == "rename":
        tree[names[1]] = tree.pop(names[0])
    elif kind == "append":
        tree[names[0]] = tree.get(names[0], b"") + data
    else:
        tree[names[0]] = data


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    with contextlib.suppress(OSError, HeadraceError):
        Writer(sys.argv[2], sys.argv[3], by_library=len(sys.argv) < 5).run()
