"""Translate paths of the job to paths of the node's namespace."""

from __future__ import annotations

import json
import os

KIND = "fuse.headrace"
URL = "headrace://"
_FOLDERS_MAX = 100_000
"""Directories whose places are kept."""


class MountedPaths:
    """The mounts of a node. rows: (mountpoint, path of the namespace that it shows)."""

    def __init__(self, rows: list[tuple[str, str]]) -> None:
        rows = [(mountpoint.rstrip("/"), top) for mountpoint, top in rows]
        self._rows = sorted(rows, key=lambda row: -len(row[0]))  # the innermost first
        self._folders: dict[str, str | None] = {}  # the place of a directory, by its absolute path

    def __bool__(self) -> bool:
        return bool(self._rows)

    def namespace_path(self, path: str) -> str | None:
        """Return the path in the namespace; None for a file outside all mounts. Links above the file are followed."""
        if path.startswith(URL):
            return path[len(URL) :]
        folder, _, name = path.rpartition("/")
        if not path.startswith("/") or name in ("", ".", ".."):
            folder, _, name = os.path.abspath(path).rpartition("/")
        try:
            place = self._folders[folder]
        except KeyError:
            place = self._place_of(folder)
        return None if place is None else f"{place}/{name}"

    def _place_of(self, folder: str) -> str | None:
        """Return the path of a directory in the namespace, without a slash at its end."""
        if len(self._folders) > _FOLDERS_MAX:
            self._folders.clear()
        absolute = os.path.abspath(folder or "/")
        place = self._below(absolute)
        if place is None:
            place = self._below(os.path.realpath(absolute))
        self._folders[folder] = None if place is None else place.rstrip("/")
        return self._folders[folder]

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
