"""Report changed names and paths to the sessions of this host."""

from __future__ import annotations

from headrace.base.model import FileId
from headrace.entry.rpc.server import Subscribers
from headrace.wire.messages import Invalidated, Written
from headrace.writeback.observers import WriteObserver

NAMES_A_MESSAGE = 1000


class SessionEvents(WriteObserver):
    """Publishes changes to all sessions that subscribed to the node's events."""

    def __init__(self, subscribers: Subscribers) -> None:
        self._subscribers = subscribers

    def on_changed(self, paths: list[bytes], source: int) -> None:
        for start in range(0, len(paths), NAMES_A_MESSAGE):
            part = paths[start : start + NAMES_A_MESSAGE]
            self._subscribers.publish(Written(paths=part, source=source))

    def invalidate(self, names: list[tuple[FileId, bytes]]) -> None:
        """Have kernels forget (parent, name) pairs whose meaning changed."""
        for start in range(0, len(names), NAMES_A_MESSAGE):
            batch = names[start : start + NAMES_A_MESSAGE]
            self._subscribers.publish(Invalidated(names=[(int(parent), name) for parent, name in batch]))

    def on_demoted(self, paths: list[bytes]) -> None:
        self.on_changed(paths, 0)
