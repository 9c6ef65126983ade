"""Keep what workers have opened until the stream of their data set begins: a worker may be faster than its trainer.

A worker reports each sample once, in a connection that it closes at once. So a report that is dropped is missing until
an epoch later. Reports are advice from other processes: they are few, small, and soon forgotten.
"""

from __future__ import annotations

import asyncio
from collections import deque

from headrace.base.clock import monotonic_s
from headrace.wire.messages import PlanLearn

REPORTS_MAX = 1024
BYTES_MAX = 8 << 20
"""Most reports that are kept, and most bytes of all of them. The oldest ones are dropped first."""
KEPT_S = 10.0
"""Seconds for which a report is kept. A trainer that did not reach the node tries it again after 5 s."""
REPORT_BYTES = 256
INDEX_BYTES = 40
"""Bytes that a report takes, without its text, and that each of its indices takes: a place in a list, and a number."""


class EarlyReports:
    """Keeps reports by the key of their data set. It is used on the node's loop."""

    def __init__(self) -> None:
        self.bytes = 0
        self._reports: deque[tuple[float, PlanLearn]] = deque()  # the oldest first
        self._ended: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._reports)

    def add(self, report: PlanLearn) -> None:
        """Keep a report for a while. One is not kept that is too large, or whose stream has just ended: the next stream
        with its key may be of another data set."""
        self._drop_old()
        if report.key in self._ended or _bytes_of(report) > BYTES_MAX:
            return
        self._reports.append((monotonic_s(), report))
        self.bytes += _bytes_of(report)
        while len(self._reports) > REPORTS_MAX or self.bytes > BYTES_MAX:
            self._drop_first()
        self._wait()

    def take(self, key: str) -> list[PlanLearn]:
        """Return the reports with a key, and forget them: its stream begins."""
        self._drop_old()
        self._ended.pop(key, None)
        taken = [report for _, report in self._reports if report.key == key]
        if taken:
            self._reports = deque(kept for kept in self._reports if kept[1].key != key)
            self.bytes -= sum(map(_bytes_of, taken))
        return taken

    def note_end(self, key: str) -> None:
        """Note that the last stream with a key has ended: its workers may still report."""
        self._ended.pop(key, None)
        self._ended[key] = monotonic_s()
        if len(self._ended) > REPORTS_MAX:
            del self._ended[next(iter(self._ended))]

    def _drop_old(self) -> None:
        before_s = monotonic_s() - KEPT_S
        while self._reports and self._reports[0][0] <= before_s:
            self._drop_first()
        while self._ended and self._ended[first := next(iter(self._ended))] <= before_s:
            del self._ended[first]

    def _drop_first(self) -> None:
        _, report = self._reports.popleft()
        self.bytes -= _bytes_of(report)

    def _wait(self) -> None:
        """Free the memory also if no message comes any more."""
        if self._reports and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEPT_S, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._drop_old()
        self._wait()


def _bytes_of(report: PlanLearn) -> int:
    text_bytes = 4 * len(report.key) + len(report.paths)
    return REPORT_BYTES + text_bytes + INDEX_BYTES * len(report.indices)
