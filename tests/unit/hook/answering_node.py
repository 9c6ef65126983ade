"""Stand for the node that training processes report to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.hook.frames import encoded
from headrace.wire.frame import decode_request
from headrace.wire.messages import PlanOrder


class AnsweringNode:
    """Answers plans with Done. received: the kinds of messages. requests: all of them. refused: kinds of messages
    that it refuses so often. is_used: what it says of data sets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.received: list[str] = []
        self.requests: list[Any] = []
        self.refused: dict[str, int] = {}
        self.is_used = True
        self.heard = threading.Condition()
        self._connections: list[socket.socket] = []
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def wait_for(self, kind: str, count: int = 1) -> None:
        self.wait_until(lambda: self.received.count(kind) >= count)

    def wait_until(self, is_so: Callable[[], object]) -> None:
        with self.heard:
            assert self.heard.wait_for(is_so, timeout=60), self.received

    def wait_for_order(self, epoch: int) -> bytes:
        """Return the indices of the first message with the order of an epoch."""
        self.wait_until(lambda: self.orders_of(epoch))
        return self.orders_of(epoch)[0]

    def orders_of(self, epoch: int) -> list[bytes]:
        """Return the indices of all messages with the order of an epoch."""
        return [
            request.indices
            for request in self.requests
            if isinstance(request, PlanOrder) and request.epoch == epoch
        ]

    def disconnect(self) -> None:
        """Break off all connections, as a node that dies."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        try:
            while True:
                connection, _ = self._listening.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
        except OSError:
            pass

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(ConnectionError), connection, connection.makefile("rb") as stream:
            while head := stream.read(4):
                request = decode_request(stream.read(int.from_bytes(head, "little")))
                kind = type(request).__name__
                left = self.refused.get(kind, 0)
                self.refused[kind] = left - 1
                answer = (
                    encoded("PlanNoted", used=self.is_used) if kind == "PlanProgress" else encoded("Done")
                )
                if left > 0:
                    answer = encoded("Failure", what="it", why="is unknown")
                with self.heard:
                    self.received.append(kind)
                    self.requests.append(request)
                    self.heard.notify_all()
                connection.sendall(answer)
