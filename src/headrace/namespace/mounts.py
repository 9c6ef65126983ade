"""Map each prefix of the namespace to the origin that answers for it. The longest prefix wins."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from headrace.base.errors import PathExistsError, PathNotFoundError, UsageError
from headrace.base.listeners import Listeners
from headrace.origin.circuit import Circuit
from headrace.origin.origin import Origin


@dataclass(frozen=True, slots=True)
class Mount:
    """An origin attached to the namespace.

    `path` is "/" or like "/a/b". `sync_interval_s` is the age at which a listing is fetched from the origin again.
    `circuit` is the circuit breaker of the origin.
    """

    path: str
    url: str
    origin: Origin
    sync_interval_s: float
    circuit: Circuit = field(default_factory=Circuit)


MOUNT_PATH_BYTES_MAX = 511
"""Bytes of the longest key of the index."""


def normal_path(path: str) -> str:
    """Return the path without double or trailing slashes. Raise UsageError if it is relative, has dot components, or
    is too long."""
    parts = [part for part in path.split("/") if part]
    if not path.startswith("/") or any(part in (".", "..") for part in parts):
        raise UsageError(
            f"mount path {path!r}",
            why="it is not absolute, or has a component . or ..",
            hint="use a path like /imagenet",
        )
    normalized = "/" + "/".join(parts)
    if len(os.fsencode(normalized)) > MOUNT_PATH_BYTES_MAX or "\0" in normalized:
        raise UsageError(
            f"mount path {path[:80]!r}…",
            why=f"it is longer than {MOUNT_PATH_BYTES_MAX} bytes or contains a NUL",
        )
    return normalized


def _depth_of(path: str) -> int:
    return len(path.strip("/").split("/")) if path != "/" else 0


class MountTable:
    """The mounts of a node, by path."""

    def __init__(self) -> None:
        self._mounts: dict[str, Mount] = {}
        self._depth = 0
        """Names of the deepest mount's path."""
        self.changed: Listeners[[]] = Listeners()
        """Called after a mount was added or removed."""

    @property
    def count(self) -> int:
        return len(self._mounts)

    def add(self, mount: Mount) -> None:
        if mount.path in self._mounts:
            raise PathExistsError(
                f"mount {mount.path}",
                why=f"{self._mounts[mount.path].url} is attached at this path",
                hint="remove that mount first",
            )
        self._mounts[mount.path] = mount
        self._depth = max(map(_depth_of, self._mounts))
        self.changed()

    def remove(self, path: str) -> Mount:
        if path not in self._mounts:
            raise PathNotFoundError(
                f"mount {path}", why="no origin is attached at this path", hint="see `headrace mount list`"
            )
        mount = self._mounts.pop(path)
        self._depth = max(map(_depth_of, self._mounts), default=0)
        self.changed()
        return mount

    def find(self, path: str | bytes) -> tuple[Mount, str] | None:
        """Return the mount that answers for a path, and the key below its origin; None above all mounts."""
        path = os.fsdecode(path)
        # a path may be hundreds of names deep, and no mount is
        probe = "/".join(path.split("/", self._depth + 1)[: self._depth + 1]) or "/"
        while True:
            mount = self._mounts.get(probe)
            if mount is not None:
                return mount, path[len(probe.rstrip("/")) :].lstrip("/")
            if probe == "/":
                return None
            probe = probe.rsplit("/", 1)[0] or "/"

    def below(self, path: str | bytes) -> set[bytes]:
        """Return the names directly below a path that lead to (nested) mounts."""
        top = os.fsdecode(path)
        prefix = top.rstrip("/") + "/"
        return {
            os.fsencode(mount_path[len(prefix) :].split("/", 1)[0])
            for mount_path in self._mounts
            if mount_path.startswith(prefix) and mount_path != top
        }

    def all(self) -> list[Mount]:
        return [self._mounts[path] for path in sorted(self._mounts)]
