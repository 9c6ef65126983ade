"""Check whether the node answers. Requests for it need no token, so many of them must not hold many threads."""

from __future__ import annotations

import threading

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, NodeUnavailableError
from headrace.client.connection import Connection
from headrace.rest.waiters import Waiters
from headrace.wire.messages import MountList

READY_LIMIT_S = 2.0
"""Seconds after which a node that does not answer is not ready."""


class Readiness:
    """Checks the node at a socket, in one thread at a time. Thread-safe."""

    def __init__(self, node_socket: str) -> None:
        self._node_socket = node_socket
        self._checking = threading.Lock()
        self._waiters = Waiters()
        self._checks = 0
        self._trouble = "no check has ended yet"

    def check(self, limit_s: float = READY_LIMIT_S) -> None:
        """Check that the node answers within `limit_s`, or wait for the outcome of a check that runs. If too many
        requests wait, take that of the last one. Raises NodeUnavailableError."""
        checks = self._checks
        with self._waiters.waiting_s(2 * limit_s) as wait_s:
            if self._checking.acquire(timeout=wait_s):
                try:
                    if self._checks == checks:
                        self._trouble = self._trouble_of_node(limit_s)
                        self._checks += 1
                finally:
                    self._checking.release()
        if self._trouble:
            raise NodeUnavailableError("the node does not answer", why=self._trouble)

    def _trouble_of_node(self, limit_s: float) -> str:
        """Return why the node does not answer, "" if it does."""
        deadline = Deadline.after(limit_s)
        try:
            connection = Connection(self._node_socket, role="rest", deadline=deadline)
            try:
                connection.ask(MountList(), deadline=deadline)
            finally:
                connection.close()
        except HeadraceError as error:
            return str(error)
        return ""
