"""Divide a capacity among tenants: weighted max-min fairness over guarantees, limits, shares and demands.

One procedure serves space, fill bandwidth and the budgets of origins: raise a level until all is given out, where each
tenant has its guarantee and `share` times the level, and never more than its limit or its demand (water-filling:
Bertsekas and Gallager, Data Networks, 6.5.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

NO_TENANT = ""
"""The tenant of files that belong to none: share 1, nothing guaranteed."""


@dataclass(frozen=True, slots=True)
class Entitlement:
    """Say what a tenant may have of a capacity, in its unit. share: its weight, above 0, in what nobody is guaranteed.
    limit: None for none."""

    guaranteed: float = 0
    limit: float | None = None
    share: float = 1


DEFAULT_ENTITLEMENT = Entitlement()


class FairPart(NamedTuple):
    """A tenant's part at level 0, how fast the part rises with the level, and the range that it stays in."""

    base: float
    weight: float
    least: float
    most: float

    def amount_at(self, level: float) -> float:
        return min(self.most, max(self.least, self.base + self.weight * level))

    @property
    def rises_from(self) -> float:
        return (self.least - self.base) / self.weight

    @property
    def rises_to(self) -> float:
        return (self.most - self.base) / self.weight


def divide(capacity: float, parts: Mapping[str, FairPart]) -> dict[str, float]:
    """Return the parts at the highest level where they sum to at most the capacity. Every tenant gets its `least`, also
    if these are more than the capacity together."""
    level = _level_of(capacity, parts)
    return {name: part.amount_at(level) for name, part in parts.items()}


def _level_of(capacity: float, parts: Mapping[str, FairPart]) -> float:
    """Pass the levels where a part begins to rise or stops. Between two of them the sum is a straight line."""
    bends = sorted(
        [(part.rises_from, part.weight) for part in parts.values() if part.most > part.least]
        + [(part.rises_to, -part.weight) for part in parts.values() if part.most > part.least]
    )
    if not bends:
        return 0.0
    left = capacity - sum(part.least for part in parts.values())
    level, slope = bends[0][0], 0.0
    for bend, change in bends:
        taken = slope * (bend - level)
        if left <= 0:
            return level
        if taken > left:
            return level + left / slope
        left -= taken
        level, slope = bend, slope + change
    return level


def dues(
    capacity: float, entitlements: Mapping[str, Entitlement], demands: Mapping[str, float]
) -> dict[str, float]:
    """Return how much each tenant with a demand is due. A tenant without an entitlement has share 1.

    Guarantees that are more than the capacity together shrink in proportion.
    """
    entitled = {name: entitlements.get(name, DEFAULT_ENTITLEMENT) for name in demands}
    guaranteed = sum(entitlement.guaranteed for entitlement in entitled.values())
    kept = min(1.0, capacity / guaranteed) if guaranteed > 0 else 1.0
    return divide(
        capacity, {name: _fair_part(entitled[name], demand, kept) for name, demand in demands.items()}
    )


def _fair_part(entitlement: Entitlement, demand: float, kept: float) -> FairPart:
    most = demand if entitlement.limit is None else min(demand, entitlement.limit)
    least = min(most, entitlement.guaranteed * kept)
    return FairPart(least, entitlement.share, least, most)


def most_over(capacity: float, entitlements: Mapping[str, Entitlement], usage: Mapping[str, float]) -> str:
    """Return the tenant whose usage is furthest above its due, in units of its share. usage: at least one tenant."""
    due = dues(capacity, entitlements, usage)

    def excess(name: str) -> float:
        return (usage[name] - due[name]) / entitlements.get(name, DEFAULT_ENTITLEMENT).share

    return max(usage, key=excess)
