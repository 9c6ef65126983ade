"""The mount table: which origin answers for which prefix of the namespace. Longest prefix wins."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from headrace.base.errors import PathExistsError, PathNotFoundError, UsageError
from headrace.origin.circuit import Circuit
from headrace.origin.origin import Origin


@dataclass(frozen=True, slots=True)
class Mount:
    """path: "/" or "/a/b". sync_interval_s: how old a listing may be before the origin is asked again. circuit: of the
    origin."""

    path: str
    url: str
    origin: Origin
    sync_interval_s: float
    circuit: Circuit = field(default_factory=Circuit)


MOUNT_PATH_BYTES_MAX = 511
"""A key of the index."""


def normal_path(path: str) -> str:
    """Absolute, no double, trailing or dot components. UsageError otherwise."""
    parts = [part for part in path.split("/") if part]
    if not path.startswith("/") or any(part in (".", "..") for part in parts):
        raise UsageError(
            f"mount path {path!r}", why="it must be absolute, without . and ..", hint="for example /imagenet"
        )
    whole = "/" + "/".join(parts)
    if len(os.fsencode(whole)) > MOUNT_PATH_BYTES_MAX or "\0" in whole:
        raise UsageError(
            f"mount path {path[:80]!r}…", why=f"it has {MOUNT_PATH_BYTES_MAX} bytes at most, no zeros"
        )
    return whole


class MountTable:
    def __init__(self) -> None:
        self._mounts: dict[str, Mount] = {}

    def add(self, mount: Mount) -> None:
        if mount.path in self._mounts:
            raise PathExistsError(
                f"mount {mount.path}",
                why=f"{self._mounts[mount.path].url} is attached there",
                hint="remove it first",
            )
        self._mounts[mount.path] = mount

    def remove(self, path: str) -> Mount:
        if path not in self._mounts:
            raise PathNotFoundError(
                f"mount {path}", why="nothing is attached there", hint="see `headrace mount list`"
            )
        return self._mounts.pop(path)

    def find(self, path: str) -> tuple[Mount, str] | None:
        """The mount that answers for a path, and the key below its origin; None above all mounts."""
        probe = path
        while True:
            mount = self._mounts.get(probe)
            if mount is not None:
                return mount, path[len(probe.rstrip("/")) :].lstrip("/")
            if probe == "/":
                return None
            probe = probe.rsplit("/", 1)[0] or "/"

    def below(self, path: str) -> list[str]:
        """Names directly below a path that lead to (nested) mounts."""
        prefix = path.rstrip("/") + "/"
        return sorted(
            {
                at[len(prefix) :].split("/", 1)[0]
                for at in self._mounts
                if at.startswith(prefix) and at != path
            }
        )

    def all(self) -> list[Mount]:
        return [self._mounts[path] for path in sorted(self._mounts)]
