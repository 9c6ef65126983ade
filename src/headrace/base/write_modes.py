"""The write mode of each path of the namespace. Values only."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import NamedTuple

from headrace.base.errors import UsageError


class WriteMode(StrEnum):
    """The way a path is written. off: read-only. local: files never leave this node's disk. back: the node persists
    files to the origin in the background. through: the origin has a file before close returns."""

    OFF = "off"
    LOCAL = "local"
    BACK = "back"
    THROUGH = "through"


EXCLUSIVE = "exclusive"
"""Follows the mode of a directory that programs of this node write without a session."""
EXCLUSIVE_MODES = (WriteMode.LOCAL, WriteMode.BACK)


class _Promise(NamedTuple):
    mode: WriteMode
    copies: int = 1
    is_exclusive: bool = False

    @classmethod
    def parse(cls, text: str) -> _Promise:
        mode, colon, number = text.partition(":")
        copies = int(number) if colon and number.isdecimal() and len(number) < 3 else 0 if colon else 1
        if mode not in tuple(WriteMode) or not copies or (copies > 1 and mode != WriteMode.BACK):
            raise UsageError(
                f"write mode {text!r}",
                why="unknown",
                hint=f"one of {', '.join(WriteMode)}, back:2 for two copies, or PATH=MODE",
            )
        return cls(WriteMode(mode), copies)

    @property
    def waits(self) -> bool:
        return self.mode is WriteMode.THROUGH or self.copies > 1

    def made_exclusive(self, path: bytes) -> _Promise:
        """Return the promise of an exclusive directory. Raises UsageError where there can be none."""
        if path == b"/":
            raise UsageError(
                "write mode 'exclusive'",
                why="it is for one directory, not for the whole namespace",
                hint="name one, for example /scratch=local,exclusive",
            )
        if self.mode not in EXCLUSIVE_MODES or self.copies > 1:
            raise UsageError(
                f"write mode {self.text()!r} of {os.fsdecode(path)}",
                why="no session sees the writes of an exclusive directory, so no close can wait",
                hint=f"exclusive directories can be {' or '.join(EXCLUSIVE_MODES)}",
            )
        return self._replace(is_exclusive=True)

    def text(self) -> str:
        mode = f"{self.mode}:{self.copies}" if self.copies > 1 else str(self.mode)
        return f"{mode},{EXCLUSIVE}" if self.is_exclusive else mode


_SLASH = 0x2F
LONG_BYTES = 255
"""Bytes after which a path is cut to the depth of the configured paths before the search."""


class WriteModes:
    """The modes by path; the longest prefix wins. Immutable."""

    def __init__(self, promises: dict[bytes, _Promise]) -> None:
        self._promises = promises
        self._only = next(iter(promises.values())) if len(promises) == 1 else None
        """The promise of all paths, if there is one for all: each creation of a file asks several times."""
        self.any = any(promise.mode is not WriteMode.OFF for promise in promises.values())
        """True if anything at all can be written."""
        self.any_waits = any(promise.waits for promise in promises.values())
        self.exclusive_tops = [path for path, promise in promises.items() if promise.is_exclusive]
        """The exclusive directories."""
        self.copies_max = max(promise.copies for promise in promises.values())
        self._depth_max = max(path.count(b"/") for path in promises)
        self._above_written = {
            top[:end] or b"/" for top in self.tops() for end, byte in enumerate(top) if byte == _SLASH
        }

    @classmethod
    def parse(cls, text: str) -> WriteModes:
        """Parse `back`, or `off,/scratch=local,exclusive,/checkpoints=back:2`: a mode for all paths, and modes of
        single paths with everything below them. Raises UsageError."""
        promises, last = {b"/": _Promise(WriteMode.OFF)}, b"/"
        for part in filter(None, (part.strip() for part in text.split(","))):
            if part == EXCLUSIVE:
                promises[last] = promises[last].made_exclusive(last)
                continue
            path, equals, mode = part.rpartition("=")
            promise = _Promise.parse(mode)
            if equals and (not path.startswith("/") or any(name in (".", "..") for name in path.split("/"))):
                raise UsageError(f"write mode of {path!r}", why="the path must be absolute, without . and ..")
            last = _normal(path.encode(errors="surrogateescape"))
            promises[last] = promise
        modes = cls(promises)
        modes._check_exclusive()
        return modes

    def _check_exclusive(self) -> None:
        for path in self._promises:
            top = next((top for top in self.exclusive_tops if path.startswith(top + b"/")), None)
            if top is not None:
                raise UsageError(
                    f"write mode of {os.fsdecode(path)}",
                    why=f"it lies in the exclusive directory {os.fsdecode(top)}, which has one mode",
                    hint="leave it out, or choose directories of which none lies in another",
                )

    def of(self, path: bytes) -> WriteMode:
        """Return the mode of a path. path: absolute, normal (b"/a/b")."""
        return self._promise(path).mode

    def copies(self, path: bytes) -> int:
        """Return the number of nodes that have a written file before close returns; 1: only this one."""
        return self._promise(path).copies

    def waits(self, path: bytes) -> bool:
        """Return whether close waits for more than this node's disk."""
        return self._promise(path).waits

    def is_exclusive(self, path: bytes) -> bool:
        """Return whether a path is an exclusive directory or lies in one."""
        return bool(self.exclusive_tops) and self._promise(path).is_exclusive

    def takes_changes(self, path: bytes) -> bool:
        """Return whether sessions, gateways and the library may change a path. In an exclusive directory only programs
        may that use the mount."""
        promise = self._promise(path)
        return promise.mode is not WriteMode.OFF and not promise.is_exclusive

    def _promise(self, path: bytes) -> _Promise:
        if self._only is not None:
            return self._only
        probe = path or b"/"
        if len(probe) > LONG_BYTES:  # a path of hundreds of names is cut to the depth of the configured ones
            probe = b"/".join(probe.split(b"/", self._depth_max + 1)[: self._depth_max + 1])
        while True:
            promise = self._promises.get(probe)
            if promise is not None:
                return promise
            probe = probe.rpartition(b"/")[0] or b"/"

    def any_below(self, directory: bytes) -> bool:
        """Return whether anything at or below a directory can be written."""
        return (
            self.of(directory) is not WriteMode.OFF or (directory.rstrip(b"/") or b"/") in self._above_written
        )

    def first_written(self, path: bytes) -> bytes | None:
        """Return the shortest beginning of a path that can be written; None: neither it nor a directory above can."""
        end = 0
        while end >= 0:
            end = path.find(b"/", end + 1)
            beginning = path if end < 0 else path[:end]
            if self.of(beginning) is not WriteMode.OFF:
                return beginning
            if beginning not in self._above_written:
                return None
        return None

    def persists_below(self, directory: bytes) -> bool:
        """Return whether files written at or below a directory are persisted."""
        prefix = directory.rstrip(b"/") + b"/"
        persisted = (WriteMode.BACK, WriteMode.THROUGH)
        return self.of(directory) in persisted or any(
            path.startswith(prefix) and promise.mode in persisted for path, promise in self._promises.items()
        )

    def persists_shared_below(self, directory: bytes) -> bool:
        """Return whether files written at or below a directory are persisted, exclusive directories aside."""
        prefix = directory.rstrip(b"/") + b"/"
        promises = [promise for path, promise in self._promises.items() if path.startswith(prefix)]
        persisted = (WriteMode.BACK, WriteMode.THROUGH)
        return any(
            promise.mode in persisted and not promise.is_exclusive
            for promise in (self._promise(directory), *promises)
        )

    def tops(self) -> list[bytes]:
        """Return the configured paths that can be written."""
        return [path for path, promise in self._promises.items() if promise.mode is not WriteMode.OFF]

    def text(self) -> str:
        """Return the text that `parse` turns into the same modes."""
        parts = [self._promises[b"/"].text()]
        parts += [
            f"{path.decode(errors='surrogateescape')}={promise.text()}"
            for path, promise in sorted(self._promises.items())
            if path != b"/"
        ]
        return ",".join(parts)


def _normal(path: bytes) -> bytes:
    return b"/" + b"/".join(part for part in path.split(b"/") if part)
