"""Where writes go: the mode of each path of the namespace. Values only."""

from __future__ import annotations

from enum import StrEnum

from headrace.base.errors import UsageError


class WriteMode(StrEnum):
    """off: read-only. local: never leaves this node's disk. back: persisted to the origin in the background.
    through: the origin has it before close returns."""

    OFF = "off"
    LOCAL = "local"
    BACK = "back"
    THROUGH = "through"


class WriteModes:
    """Longest prefix wins. Immutable."""

    def __init__(self, modes: dict[bytes, WriteMode]) -> None:
        self._modes = modes
        self.any = any(mode is not WriteMode.OFF for mode in modes.values())
        """Whether anything at all can be written."""
        self.any_through = WriteMode.THROUGH in modes.values()

    @classmethod
    def parse(cls, text: str) -> WriteModes:
        """`back`, or `off,/scratch=local,/checkpoints=through`: a mode for all, and modes of single paths with all
        below them. UsageError."""
        modes: dict[bytes, WriteMode] = {b"/": WriteMode.OFF}
        for part in filter(None, (part.strip() for part in text.split(","))):
            path, equals, word = part.rpartition("=")
            if word not in tuple(WriteMode):
                raise UsageError(
                    f"write mode {word!r}", why="unknown", hint=f"one of {', '.join(WriteMode)}, or PATH=MODE"
                )
            if equals and (not path.startswith("/") or any(one in (".", "..") for one in path.split("/"))):
                raise UsageError(f"write mode of {path!r}", why="the path must be absolute, without . and ..")
            modes[_normal(path.encode())] = WriteMode(word)
        return cls(modes)

    def of(self, path: bytes) -> WriteMode:
        """path: absolute, normal (b"/a/b")."""
        probe = path or b"/"
        while True:
            mode = self._modes.get(probe)
            if mode is not None:
                return mode
            probe = probe.rpartition(b"/")[0] or b"/"

    def any_below(self, directory: bytes) -> bool:
        """Whether something at or below a directory can be written."""
        prefix = directory.rstrip(b"/") + b"/"
        return self.of(directory) is not WriteMode.OFF or any(
            path.startswith(prefix) and mode is not WriteMode.OFF for path, mode in self._modes.items()
        )

    def persists_below(self, directory: bytes) -> bool:
        """Whether something written at or below a directory goes to an origin."""
        prefix = directory.rstrip(b"/") + b"/"
        persisted = (WriteMode.BACK, WriteMode.THROUGH)
        return self.of(directory) in persisted or any(
            path.startswith(prefix) and mode in persisted for path, mode in self._modes.items()
        )

    def tops(self) -> list[bytes]:
        """The paths that were named as ones to write to."""
        return [path for path, mode in self._modes.items() if mode is not WriteMode.OFF]

    def text(self) -> str:
        """What `parse` makes the same modes of."""
        parts = [str(self._modes[b"/"])]
        parts += [
            f"{path.decode(errors='surrogateescape')}={mode}"
            for path, mode in sorted(self._modes.items())
            if path != b"/"
        ]
        return ",".join(parts)


def _normal(path: bytes) -> bytes:
    return b"/" + b"/".join(part for part in path.split(b"/") if part)
