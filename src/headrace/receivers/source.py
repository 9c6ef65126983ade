"""Define what a queue of events must provide to be received from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.events.changes import EventFormatError, ReportedChanges


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message of a queue. receipt: by it the queue deletes the message. content: what the message reports, or why it
    is no event."""

    receipt: str
    content: ReportedChanges | EventFormatError


class EventQueue(Protocol):
    """A queue into which an origin puts events. A message that is not deleted is delivered again. Calls raise
    HeadraceError, and can be cancelled."""

    async def receive(self) -> Sequence[QueuedMessage]:
        """Wait for messages, RECEIVE_WAIT_S at most. Return none if there were none."""
        ...

    async def delete(self, messages: Sequence[QueuedMessage]) -> None:
        """Delete messages that were handled."""
        ...

    async def close(self) -> None: ...
