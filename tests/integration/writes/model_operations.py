"""Operations that a model test draws: data, so that they can be printed, sent to a runner, and left out one by one."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from typing import Any

from tests.integration.writes.place import (
    NOREPLACE,
    Place,
    bytes_of,
    pwrite_all,
    read_fd,
    read_whole,
    renameat2,
    write_all,
)

PATHS = (
    "R/a",
    "R/b",
    "R/d",
    "R/d/a",
    "R/d/e",
    "R/d/e/f",
    "L/file",
    "L/text",
    "L/empty",
    "L/new",
    "L/folder",
    "L/folder/one",
    "L/folder/two",
    "L/folder/below",
    "L/folder/below/three",
    "L/folder/below/new",
    "L/other",
    "L/other/five",
    "L/bare",
    "L/bare/x",
)
"""New names (R) and those of the origin (L)."""
SLOTS = 3
SIZES = (0, 1, 100, 4_096, 9_999)
MODES = (0o600, 0o644, 0o755, 0o400)
ATTRIBUTES = ("user.a", "user.b")


class Machine:
    """Each method is an operation; what it gives, or its errno, must be the same everywhere."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._slots: dict[int, int] = {}

    def close_all(self) -> None:
        for fd in self._slots.values():
            os.close(fd)

    def _path(self, path: str) -> str:
        return (self._place.root if path[0] == "R" else self._place.lower) + path[1:]

    def create(self, path: str, size: int) -> None:
        with open(self._path(path), "xb") as file:
            file.write(bytes_of(path, size))

    def overwrite(self, path: str, size: int) -> None:
        with open(self._path(path), "wb") as file:
            file.write(bytes_of(f"new {path}", size))

    def write_at(self, path: str, offset: int, size: int) -> None:
        fd = os.open(self._path(path), os.O_WRONLY)
        try:
            pwrite_all(fd, bytes_of(f"{offset}", size), offset)
        finally:
            os.close(fd)

    def append(self, path: str, size: int) -> None:
        fd = os.open(self._path(path), os.O_WRONLY | os.O_APPEND)
        try:
            write_all(fd, bytes_of("more", size))
        finally:
            os.close(fd)

    def truncate(self, path: str, size: int) -> None:
        os.truncate(self._path(path), size)

    def read(self, path: str) -> str:
        data = read_whole(self._path(path))
        return f"{len(data)} {hash_of(data)}"

    def unlink(self, path: str) -> None:
        os.unlink(self._path(path))

    def mkdir(self, path: str) -> None:
        os.mkdir(self._path(path))

    def rmdir(self, path: str) -> None:
        os.rmdir(self._path(path))

    def rename(self, old: str, new: str) -> None:
        os.rename(self._path(old), self._path(new))

    def rename_noreplace(self, old: str, new: str) -> None:
        renameat2(self._path(old), self._path(new), NOREPLACE)

    def link(self, old: str, new: str) -> None:
        os.link(self._path(old), self._path(new))

    def symlink(self, target: str, path: str) -> None:
        os.symlink(os.path.basename(target), self._path(path))

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._path(path), mode)

    def set_time(self, path: str, seconds: int) -> None:
        os.utime(self._path(path), ns=(seconds, seconds * 10**9 + seconds))

    def set_attribute(self, path: str, name: str, size: int) -> None:
        os.setxattr(self._path(path), name, b"v" * (size % 500))

    def remove_attribute(self, path: str, name: str) -> None:
        os.removexattr(self._path(path), name)

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(self._path(path)))

    def look(self, path: str) -> str:
        status = os.lstat(self._path(path))
        links = 0 if stat.S_ISDIR(status.st_mode) else status.st_nlink
        return f"{status.st_mode:o} {links} {0 if stat.S_ISDIR(status.st_mode) else status.st_size}"

    def open(self, path: str, slot: int) -> None:
        if slot not in self._slots:
            self._slots[slot] = os.open(self._path(path), os.O_RDWR)

    def slot_write(self, slot: int, offset: int, size: int) -> None:
        if slot in self._slots:
            pwrite_all(self._slots[slot], bytes_of("slot", size), offset)

    def slot_read(self, slot: int) -> str:
        if slot not in self._slots:
            return "not open"
        data = read_fd(self._slots[slot])
        return f"{len(data)} {hash_of(data)} {os.fstat(self._slots[slot]).st_nlink}"

    def slot_truncate(self, slot: int, size: int) -> None:
        if slot in self._slots:
            os.ftruncate(self._slots[slot], size)

    def slot_close(self, slot: int) -> None:
        if slot in self._slots:
            os.close(self._slots.pop(slot))


def hash_of(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()[:12]


def run(place: Place, operations: list[list[Any]]) -> None:
    machine = Machine(place)
    try:
        for name, *arguments in operations:
            call: Callable[..., object] = getattr(machine, name)
            place.note_result(call, *arguments)
    finally:
        machine.close_all()
