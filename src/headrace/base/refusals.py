"""Log refused clients: never a secret, one line a minute for each host and reason, and a limited number of lines in
all."""

from __future__ import annotations

import logging
import ssl
import threading
import time

from headrace.base.clock import Clock

LINES_A_MINUTE = 20
WORD_CHARACTERS_MAX = 128


class Refusals:
    """The refusals of one interface. Thread-safe. log: of the module that the lines name."""

    def __init__(self, log: logging.Logger, interface: str, *, clock: Clock = time.monotonic) -> None:
        self._log = log
        self._interface = interface
        self._clock = clock
        self._lock = threading.Lock()
        self._begun_s = float("-inf")
        self._logged: set[tuple[str, str, str]] = set()
        self._left_out = 0

    def add(self, why: str, *, address: str, who: str = "") -> None:
        """Log a refusal. address: of the client, with its port or without. who: the identity that the client claims,
        such as a key's id or a certificate's name; it is not verified."""
        why, who = _word(why), _word(who)
        refusal = address.rpartition(":")[0] or address, why, who
        with self._lock:
            now_s = self._clock()
            if now_s - self._begun_s >= 60.0:
                self._begun_s = now_s
                self._logged.clear()
            if refusal in self._logged or len(self._logged) >= LINES_A_MINUTE:
                self._left_out += 1
                return
            self._logged.add(refusal)
            left_out, self._left_out = self._left_out, 0
        self._log.warning(
            "refused interface=%s address=%s who=%s why=%s not_logged_before=%d",
            self._interface,
            address or "-",
            who or "-",
            why,
            left_out,
        )


def reason_of(error: ssl.SSLError) -> str:
    """Return in a few words why a handshake failed; "" if the other side left."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not taken: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return ""
    return f"no TLS connection: {(error.reason or str(error)).replace('_', ' ').lower()}"


def _word(text: str) -> str:
    return text if len(text) <= WORD_CHARACTERS_MAX else text[:WORD_CHARACTERS_MAX] + "…"
