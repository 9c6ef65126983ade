"""What the other nodes of the cluster know and allow of a folder of the upper layer: seen by a session without asking.

Two marks, attributes of the folder. TOLD: the cluster's records say that something was written there. RIGHT: this node
alone makes new names there (O_EXCL, mkdir, link). The node sets and takes them with the layer's lock held; a session
looks at them with the lock held, in the step that changes the folder. Marks count as long as they are of the generation
that a file beside the layer names, and a RIGHT until the time that it says, which the node keeps moving on while the
cluster believes in it.
"""

from __future__ import annotations

import contextlib
import struct

import xxhash

from headrace.base import boot_clock
from headrace.base.beneath import SafePath
from headrace.overlay.shared_page import shared_page

PUBLISHED = "trusted.headrace.told"
LEASED = "trusted.headrace.right"
_STATE = struct.Struct("<QQ")
_FOREVER_S = 1e9


class DirectoryFlags:
    """path: a file beside the layer. Generation 0: there is no cluster, and nobody asks."""

    def __init__(self, path: str) -> None:
        self._map = shared_page(path)

    @property
    def generation(self) -> int:
        return int(_STATE.unpack_from(self._map)[0])

    @property
    def is_on(self) -> bool:
        return self.generation != 0

    def begin(self, generation: int) -> None:
        """All marks of before mean nothing."""
        _STATE.pack_into(self._map, 0, generation, 0)

    def keep_rights(self, until_s: float) -> None:
        """until_s: CLOCK_BOOTTIME, the clock of all processes of a host."""
        _STATE.pack_into(self._map, 0, self.generation, int(min(max(0.0, until_s), _FOREVER_S) * 1e9))

    def is_told(self, at: SafePath, folder: bytes) -> bool:
        """at: where a folder lies. folder: its path in the namespace; a mark that was renamed with it means nothing."""
        return self._has(at, folder, PUBLISHED)

    def has_right(self, at: SafePath, folder: bytes) -> bool:
        return boot_clock.now_ns() < _STATE.unpack_from(self._map)[1] and self._has(at, folder, LEASED)

    def set(self, at: SafePath, folder: bytes, mark: str) -> bool:
        """False where there is no such folder."""
        try:
            at.setxattr(mark, self._value(folder))
        except OSError:
            return False
        return True

    def clear(self, at: SafePath, mark: str) -> None:
        with contextlib.suppress(OSError):
            at.removexattr(mark)

    def close(self) -> None:
        self._map.close()

    def _has(self, at: SafePath, folder: bytes, mark: str) -> bool:
        try:
            return at.getxattr(mark) == self._value(folder)
        except OSError:
            return False

    def _value(self, folder: bytes) -> bytes:
        return b"%x-%x" % (self.generation, xxhash.xxh3_64_intdigest(folder))
