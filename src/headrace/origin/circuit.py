"""Break the circuit of one origin: decide which calls try and which wait while the origin is unavailable.

Consecutive failures of different calls open it. Then calls wait in order of arrival, and one at a time may probe; the
first success releases all of them. Only errors that mean the whole origin is unavailable count: any answer about a
key closes the circuit. Keys that failed probe last, so that one bad key blocks no other. All calls belong on the
node's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator

from headrace.base.breaker import Breaker, BreakerLimits
from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import (
    DeadlineExceededError,
    HeadraceError,
    OriginError,
    OriginUnavailableError,
    PathNotFoundError,
)

LIMITS = BreakerLimits(failures_max=5, pause_s=0.1, pause_s_max=1.0, probe_limit_s=1.0)
"""Limits by which full speed returns within two seconds of the origin's recovery: after one pause, and one probe that
was sent a moment too early."""
SILENT_S = 1.0
"""Seconds after which an abandoned call counts as a failure of its origin."""
FAILED_KEYS_MAX = 64
"""Most keys that are remembered as failed."""
FORGOTTEN_S = 60.0
"""Seconds without a call after which the last failure no longer counts."""


class Circuit:
    """Breaks the circuit of one origin. `name` is the origin in messages."""

    def __init__(self, name: str = "origin") -> None:
        self._name = name
        self._breaker = Breaker(LIMITS)
        self._failed_calls: set[object] = set()  # while it is closed
        self._failed_keys: dict[str, None] = {}  # the last of them, since something succeeded
        self._failing_since_s: float | None = None
        self._trouble: HeadraceError | None = None
        self._waiters: dict[asyncio.Future[bool], str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pausing = 0
        self._failed_s = float("-inf")
        self.has_answered = False
        """A call succeeded since the start, so the node had valid credentials."""

    @property
    def closed(self) -> bool:
        return self._breaker.closed

    async def admitted(self, key: str, deadline: Deadline) -> bool:
        """Wait while the circuit is open. Return True if this call is the probe. Raise OriginUnavailableError if the
        deadline passes first."""
        if self.closed:
            return False
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = key
        self._release_waiters()
        try:
            async with asyncio.timeout(deadline.timeout_s()):
                return await waiter
        except TimeoutError:
            raise self._unavailable_error() from None
        finally:
            self._waiters.pop(waiter, None)

    @contextlib.contextmanager
    def pausing(self) -> Iterator[None]:
        """Count the call among the waiting ones during its own pause before a retry."""
        self._pausing += 1
        try:
            yield
        finally:
            self._pausing -= 1

    def succeeded(self) -> None:
        """Record that a call succeeded."""
        self.has_answered = True
        self._note_answer()

    def _note_answer(self) -> None:
        """Close the circuit: the origin answered, even if only that an object does not exist."""
        self._failing_since_s = None
        self._failed_keys.clear()
        self._failed_calls.clear()
        was_open = not self.closed
        self._breaker.succeeded()
        if was_open:
            self._release_waiters()

    def failed(
        self, call: object, key: str, error: HeadraceError, *, took_s: float, wait_s: float = 0.0
    ) -> None:
        """Record that a call about this key failed. Repeated failures of the same call count once. `wait_s` is the
        time for which the origin asked for no requests."""
        if not _is_of_origin(error, took_s):
            if isinstance(error, OriginError | PathNotFoundError) and not error.retryable:
                self._note_answer()
            return
        now_s = self._failed_s = monotonic_s()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        self._trouble = error
        self._failed_keys[key] = None
        if len(self._failed_keys) > FAILED_KEYS_MAX:
            del self._failed_keys[next(iter(self._failed_keys))]
        if self.closed and call in self._failed_calls and not wait_s:
            return
        self._failed_calls.add(call)
        self._breaker.failed(now_s, chance=random.random(), wait_s=wait_s)
        if not self.closed:
            self._failed_calls.clear()
        self._release_waiters()

    def statistics(self) -> dict[str, int | float | str]:
        """Return `away_s`, the time for which every call has failed (0 after a success); `waiting`, the number of
        waiting calls; `trouble`, the last error; `next_try_s`, the time until the next probe."""
        now_s, waiting = monotonic_s(), len(self._waiters) + self._pausing
        is_old = not waiting and now_s - self._failed_s > FORGOTTEN_S
        if self._failing_since_s is None or is_old:
            return {"away_s": 0.0, "waiting": 0, "trouble": "", "next_try_s": 0.0}
        due_s = 0.0 if self.closed else max(0.0, self._breaker.probe_due_s(now_s) - now_s)
        return {
            "away_s": round(now_s - self._failing_since_s, 1),
            "waiting": waiting,
            "trouble": "" if self._trouble is None else self._trouble.why,
            "next_try_s": round(due_s, 1),
        }

    def _release_waiters(self) -> None:
        """Release all waiters if the circuit is closed, otherwise one if a probe is due; schedule the next probe if
        calls still wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.closed:
            for waiter in self._waiters:
                _release(waiter, probe=False)
            self._waiters.clear()
            return
        now_s = monotonic_s()
        if self._waiters and self._breaker.take_probe(now_s):
            fresh = (waiter for waiter, key in self._waiters.items() if key not in self._failed_keys)
            first = next(fresh, None) or next(iter(self._waiters))
            del self._waiters[first]
            _release(first, probe=True)
        if self._waiters:
            pause_s = max(0.001, self._breaker.probe_due_s(now_s) - now_s)
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._release_waiters)

    def _unavailable_error(self) -> HeadraceError:
        trouble = self._trouble
        why = "no answer" if trouble is None else trouble.why
        since_s = 0.0 if self._failing_since_s is None else monotonic_s() - self._failing_since_s
        return OriginUnavailableError(self._name, why=f"{why}; unavailable for {since_s:.0f} s")


def _is_of_origin(error: HeadraceError, took_s: float) -> bool:
    if isinstance(error, DeadlineExceededError):
        return took_s >= SILENT_S
    return isinstance(error, OriginUnavailableError)


def _release(waiter: asyncio.Future[bool], *, probe: bool) -> None:
    if not waiter.done():
        waiter.set_result(probe)
