"""Define what a queue of events must provide to be received from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.events.changes import EventFormatError, ReportedChanges

ID_CHARACTERS_MAX = 128
"""SQS has up to 100 characters, the others fewer."""


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message of a queue. receipt: by it the queue deletes the message. content: what the message reports, or why it
    is no event. id: the same in each delivery of the message; "" if that can't be said."""

    receipt: str
    content: ReportedChanges | EventFormatError
    id: str = ""


def message_id(text: str) -> str:
    """Return the id that a service gave a message, or "" for one that is too long to be kept."""
    return text if len(text) <= ID_CHARACTERS_MAX else ""


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
