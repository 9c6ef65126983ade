"""How much writers are slowed down: a number that the node writes and every session reads, in shared memory.

Where persisting falls behind, the makers of files wait a little, each time; they are not refused.
"""

from __future__ import annotations

import struct

from headrace.overlay.shared_page import shared_page

_PAUSE = struct.Struct("<I")
PAUSE_S_MAX = 0.25


class DirtyThrottle:
    """path: a file beside the layer."""

    def __init__(self, path: str) -> None:
        self._map = shared_page(path)

    @property
    def pause_s(self) -> float:
        """For each file that is made or closed."""
        return float(_PAUSE.unpack_from(self._map)[0]) / 1000

    def set(self, waiting_bytes: int, limit_bytes: int) -> None:
        """waiting_bytes: not yet persisted. Nothing up to half of the limit, the longest pause at all of it."""
        share = (waiting_bytes / max(1, limit_bytes) - 0.5) * 2
        _PAUSE.pack_into(self._map, 0, int(1000 * PAUSE_S_MAX * min(1.0, max(0.0, share))))

    def close(self) -> None:
        self._map.close()
