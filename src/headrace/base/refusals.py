"""Logs who was refused: one line each, never a secret, and only so many lines a minute whoever knocks how often."""

from __future__ import annotations

import logging
import threading
import time

LINES_A_MINUTE = 20
WORD_CHARACTERS_MAX = 128


class Refusals:
    """The refusals of one interface. Thread-safe. log: of the module whose name the lines bear."""

    def __init__(self, log: logging.Logger, interface: str) -> None:
        self._log = log
        self._interface = interface
        self._lock = threading.Lock()
        self._begun_s = float("-inf")
        self._lines = 0
        self._left_out = 0

    def add(self, why: str, *, address: str, who: str = "") -> None:
        """address: of the client. who: what it said of itself: a key's id, a certificate's name; not to be believed."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._begun_s >= 60.0:
                self._begun_s, self._lines = now_s, 0
            if self._lines >= LINES_A_MINUTE:
                self._left_out += 1
                return
            self._lines += 1
            left_out, self._left_out = self._left_out, 0
        self._log.warning(
            "refused interface=%s address=%s who=%s why=%s not_logged_before=%d",
            self._interface,
            address or "-",
            _word(who) or "-",
            _word(why),
            left_out,
        )


def _word(text: str) -> str:
    return text if len(text) <= WORD_CHARACTERS_MAX else text[:WORD_CHARACTERS_MAX] + "…"
