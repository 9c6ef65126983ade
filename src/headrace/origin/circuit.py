"""One origin's circuit breaker: who asks while the origin is away, and who waits.

Failures of different calls in a row open it. Then calls wait in the order in which they came, and one at a time is let
go to try; the first that succeeds lets all go. Only what says that the origin as a whole is away counts: any answer
about a key closes it. Keys that failed try last, so that one bad key holds up nobody else. On the node's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator

from headrace.base.breaker import Breaker, BreakerLimits
from headrace.base.deadline import Deadline
from headrace.base.errors import (
    DeadlineExceededError,
    HeadraceError,
    OriginError,
    OriginUnavailableError,
    PathNotFoundError,
)

LIMITS = BreakerLimits(failures_max=5, pause_s=0.1, pause_s_max=1.0, probe_limit_s=1.0)
"""All is back to full speed two seconds after the origin is: a pause, and a probe that was sent a moment too early."""
SILENT_S = 1.0
"""A call that was given up sooner than that says nothing about its origin."""
FAILED_KEYS_MAX = 64
FORGOTTEN_S = 60.0
"""Nobody asked for so long: what was wrong then says nothing of now."""


class Circuit:
    """what: the origin, for messages."""

    def __init__(self, what: str = "origin") -> None:
        self._what = what
        self._breaker = Breaker(LIMITS)
        self._failed_calls: set[object] = set()  # while it is closed
        self._failed_keys: dict[str, None] = {}  # the last of them, since something succeeded
        self._failing_since_s: float | None = None
        self._trouble: HeadraceError | None = None
        self._waiters: dict[asyncio.Future[bool], str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pausing = 0
        self._failed_s = float("-inf")

    @property
    def closed(self) -> bool:
        return self._breaker.closed

    async def admitted(self, key: str, deadline: Deadline) -> bool:
        """Waits as long as the circuit is open. True: this call is the one that tries. OriginUnavailableError when the
        deadline passes first."""
        if self.closed:
            return False
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = key
        self._let_go()
        left_s = deadline.left_s()
        try:
            async with asyncio.timeout(None if left_s == float("inf") else left_s):
                return await waiter
        except TimeoutError:
            raise self._away() from None
        finally:
            self._waiters.pop(waiter, None)

    @contextlib.contextmanager
    def pausing(self) -> Iterator[None]:
        """Around a call's own pause before it tries again: it counts among those that wait."""
        self._pausing += 1
        try:
            yield
        finally:
            self._pausing -= 1

    def succeeded(self) -> None:
        """The origin answered, be it that there is no such object."""
        self._failing_since_s = None
        self._failed_keys.clear()
        self._failed_calls.clear()
        was_open = not self.closed
        self._breaker.succeeded()
        if was_open:
            self._let_go()

    def failed(
        self, call: object, key: str, error: HeadraceError, *, took_s: float, wait_s: float = 0.0
    ) -> None:
        """After a call about that key raised this; that of the same call again counts once. wait_s: for how long the
        origin asked not to be asked."""
        if not _is_of_origin(error, took_s):
            if isinstance(error, OriginError | PathNotFoundError) and not error.retryable:
                self.succeeded()
            return
        now_s = self._failed_s = time.monotonic()
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
        self._let_go()

    def statistics(self) -> dict[str, int | float | str]:
        """away_s: how long every call has failed, 0 when the last one did not; waiting: how many calls; trouble: why;
        next_try_s: until the next one may try."""
        now_s, waiting = time.monotonic(), len(self._waiters) + self._pausing
        forgotten = not waiting and now_s - self._failed_s > FORGOTTEN_S
        if self._failing_since_s is None or forgotten:
            return {"away_s": 0.0, "waiting": 0, "trouble": "", "next_try_s": 0.0}
        due_s = 0.0 if self.closed else max(0.0, self._breaker.probe_due_s(now_s) - now_s)
        return {
            "away_s": round(now_s - self._failing_since_s, 1),
            "waiting": waiting,
            "trouble": "" if self._trouble is None else self._trouble.why,
            "next_try_s": round(due_s, 1),
        }

    def _let_go(self) -> None:
        """All when it is closed; else the first, when one may try; else somebody will be let go later."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.closed:
            for waiter in self._waiters:
                _release(waiter, probe=False)
            self._waiters.clear()
            return
        now_s = time.monotonic()
        if self._waiters and self._breaker.take_probe(now_s):
            fresh = (waiter for waiter, key in self._waiters.items() if key not in self._failed_keys)
            first = next(fresh, None) or next(iter(self._waiters))
            del self._waiters[first]
            _release(first, probe=True)
        if self._waiters:
            pause_s = max(0.001, self._breaker.probe_due_s(now_s) - now_s)
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._let_go)

    def _away(self) -> HeadraceError:
        trouble = self._trouble
        why = "it does not answer" if trouble is None else trouble.why
        since_s = 0.0 if self._failing_since_s is None else time.monotonic() - self._failing_since_s
        return OriginUnavailableError(self._what, why=f"{why}; away for {since_s:.0f} s")


def _is_of_origin(error: HeadraceError, took_s: float) -> bool:
    if isinstance(error, DeadlineExceededError):
        return took_s >= SILENT_S
    return isinstance(error, OriginUnavailableError)


def _release(waiter: asyncio.Future[bool], *, probe: bool) -> None:
    if not waiter.done():
        waiter.set_result(probe)
