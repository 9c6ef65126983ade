"""What sessions of this host learn of writes: names that mean something else than before."""

from __future__ import annotations

from headrace.dataplane.observers import WriteObserver
from headrace.entry.rpc.server import Subscribers
from headrace.wire.messages import Written

NAMES_A_MESSAGE = 1000


class SessionEvents(WriteObserver):
    """Publish changes of the upper layer to all sessions that follow the node."""

    def __init__(self, subscribers: Subscribers) -> None:
        self._subscribers = subscribers

    def on_changed(self, paths: list[bytes], source: int) -> None:
        for start in range(0, len(paths), NAMES_A_MESSAGE):
            part = paths[start : start + NAMES_A_MESSAGE]
            self._subscribers.publish(Written(paths=part, source=source))

    def on_demoted(self, paths: list[bytes]) -> None:
        self.on_changed(paths, 0)
