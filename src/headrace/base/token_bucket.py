"""Keep calls below a rate, which may change while they wait. The caller passes the time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from headrace.base.clock import monotonic_s

BURST_S = 0.25
"""Unused allowance is saved for this long."""
LEAST_WAIT_S = 1e-6
"""Shorter waits are errors of rounding. The clock might not advance by one."""
LOOK_S = 0.25
"""Seconds after which a waiting call looks whether the rate has changed."""
PASSED = float("-inf")
"""Place of a reservation that has passed: it never waits again."""


class TokenBucket:
    """Is a token bucket that may have debt. A caller reserves at once, and then waits. Callers are therefore served in
    order, and an amount larger than the bucket still passes. May be used from any thread."""

    def __init__(self, rate_per_s: float, now_s: float, *, burst_s: float = BURST_S) -> None:
        self._rate_per_s, self._burst_s = rate_per_s, burst_s
        self._soon_per_s = 0.0
        self._level = rate_per_s * burst_s
        self._reserved = 0.0
        self._waiting: deque[Reservation] = deque()
        """Reservations that have not passed, by their places."""
        self._at_s = now_s
        self.is_lifted = False
        self._lock = threading.Lock()

    def lift(self) -> None:
        """Let all calls pass, also those that wait: the limit is gone for good."""
        with self._lock:
            self.is_lifted = True
            self._waiting.clear()

    def reserve(self, amount: float, now_s: float) -> Reservation:
        """Take the amount. The reservation says how long to wait before using it."""
        with self._lock:
            self._refill(now_s)
            self._level -= amount
            self._reserved += amount
            reservation = Reservation(self, amount, self._reserved)
            if not self.is_lifted:
                self._waiting.append(reservation)
                self._pass()
            return reservation

    def wait_s(self, reservation: Reservation, now_s: float, *, soon: bool = False) -> float:
        """Return the seconds until all reservations up to this one have passed. soon: by the rate that may come
        soon."""
        if self.is_lifted:
            return 0.0
        with self._lock:
            self._refill(now_s)
            rate_per_s = max(self._rate_per_s, self._soon_per_s) if soon else self._rate_per_s
            wait_s = (reservation.place - self._reserved - self._level) / rate_per_s
            return wait_s if wait_s > LEAST_WAIT_S else 0.0

    def debt(self, now_s: float) -> float:
        """Return how much of what was taken must still be waited for."""
        with self._lock:
            self._refill(now_s)
            return max(0.0, -self._level)

    def refund(self, reservation: Reservation) -> None:
        """Give the amount back. Those who wait behind it wait less, and those before it as long as before."""
        with self._lock:
            self._level += reservation.amount
            if self.is_lifted or reservation.place == PASSED:
                return
            self._reserved -= reservation.amount
            index = self._waiting.index(reservation)
            del self._waiting[index]
            for other in islice(self._waiting, index, None):
                other.place -= reservation.amount
            reservation.place = PASSED

    def set_rate(self, rate_per_s: float, now_s: float, *, soon_per_s: float = 0.0) -> None:
        """Change the rate, which is above 0, also for calls that wait. soon_per_s: the rate that the next changes bring
        if calls wait."""
        with self._lock:
            self._refill(now_s)
            self._rate_per_s, self._soon_per_s = rate_per_s, soon_per_s

    def scale_rate(self, rate_per_s: float, now_s: float) -> None:
        """Change the rate because the limit changes. The bucket is as full afterwards as before, and debt stays."""
        with self._lock:
            if rate_per_s == self._rate_per_s:
                return
            self._refill(now_s)
            if self._level > 0:
                self._level *= rate_per_s / self._rate_per_s
            self._rate_per_s, self._soon_per_s = rate_per_s, 0.0

    def _refill(self, now_s: float) -> None:
        full = max(self._rate_per_s * self._burst_s, 1.0)
        self._level = min(full, self._level + (now_s - self._at_s) * self._rate_per_s)
        self._at_s = now_s
        self._pass()

    def _pass(self) -> None:
        """Note who has passed, because the level loses later what exceeds a full bucket."""
        while self._waiting and self._waiting[0].place - self._reserved <= self._level:
            self._waiting.popleft().place = PASSED


@dataclass(slots=True, eq=False)
class Reservation:
    """An amount that a call took from a bucket. place: the sum of all reservations up to this one, without those that
    were cancelled."""

    bucket: TokenBucket
    amount: float
    place: float

    def wait_s(self, now_s: float) -> float:
        """Return the seconds to wait by the present rate."""
        return self.bucket.wait_s(self, now_s)

    def wait_at_best_s(self, now_s: float) -> float:
        """Return the seconds to wait by the rate that may come soon."""
        return self.bucket.wait_s(self, now_s, soon=True)

    def cancel(self) -> None:
        """Give the amount back: the call does not take place."""
        self.bucket.refund(self)


def longest_wait_s(reservations: Iterable[Reservation]) -> float:
    """Return the seconds that a call with several reservations waits by the present rates."""
    now_s = monotonic_s()
    return max((reservation.wait_s(now_s) for reservation in reservations), default=0.0)


def longest_wait_at_best_s(reservations: Iterable[Reservation]) -> float:
    now_s = monotonic_s()
    return max((reservation.wait_at_best_s(now_s) for reservation in reservations), default=0.0)


async def wait_for_turn(reservations: Iterable[Reservation]) -> None:
    """Wait until all reservations have passed, whatever becomes of the rates. A wait that is cancelled gives all of
    them back."""
    reservations = list(reservations)
    try:
        while (wait_s := longest_wait_s(reservations)) > 0:  # noqa: ASYNC110 - the rate may change
            await asyncio.sleep(min(wait_s, LOOK_S))
    except BaseException:
        for reservation in reservations:
            reservation.cancel()
        raise


def wait_for_turn_in_thread(reservations: Iterable[Reservation], *, timeout_s: float) -> bool:
    """Block the thread as `wait_for_turn` waits. Return False, and give all of them back, if that takes longer than
    timeout_s."""
    reservations, now_s = list(reservations), monotonic_s()
    end_s = now_s + timeout_s
    while (wait_s := max((each.wait_s(now_s) for each in reservations), default=0.0)) > 0:
        if now_s >= end_s:
            for reservation in reservations:
                reservation.cancel()
            return False
        pause_s = min(wait_s, LOOK_S, end_s - now_s)
        time.sleep(pause_s)
        now_s += pause_s  # the clock of a test stands still meanwhile
    return True
