"""Warns of a failure that is tried again and again without filling stderr."""

from __future__ import annotations

from headrace.cli.render import warn


class RepeatedFailure:
    """Warns once for each reason in a row, and again after a success."""

    def __init__(self) -> None:
        self._reason = ""

    def report(self, reason: str, line: str = "") -> None:
        """Warn of a failure, unless it has the reason of the last one. line: to print in place of the reason."""
        if reason != self._reason:
            self._reason = reason
            warn(line or reason)

    def end(self) -> None:
        """Note a success."""
        self._reason = ""
