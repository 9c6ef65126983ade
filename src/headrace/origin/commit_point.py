"""Decide whether a put is committed or abandoned by its caller: the first of the two wins."""

from __future__ import annotations

import threading


class AbandonedError(Exception):
    """The caller has abandoned the put."""


class CommitPoint:
    """Decides once whether a put is committed: its thread is about to commit, while its caller may abandon it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._has_begun = False
        self._abandoned = False

    def check(self) -> None:
        """Raise AbandonedError if the caller has abandoned the put."""
        if self._abandoned:
            raise AbandonedError

    def begin(self) -> None:
        """Begin the commit, which the caller can then no longer stop. Raise AbandonedError if the caller has abandoned
        the put."""
        with self._lock:
            self.check()
            self._has_begun = True

    def abandon(self) -> None:
        """Discard the put, unless its commit has begun. Never blocks for long."""
        with self._lock:
            self._abandoned = not self._has_begun
