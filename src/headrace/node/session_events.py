"""Report changed paths of the upper layer to the sessions of this host."""

from __future__ import annotations

from headrace.entry.rpc.server import Subscribers
from headrace.wire.messages import Written
from headrace.writeback.observers import WriteObserver

NAMES_A_MESSAGE = 1000


class SessionEvents(WriteObserver):
    """Publishes changed paths of the upper layer to all sessions that subscribed to the node's events."""

    def __init__(self, subscribers: Subscribers) -> None:
        self._subscribers = subscribers

    def on_changed(self, paths: list[bytes], source: int) -> None:
        for start in range(0, len(paths), NAMES_A_MESSAGE):
            part = paths[start : start + NAMES_A_MESSAGE]
            self._subscribers.publish(Written(paths=part, source=source))

    def on_demoted(self, paths: list[bytes]) -> None:
        self.on_changed(paths, 0)
