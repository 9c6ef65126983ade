"""Follow the events of a node in a thread, also across restarts of the node."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from headrace.base.errors import CancelledByUserError, HeadraceError, NodeUnavailableError
from headrace.client.connection import RECONNECT_PAUSE_S, Connections
from headrace.wire.messages import Answer, Subscribe

log = logging.getLogger(__name__)

TROUBLE_PAUSE_S = 1.0


class EventsLost:
    """Reports that earlier events may be lost. The receiver has to look up what they would have reported."""


class EventStream:
    """Passes the node's events to `on_event`, and EventsLost first after the node was down. is_closed: called before
    each reconnection; the thread ends when it returns True. on_subscribed: called each time when the subscription was
    sent."""

    def __init__(
        self,
        connections: Connections,
        on_event: Callable[[Answer | EventsLost], None],
        is_closed: Callable[[], bool],
        on_subscribed: Callable[[], None] = lambda: None,
    ) -> None:
        self._connections = connections
        self._on_event = on_event
        self._is_closed = is_closed
        self._on_subscribed = on_subscribed

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True, name="events").start()

    def _run(self) -> None:
        first = True
        while not self._is_closed():
            try:
                connection = self._connections.acquire()
                connection.send(Subscribe())
                self._on_subscribed()
                if not first:
                    self._on_event(EventsLost())
                first = False
                while True:
                    self._on_event(connection.receive())
            except (NodeUnavailableError, CancelledByUserError):
                time.sleep(RECONNECT_PAUSE_S)
            except HeadraceError as error:  # without events a session would serve stale names silently
                log.warning("the event stream broke, subscribing again error=%s", error)
                time.sleep(TROUBLE_PAUSE_S)
