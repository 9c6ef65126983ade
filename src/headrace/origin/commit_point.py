"""Between the thread that makes a put and the caller that may leave: which of the two comes first."""

from __future__ import annotations

import threading


class GivenUpError(Exception):
    """Out of a put whose caller has gone."""


class CommitPoint:
    """Whether a put takes place: decided once, between its thread, which is about to, and its caller, who leaves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._given_up = False

    def check(self) -> None:
        if self._given_up:
            raise GivenUpError

    def take(self) -> None:
        """From now on it takes place."""
        with self._lock:
            self.check()
            self._taken = True

    def give_up(self) -> None:
        """It won't take place, unless it is just doing so."""
        with self._lock:
            self._given_up = not self._taken
