"""Share the present delay of writers: a number in shared memory that the node writes and every session reads.

When uploads fall behind, a process that creates files waits a little each time. It gets no error.
"""

from __future__ import annotations

from headrace.overlay.shared_page import shared_page

PAUSE_S_MAX = 0.25
"""Longest pause of a writer, in seconds."""


class DirtyThrottle:
    """Hold the throttle of one upper layer. path: a file beside the layer."""

    def __init__(self, path: str) -> None:
        self._page = shared_page(path)

    @property
    def pause_s(self) -> float:
        """Return the pause for each file that is created or closed."""
        return self._page[0] / 1000

    def set(self, waiting_bytes: int, limit_bytes: int) -> None:
        """Set the pause from the bytes that are not persisted yet: none up to half of the limit, the longest at the
        limit."""
        share = (waiting_bytes / max(1, limit_bytes) - 0.5) * 2
        self._page[0] = int(1000 * PAUSE_S_MAX * min(1.0, max(0.0, share)))

    def close(self) -> None:
        self._page.release()
