"""Remember messages by their ids: a queue delivers a message again that is handled for longer than its visibility
timeout, or that could not be deleted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.receivers.source import QueuedMessage

HANDLED_MAX = 4096
"""Most messages that are remembered after they were handled. One that is forgotten is handled again."""


class Deliveries:
    """The messages that are handled now, and the last that were. A message without an id counts as new each time."""

    def __init__(self) -> None:
        self._last_receipts: dict[str, str] = {}  # of the messages that are handled now
        self._handled: dict[str, None] = {}

    def begin(self, messages: Sequence[QueuedMessage]) -> tuple[list[QueuedMessage], list[QueuedMessage]]:
        """Return the messages to handle, and those that were handled and need only be deleted. All others are handled
        at the moment."""
        fresh, handled = [], []
        for message in messages:
            if message.id in self._last_receipts:
                self._last_receipts[message.id] = message.receipt
            elif message.id in self._handled:
                handled.append(message)
            else:
                fresh.append(message)
                if message.id:
                    self._last_receipts[message.id] = message.receipt
        return fresh, handled

    def end(self, messages: Sequence[QueuedMessage], *, are_handled: bool) -> list[QueuedMessage]:
        """Return messages with the receipts of their last deliveries: some services delete by no other. Messages that
        were not handled are new when they are delivered again."""
        last = []
        for message in messages:
            last.append(replace(message, receipt=self._last_receipts.pop(message.id, message.receipt)))
            if are_handled and message.id:
                self._handled[message.id] = None
        while len(self._handled) > HANDLED_MAX:
            del self._handled[next(iter(self._handled))]
        return last
