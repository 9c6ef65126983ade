"""Estimate what more cache or more bandwidth would give the planned jobs of a node. No I/O and no clock."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

FACTORS = ((1.0, 1.0), (2.0, 1.0), (1.0, 2.0))
"""Multiples of the present cache and of the present bandwidth."""


class PlanEstimate(msgspec.Struct, frozen=True):
    """An estimate of what a multiple of a cache and of a bandwidth gives. hit_share: of the reads of an epoch.
    utilization: of the accelerators; None: the bandwidth is not known."""

    cache_factor: float
    bandwidth_factor: float
    hit_share: float
    utilization: float | None


def estimates(
    needed_bytes_s: float, data_bytes: float, cache_bytes: float, bandwidth_bytes_s: float
) -> Iterator[PlanEstimate]:
    """Yield an estimate for each of FACTORS.

    A job that reads each file once an epoch, in an order of its own, finds cache_bytes / data_bytes of them in the
    cache, whatever is evicted. The link must bring the others. Several jobs over the same data find more.
    bandwidth_bytes_s: 0 if it is not known. needed_bytes_s and data_bytes are above 0.
    """
    for cache_factor, bandwidth_factor in FACTORS:
        hit_share = min(1.0, cache_factor * cache_bytes / data_bytes)
        missed_bytes_s = (1 - hit_share) * needed_bytes_s
        had_bytes_s = bandwidth_factor * bandwidth_bytes_s
        utilization: float | None = None
        if missed_bytes_s == 0:
            utilization = 1.0
        elif had_bytes_s > 0:
            utilization = min(1.0, had_bytes_s / missed_bytes_s)
        yield PlanEstimate(cache_factor, bandwidth_factor, hit_share, utilization)
