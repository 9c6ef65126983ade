"""Count the requests of a gateway by operation, and report the counts to the node for `headrace status`."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator

from headrace.base.errors import HeadraceError
from headrace.client.connection import Connection
from headrace.wire.messages import GatewayCounts, OperationRow

log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 2.0
UNKNOWN = "unknown"
"""The operation of a request that the protocol does not have."""
_REQUESTS, _REFUSED, _FAILED, _IN, _OUT = range(5)


class RequestStats:
    """Counts requests and bytes of each operation. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, list[int]] = {}

    def add(self, operation: str, status: int, bytes_out: int) -> None:
        """Count a request. bytes_out: the length of the answer's body, in full even if the client leaves early."""
        with self._lock:
            row = self._row(operation)
            row[_REQUESTS] += 1
            row[_OUT] += bytes_out
            if status >= 500:
                row[_FAILED] += 1
            elif status >= 400:
                row[_REFUSED] += 1

    def received(self, operation: str, count: int) -> None:
        with self._lock:
            self._row(operation)[_IN] += count

    def rows(self) -> list[OperationRow]:
        with self._lock:
            return [OperationRow(operation, *row) for operation, row in sorted(self._rows.items())]

    def _row(self, operation: str) -> list[int]:
        row = self._rows.get(operation)
        if row is None:
            row = self._rows[operation] = [0, 0, 0, 0, 0]
        return row


class CountedBody:
    """Iterates over the pieces of a body, and counts their bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self.count = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        piece = next(self._pieces)
        self.count += len(piece)
        return piece


class StatsReporter:
    """Reports the counts to the node from a thread. A node that was down misses nothing, because counts start with
    the gateway. kind: as in GatewayCounts."""

    def __init__(self, kind: str, counts: RequestStats, node_socket: str, *, address: str) -> None:
        self._kind, self._counts, self._socket = kind, counts, node_socket
        self._address = address
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{kind}-counts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(REPORT_INTERVAL_S)

    def _run(self) -> None:
        connection: Connection | None = None
        while True:
            try:
                if connection is None or not connection.usable:
                    connection = Connection(self._socket, role=self._kind)
                rows = self._counts.rows()
                connection.ask(
                    GatewayCounts(pid=os.getpid(), kind=self._kind, address=self._address, rows=rows)
                )
            except HeadraceError as error:
                log.debug("the node did not get the counts error=%s", error)
                connection = None
            if self._ended.wait(REPORT_INTERVAL_S):
                break
        if connection is not None:
            connection.close()
