"""Keep the inode numbers of files that the node removed from the upper layer, while a kernel may still know them.

A session's node id is an inode number. The kernel uses a name for UPPER_TTL_S, and may take a lookup's answer some time
after it was sent. A new file of the same number would then be read under the old name.
docs/decisions/0080-inode-numbers-come-back.md
"""

from __future__ import annotations

import asyncio
import os

KEPT_S = 5.0
"""Seconds for which a number is kept."""
FILES_MAX = 4096
"""Most files that are kept open. Of more, the oldest is closed early."""


class RetiredInodes:
    """Holds removed files open. All calls run on the node's loop."""

    def __init__(self) -> None:
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def keep(self, fd: int) -> None:
        """Close a file after KEPT_S."""
        if len(self._timers) >= FILES_MAX:
            self._close(next(iter(self._timers)))
        self._timers[fd] = asyncio.get_running_loop().call_later(KEPT_S, self._close, fd)

    def close(self) -> None:
        """Close all files: the node ends, and a killed one would close them, too."""
        for fd in [*self._timers]:
            self._close(fd)

    def _close(self, fd: int) -> None:
        self._timers.pop(fd).cancel()
        os.close(fd)
