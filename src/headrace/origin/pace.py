"""Keep the calls to origins within budgets that change while a node runs, and that several mounts share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from headrace.base.clock import monotonic_s
from headrace.base.errors import HeadraceError, OriginUnavailableError
from headrace.base.listeners import Listeners
from headrace.base.token_bucket import TokenBucket

_OVERLOADED = re.compile(r"(429|503)\b")


def is_overload(error: HeadraceError) -> bool:
    """Return whether an origin answered that it gets too many requests, by the status at the beginning of the cause."""
    return isinstance(error, OriginUnavailableError) and _OVERLOADED.match(error.why) is not None


Charges = list[tuple[TokenBucket, float]]
"""Buckets, and what a call takes of each."""


class BudgetRates:
    """The part of one budget that a node may use now: requests and bytes a second; None for no limit. asked_requests,
    asked_bytes: the sums of all calls, also of those that wait."""

    def __init__(self, requests_s: float | None, bytes_s: float | None) -> None:
        now_s = monotonic_s()
        self.requests = None if requests_s is None else TokenBucket(requests_s, now_s)
        self.bytes = None if bytes_s is None else TokenBucket(bytes_s, now_s)
        self.asked_requests = self.asked_bytes = 0
        self.overloaded: Listeners[[]] = Listeners()
        """Called after each answer of overload."""

    def limit(self, requests_s: float | None, bytes_s: float | None) -> None:
        """Change the limits. What waits goes on at the new rates, at once where a limit is gone. A bucket whose rate
        changes stays as full as it is."""
        now_s = monotonic_s()
        self.requests = _limited(self.requests, requests_s, now_s)
        self.bytes = _limited(self.bytes, bytes_s, now_s)

    def charges(self, size_bytes: int) -> Charges:
        """Return what a call of that size takes, and count it."""
        self.asked_requests += 1
        self.asked_bytes += size_bytes
        charges: Charges = [] if self.requests is None else [(self.requests, 1)]
        return charges if self.bytes is None else [*charges, (self.bytes, size_bytes)]

    def charge_requests(self, count: int) -> None:
        """Take requests that are sent without a wait; later calls wait for them."""
        self.asked_requests += count
        if self.requests is not None:
            self.requests.reserve(count, monotonic_s())


def _limited(bucket: TokenBucket | None, rate: float | None, now_s: float) -> TokenBucket | None:
    if bucket is None or rate is None:
        if bucket is not None:
            bucket.lift()
        return None if rate is None else TokenBucket(rate, now_s)
    bucket.scale_rate(rate, now_s)
    return bucket


class OriginPace:
    """The budget of one mount's origin, if it has one now. url: of the origin, as `parse_origin` returns it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._rates: BudgetRates | None = None

    def use(self, rates: BudgetRates | None) -> None:
        """Keep to these rates from the next call on."""
        self._rates = rates

    @property
    def bytes(self) -> TokenBucket | None:
        """Return the bucket of bytes, for a source that is read part by part."""
        return None if self._rates is None else self._rates.bytes

    def charges(self, size_bytes: int) -> Charges:
        return [] if self._rates is None else self._rates.charges(size_bytes)

    def charge_requests(self, count: int) -> None:
        """Count requests beside the one of each call."""
        if self._rates is not None:
            self._rates.charge_requests(count)

    def note_failure(self, error: HeadraceError) -> None:
        """Count the request that repeats a failed one, and lower the rate of an origin that is overloaded."""
        if self._rates is None or not error.retryable:
            return
        self._rates.charge_requests(1)
        if is_overload(error):
            self._rates.overloaded()


class OriginPaces:
    """The paces of a node's mounts."""

    def __init__(self) -> None:
        self._paces: list[OriginPace] = []
        self._budgets: Mapping[str, BudgetRates] = {}

    def add(self, pace: OriginPace) -> None:
        """Add the pace of another mount."""
        pace.use(self._rates_of(pace.url))
        self._paces.append(pace)

    def remove(self, url: str) -> None:
        """Forget a pace of a mount that is gone."""
        for pace in self._paces:
            if pace.url == url:
                self._paces.remove(pace)
                return

    def apply(self, budgets: Mapping[str, BudgetRates]) -> None:
        """Replace the budgets. A budget holds for its URL and for all below it; the longest one counts."""
        self._budgets = budgets
        for pace in self._paces:
            pace.use(self._rates_of(pace.url))

    def _rates_of(self, url: str) -> BudgetRates | None:
        above = budget_above(url, self._budgets)
        return None if above is None else self._budgets[above]


def budget_above(url: str, budgets: Iterable[str]) -> str | None:
    """Return the longest of these URLs that a URL is at or below; None: it is below none."""
    above = [budget for budget in budgets if f"{url}/".startswith(budget.rstrip("/") + "/")]
    return max(above, key=len, default=None)
