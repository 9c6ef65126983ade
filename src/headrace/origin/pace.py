"""Keep the calls to origins within budgets that change while a node runs, and that several mounts share."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.base.clock import monotonic_s
from headrace.base.token_bucket import TokenBucket

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

    def charges(self, size_bytes: int) -> Charges:
        """Return what a call of that size takes, and count it."""
        self.asked_requests += 1
        self.asked_bytes += size_bytes
        charges: Charges = [] if self.requests is None else [(self.requests, 1)]
        return charges if self.bytes is None else [*charges, (self.bytes, size_bytes)]


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
        above = [budget for budget in self._budgets if f"{url}/".startswith(budget.rstrip("/") + "/")]
        return self._budgets[max(above, key=len)] if above else None
