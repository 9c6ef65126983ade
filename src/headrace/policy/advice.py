"""Say what another cache size or policy would do, from the curves of a node's reads. Without I/O.

Hits are those of an LRU cache. Plans and the other eviction policies have more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.base.sizes import show_size
from headrace.policy.document import PolicyRule
from headrace.policy.dues import Entitlement, dues
from headrace.policy.miss_ratio import MissRatioCurve

SIZES = (0.9, 1.0, 1.1, 2.0)
"""Multiples of the capacity for which hits are told."""
READS_MIN = 1000
"""Reads below which a curve says nothing."""
GAIN_MIN = 0.01
"""Share of the reads that must become hits, for 10 % more capacity, to advise it."""
LOSS_MAX = 0.005
"""Share of the reads that may be lost, for 10 % less capacity, to say that the cache is larger than it need be."""
STARVED_GAIN = 0.05
"""Share of a tenant's reads that half as much space again would turn into hits, if it starves."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Says what a tenant, or the whole cache, reads and would hit. name: "": the whole cache. capacity_bytes: of the
    cache, or the tenant's due. unique_bytes: of all files that were read. hit_ratios: at each of SIZES; empty after
    too few reads."""

    name: str
    reads: int
    capacity_bytes: int
    unique_bytes: int
    hit_ratios: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ReadDataSet:
    """A directory whose files were read. bytes: of these files, an estimate."""

    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Advice:
    """A sentence of advice. subject: "cache", "rule N", "tenant NAME" or the path of a data set."""

    subject: str
    text: str


def outlook(name: str, curve: MissRatioCurve, capacity_bytes: float) -> Outlook:
    """Return what a curve says for a capacity and its multiples."""
    is_known = curve.reads >= READS_MIN
    ratios = [1 - curve.miss_ratio(factor * capacity_bytes) for factor in SIZES] if is_known else []
    return Outlook(name, round(curve.reads), round(capacity_bytes), round(curve.unique_bytes), tuple(ratios))


def tenant_dues(
    capacity_bytes: float, entitlements: Mapping[str, Entitlement], curves: Mapping[str, MissRatioCurve]
) -> dict[str, float]:
    """Return the space that each tenant with a curve has when all of them want what they read."""
    known = {name: entitled for name, entitled in entitlements.items() if name in curves}
    return dues(capacity_bytes, known, {name: curves[name].unique_bytes for name in known})


def advise_capacity(whole: Outlook) -> list[Advice]:
    if not whole.hit_ratios:
        text = f"{whole.reads} reads were seen since the start, too few for advice: {READS_MIN} are needed"
        return [Advice("cache", text)]
    less, now, more, _ = whole.hit_ratios
    if more - now >= GAIN_MIN:
        text = f"10 % more cache would turn {more - now:.1%} of the reads into hits ({now:.1%} → {more:.1%})"
    elif now - less <= LOSS_MAX:
        text = f"10 % less cache would cost {max(0.0, now - less):.1%} of the reads: it is large enough"
    else:
        text = (
            f"10 % more cache would change little ({now:.1%} → {more:.1%} hits), 10 % less would: {less:.1%}"
        )
    return [Advice("cache", text)]


def advise_tenants(outlooks: Iterable[Outlook], curves: Mapping[str, MissRatioCurve]) -> list[Advice]:
    """Name the tenants that would hit much more with half as much space again."""
    advice = []
    for tenant in outlooks:
        if not tenant.hit_ratios or tenant.unique_bytes <= tenant.capacity_bytes:
            continue
        now, more = tenant.hit_ratios[1], 1 - curves[tenant.name].miss_ratio(1.5 * tenant.capacity_bytes)
        if more - now >= STARVED_GAIN:
            advice.append(
                Advice(
                    f"tenant {tenant.name}",
                    f"it starves: its due is {show_size(tenant.capacity_bytes)}, and it reads "
                    f"{show_size(tenant.unique_bytes)}. Half as much space again would raise its hits from {now:.1%} "
                    f"to {more:.1%}: raise its limit, guarantee or share",
                )
            )
    return advice


class UnmatchedRules:
    """The rules that match none of the paths so far."""

    def __init__(self, rules: Sequence[PolicyRule]) -> None:
        self.rules = list(rules)
        self._count = 0

    def look_at(self, path: bytes) -> None:
        self._count += 1
        self.rules = [rule for rule in self.rules if not rule.patterns.match(path)]

    def advise(self) -> list[Advice]:
        """Name these rules, if there was a path."""
        text = f"it matches none of {self._count} files that are cached or were read: check its patterns"
        return [
            Advice(f"rule {rule.number}", f"line {rule.line}: {text}") for rule in self.rules if self._count
        ]


def advise_data_sets(data_sets: Iterable[ReadDataSet], capacity_bytes: float) -> list[Advice]:
    """Name the data sets that are larger than the cache."""
    return [
        Advice(
            data_set.path,
            f"it does not fit: {show_size(data_set.bytes)} were read, and the cache has "
            f"{show_size(round(capacity_bytes))}. A shuffled epoch hits at most {capacity_bytes / data_set.bytes:.0%} "
            'of it: add capacity, or read cached samples first (`Loader(order="cached-first")`)',
        )
        for data_set in data_sets
        if data_set.bytes > capacity_bytes
    ]
