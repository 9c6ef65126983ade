"""Translate paths of the job to paths of the node's namespace."""

from __future__ import annotations

import json
import os

KIND = "fuse.headrace"
URL = "headrace://"


class MountedPaths:
    """The mounts of a node. rows: (mountpoint, path of the namespace that it shows)."""

    def __init__(self, rows: list[tuple[str, str]]) -> None:
        rows = [(mountpoint.rstrip("/"), top) for mountpoint, top in rows]
        self._rows = sorted(rows, key=lambda row: -len(row[0]))  # the innermost first
        self._real_folders: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def namespace_path(self, path: str) -> str | None:
        """Return the path in the namespace; None for a file outside all mounts. Links above the file are followed."""
        if path.startswith(URL):
            return path[len(URL) :]
        path = os.path.abspath(path)
        below = self._below(path)
        if below is not None:
            return below
        folder, _, name = path.rpartition("/")
        real = self._real_folders.get(folder)
        if real is None:
            if len(self._real_folders) > 100_000:
                self._real_folders.clear()
            real = self._real_folders[folder] = os.path.realpath(folder)
        return None if real == folder else self._below(f"{real}/{name}")

    def _below(self, path: str) -> str | None:
        for mountpoint, top in self._rows:
            if path.startswith(mountpoint) and path[len(mountpoint) : len(mountpoint) + 1] in ("/", ""):
                return f"{top.rstrip('/')}{path[len(mountpoint) :]}"
        return None


def mounts_of_process(named: str) -> MountedPaths:
    """Return the mounts that `headrace run` named, as JSON; without any, those in the mount table of this process."""
    if named:
        return MountedPaths([(mountpoint, top) for mountpoint, top in json.loads(named)])
    rows = []
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            for line in table:
                fields, _, rest = line.partition(" - ")
                if rest.split(" ", 1)[0] == KIND:
                    rows.append((_unescaped(fields.split(" ")[4]), "/"))
    except OSError:
        pass
    return MountedPaths(rows)


def _unescaped(mountpoint: str) -> str:
    """Undo the octal escapes of the mount table (proc(5)): blanks, tabs, newlines and backslashes."""
    for escape, text in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        mountpoint = mountpoint.replace(escape, text)
    return mountpoint
