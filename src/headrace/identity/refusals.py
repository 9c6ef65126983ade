"""One line in the log for who was refused, however often he comes."""

from __future__ import annotations

import logging
import ssl
import threading
import time

log = logging.getLogger(__name__)

EVERY_S = 60.0
ADDRESSES_MAX = 1024


class Refusals:
    """door: who refuses, for the log. Any thread."""

    def __init__(self, door: str, *, every_s: float = EVERY_S) -> None:
        self._door = door
        self._every_s = every_s
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], tuple[float, int]] = {}

    def note(self, address: str, why: str) -> None:
        """Log it, once a minute for each host and reason. address: HOST:PORT."""
        host, now_s = address.rpartition(":")[0] or address, time.monotonic()
        with self._lock:
            logged_s, more = self._last.get((host, why), (float("-inf"), 0))
            if now_s - logged_s < self._every_s:
                self._last[host, why] = logged_s, more + 1
                return
            if len(self._last) >= ADDRESSES_MAX:
                self._last.clear()
            self._last[host, why] = now_s, 0
        log.warning("refused by=%s peer=%s why=%s before=%d", self._door, address, why, more)


def reason_of(error: ssl.SSLError) -> str:
    """Why a handshake failed, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not taken: {error.verify_message}"
    return f"no TLS connection: {(error.reason or str(error)).replace('_', ' ').lower()}"
