"""Answers whose bodies have no end, as a hostile server sends them."""

from __future__ import annotations

import contextlib
from typing import ClassVar

from tests.unit.origin.stand_in_store import StandInHandler

PIECE = bytes(1 << 20)
SENT_MAX = 256
"""Pieces that the server would send. Buffers of sockets and of the client take a few."""


class EndlessHandler(StandInHandler):
    """Sends `claimed` bytes after its head, in pieces, until the client leaves."""

    pieces_sent: ClassVar[int] = 0
    claimed: ClassVar[int] = 1 << 40

    def send_body(self) -> bool:
        """Send the body after the head. Return whether it had an end."""
        type(self).pieces_sent = 0
        with contextlib.suppress(OSError):
            for _ in range(SENT_MAX):
                self.wfile.write(PIECE[: self.claimed])
                type(self).pieces_sent += 1
                if self.claimed <= len(PIECE):
                    return True
        return False
