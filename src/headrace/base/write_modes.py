"""The write mode of each path of the namespace. Values only."""

from __future__ import annotations

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


class _Promise(NamedTuple):
    mode: WriteMode
    copies: int = 1

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

    def text(self) -> str:
        return f"{self.mode}:{self.copies}" if self.copies > 1 else str(self.mode)


_SLASH = 0x2F
LONG_BYTES = 255
"""A path longer than this is cut to the depth of the configured paths before the search."""


class WriteModes:
    """The modes by path; the longest prefix wins. Immutable."""

    def __init__(self, promises: dict[bytes, _Promise]) -> None:
        self._promises = promises
        self.any = any(promise.mode is not WriteMode.OFF for promise in promises.values())
        """Whether anything at all can be written."""
        self.any_waits = any(promise.waits for promise in promises.values())
        self.copies_max = max(promise.copies for promise in promises.values())
        self._depth_max = max(path.count(b"/") for path in promises)
        self._above_written = {
            top[:end] or b"/" for top in self.tops() for end, byte in enumerate(top) if byte == _SLASH
        }

    @classmethod
    def parse(cls, text: str) -> WriteModes:
        """Parse `back`, or `off,/scratch=local,/checkpoints=back:2`: a mode for all paths, and modes of single paths
        with everything below them. UsageError."""
        promises = {b"/": _Promise(WriteMode.OFF)}
        for part in filter(None, (part.strip() for part in text.split(","))):
            path, equals, mode = part.rpartition("=")
            promise = _Promise.parse(mode)
            if equals and (not path.startswith("/") or any(name in (".", "..") for name in path.split("/"))):
                raise UsageError(f"write mode of {path!r}", why="the path must be absolute, without . and ..")
            promises[_normal(path.encode(errors="surrogateescape"))] = promise
        return cls(promises)

    def of(self, path: bytes) -> WriteMode:
        """Return the mode of a path. path: absolute, normal (b"/a/b")."""
        return self._promise(path).mode

    def copies(self, path: bytes) -> int:
        """Return how many nodes have a written file before close returns; 1: this one."""
        return self._promise(path).copies

    def waits(self, path: bytes) -> bool:
        """Return whether close waits for more than this node's disk."""
        return self._promise(path).waits

    def _promise(self, path: bytes) -> _Promise:
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
