"""Follow the events of a node in a thread, also across restarts of the node."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import closing

from headrace.base.cancel import Cancel
from headrace.base.errors import CancelledByUserError, HeadraceError, NodeUnavailableError
from headrace.client.connection import RECONNECT_PAUSE_S, Connection, Connections
from headrace.wire.messages import Answer, Subscribe

log = logging.getLogger(__name__)

TROUBLE_PAUSE_S = 1.0


class EventsLost:
    """Reports that earlier events may be lost. The receiver has to look up what they would have reported."""


class EventStream:
    """Passes the node's events to `on_event`, and EventsLost first after the node was down. on_subscribed: called each
    time when the subscription was sent."""

    def __init__(
        self,
        connections: Connections,
        on_event: Callable[[Answer | EventsLost], None],
        on_subscribed: Callable[[], None] = lambda: None,
    ) -> None:
        self._connections = connections
        self._on_event = on_event
        self._on_subscribed = on_subscribed
        self._ended = Cancel()
        self._is_first = True

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True, name="events").start()

    def close(self) -> None:
        """Let the thread close its connection and end. Does not wait for it: `on_event` may be running."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                with closing(self._connections.acquire(self._ended)) as connection:
                    self._follow(connection)
            except (NodeUnavailableError, CancelledByUserError):
                self._ended.wait(RECONNECT_PAUSE_S)
            except HeadraceError as error:  # without events a session would serve stale names silently
                log.warning("the event stream broke, subscribing again error=%s", error)
                self._ended.wait(TROUBLE_PAUSE_S)
        self._ended.close()

    def _follow(self, connection: Connection) -> None:
        connection.send(Subscribe())
        self._on_subscribed()
        if not self._is_first:
            self._on_event(EventsLost())
        self._is_first = False
        while True:
            self._on_event(connection.receive(cancel=self._ended))
