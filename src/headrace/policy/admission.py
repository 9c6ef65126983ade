"""Admit a file to the cache at its second read within a window, so that a scan writes nothing to flash.

The ghost list has a fingerprint and a time of each first read, in a table of a fixed size: 8 bytes a file. A full
bucket forgets its oldest read.
"""

from __future__ import annotations

from array import array

from headrace.base.model import FileId
from headrace.policy.id_hash import hash_of

_WAYS = 8
_FINGERPRINT_MAX = 0xFFFF_FFFF


class SecondReads:
    """Remember the first reads of about `count` files for a window of seconds. The caller passes the time, which begins
    at `start_s` and lasts 136 years at most."""

    def __init__(self, count: int, *, window_s: float, start_s: float = 0) -> None:
        self._buckets = max(1, -(-count // _WAYS))
        self._fingerprints = array("I")  # 0: the slot is empty
        self._read_at_s = array("I")
        self._window_s, self._start_s = window_s, start_s

    def is_second(self, id: FileId, now_s: float) -> bool:
        """Record a read of a file that is not cached. Return whether it is the second one, and forget the file then.

        Two files are taken for each other once in 500 million reads.
        """
        if not self._fingerprints:
            self._make_table()
        second = int(now_s - self._start_s)
        bucket, fingerprint = divmod(hash_of(id), _FINGERPRINT_MAX)
        fingerprint += 1
        first = bucket % self._buckets * _WAYS
        slots = self._fingerprints[first : first + _WAYS]
        if fingerprint in slots:
            slot = first + slots.index(fingerprint)
            is_recent = second - self._read_at_s[slot] <= self._window_s
            self._fingerprints[slot] = 0 if is_recent else fingerprint
            self._read_at_s[slot] = 0 if is_recent else second
            return is_recent
        times = self._read_at_s[first : first + _WAYS]
        slot = first + times.index(min(times))
        self._fingerprints[slot], self._read_at_s[slot] = fingerprint, second
        return False

    def _make_table(self) -> None:
        """Make the table at the first read. Most nodes have no rule that needs it, and it takes megabytes."""
        empty = bytes(4 * _WAYS * self._buckets)
        self._fingerprints, self._read_at_s = array("I", empty), array("I", empty)
