"""Order a put's commit and its caller's abandonment: whichever comes first decides."""

from __future__ import annotations

import threading


class GivenUpError(Exception):
    """Raised out of a put whose caller has abandoned it."""


class CommitPoint:
    """Decides once whether a put takes place: its thread is about to commit, while its caller may abandon it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._given_up = False

    def check(self) -> None:
        """Raise GivenUpError if the caller has abandoned the put."""
        if self._given_up:
            raise GivenUpError

    def take(self) -> None:
        """Take the decision to commit: from now on the put takes place. Raise GivenUpError if the caller came
        first."""
        with self._lock:
            self.check()
            self._taken = True

    def give_up(self) -> None:
        """Give the put up, unless its commit has begun."""
        with self._lock:
            self._given_up = not self._taken
