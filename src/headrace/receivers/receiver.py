"""Receive from one queue: hand on what it reports, and delete a message only after that was done."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from headrace.base.clock import monotonic_s
from headrace.base.errors import HeadraceError
from headrace.base.tasks import OwnedTasks
from headrace.base.token_bucket import TokenBucket, wait_for_turn
from headrace.events.changes import EventFormatError, OriginChange, ReportedChanges
from headrace.receivers.deliveries import Deliveries
from headrace.receivers.source import EventQueue, QueuedMessage

log = logging.getLogger(__name__)


class HandleChanges(Protocol):
    """Makes all nodes list again what changed. Raises HeadraceError if that failed."""

    def __call__(self, changes: Sequence[OriginChange], *, everything_of: str = "") -> Awaitable[None]:
        """Return when the directories are listed. everything_of: the path of a mount of which anything may have
        changed; "" for none."""
        ...


BATCHES_MAX = 32
"""Most batches of messages that are handled at a time. Some wait for minutes: a large directory is listed for as long,
and rests afterwards."""
RECEIVES_S = 200.0
"""Most receptions a second, of a service that always has something."""
BACKOFF_S, BACKOFF_S_MAX = 1.0, 60.0
REFUSALS_SHOWN_S = 600.0
"""Seconds between two lines in the log about messages that are no events."""
EMPTY_S = 1.0
"""Least seconds from one question to the next if there was no message: some services don't wait for one."""
FOREIGN_PAUSE_S = 1.0
"""Pause after a batch without any event, so that a queue of something else is not read all the time."""


class QueueReceiver:
    """Receives until it is stopped. mount: the path of the mount, for messages. build: returns the queue, which `stop`
    closes. If it raises HeadraceError, it is called again later, as a queue that can't be read is."""

    def __init__(self, mount: str, build: Callable[[], EventQueue], handle: HandleChanges) -> None:
        self._mount = mount
        self._build = build
        self._queue: EventQueue | None = None
        self._handle = handle
        self._gate = asyncio.Semaphore(BATCHES_MAX)
        self._rate = TokenBucket(RECEIVES_S, monotonic_s(), burst_s=1.0)
        self._tasks = OwnedTasks()
        self._deliveries = Deliveries()
        self._error = ""
        self._retry_at_s: float | None = None
        self._errors = self._messages = self._changes = self._refused = 0
        self._refusal_shown_s = float("-inf")
        self._received_s: float | None = None
        self._lag_s: float | None = None

    def start(self) -> None:
        self._tasks.start(self._run())

    async def stop(self) -> None:
        await self._tasks.close()
        if self._queue is not None:
            await self._queue.close()

    def status(self) -> dict[str, object]:
        """Return the counts. since_s: seconds since the last event. lag_s: seconds from the last change to its arrival,
        by the clocks of both. error: why the queue can't be read now; "": it can. retry_s: seconds until the next
        attempt."""
        since_s = None if self._received_s is None else round(monotonic_s() - self._received_s, 1)
        return {
            "messages": self._messages,
            "changes": self._changes,
            "refused": self._refused,
            "errors": self._errors,
            "error": self._error,
            "retry_s": None
            if self._retry_at_s is None
            else round(max(0.0, self._retry_at_s - monotonic_s()), 1),
            "since_s": since_s,
            "lag_s": None if self._lag_s is None else round(self._lag_s, 3),
        }

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._gate.acquire()
            await wait_for_turn([self._rate.reserve(1, monotonic_s())])
            asked_s = monotonic_s()
            try:
                if self._queue is None:
                    self._queue = self._build()
                queue = self._queue
                messages = await queue.receive()
            except Exception as error:  # noqa: BLE001 - a defect must not end all events until the next start
                self._gate.release()
                self._report_failure(error)
                failures += 1
                pause_s = _backoff_s(failures)
                self._retry_at_s = monotonic_s() + pause_s
                await asyncio.sleep(pause_s)
                continue
            failures = 0
            self._report_success()
            self._tasks.start(self._handle_batch(queue, messages))
            if not messages:
                await asyncio.sleep(max(0.0, asked_s + EMPTY_S - monotonic_s()))
            elif all(isinstance(message.content, EventFormatError) for message in messages):
                await asyncio.sleep(FOREIGN_PAUSE_S)

    async def _handle_batch(self, queue: EventQueue, messages: Sequence[QueuedMessage]) -> None:
        """Handle messages and delete them. One that is no event is not deleted: the queue may belong to others."""
        fresh, handled = self._deliveries.begin(self._events_of(messages))
        are_handled = False
        try:
            try:
                await self._handle_fresh(fresh)
                are_handled = True
            finally:
                fresh = self._deliveries.end(fresh, are_handled=are_handled)
            if fresh or handled:
                await queue.delete([*fresh, *handled])
        except HeadraceError as error:
            self._errors += 1
            log.info(
                "events are not handled and will be delivered again mount=%s error=%s", self._mount, error
            )
        finally:
            self._gate.release()

    async def _handle_fresh(self, messages: Sequence[QueuedMessage]) -> None:
        changes = self._changes_of(messages)
        if changes:
            await self._handle(changes)
        if any(_is_everything(message) for message in messages):
            await self._handle([], everything_of=self._mount)

    def _events_of(self, messages: Sequence[QueuedMessage]) -> list[QueuedMessage]:
        events = []
        for message in messages:
            self._messages += 1
            if isinstance(message.content, EventFormatError):
                self._refuse(message.content)
            else:
                events.append(message)
        return events

    def _changes_of(self, messages: Sequence[QueuedMessage]) -> list[OriginChange]:
        changes: list[OriginChange] = []
        for message in messages:
            if isinstance(message.content, ReportedChanges):
                self._refused += message.content.refused
                changes += message.content.changes
        if changes:
            self._changes += len(changes)
            self._received_s = monotonic_s()
            sent_s = changes[-1].sent_at_s
            self._lag_s = max(0.0, time.time() - sent_s) if sent_s else None
        return changes

    def _refuse(self, why: EventFormatError) -> None:
        self._refused += 1
        now_s = monotonic_s()
        if now_s >= self._refusal_shown_s + REFUSALS_SHOWN_S:
            self._refusal_shown_s = now_s
            log.warning("a message of a queue is no event, it stays mount=%s why=%s", self._mount, why)

    def _report_failure(self, error: Exception) -> None:
        self._errors += 1
        is_defect = not isinstance(error, HeadraceError)
        why = f"{type(error).__name__}: a defect, see the log" if is_defect else str(error)
        if not self._error:
            trace = error if is_defect else None
            log.warning(
                "events of a mount can't be received mount=%s error=%s", self._mount, why, exc_info=trace
            )
        self._error = why

    def _report_success(self) -> None:
        if self._error:
            log.warning("events of a mount are received again mount=%s", self._mount)
        self._error, self._retry_at_s = "", None


def _is_everything(message: QueuedMessage) -> bool:
    return isinstance(message.content, ReportedChanges) and message.content.is_everything


def _backoff_s(failures: int) -> float:
    limit_s: float = min(BACKOFF_S_MAX, BACKOFF_S * 2 ** min(failures - 1, 10))
    return limit_s * random.uniform(0.5, 1.0)
