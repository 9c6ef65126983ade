"""Eight nodes at one origin that permits 2,000 requests a second, in simulated time."""

from __future__ import annotations

import random
from collections.abc import Callable

from headrace.testing.origin_budget import TICK_S, most_within, requests_sent

from .cases import Bench

LIMIT, NODES, SECONDS, SETTLED_S = 2000.0, 8, 120, 5
USED = "requests at the origin with 8 nodes, of the limit"
MOST = "the same, at most in 10 s"


def budget(bench: Bench) -> None:
    for seed in range(bench.repeat):
        for name, arrivals in loads(seed).items():
            counts = requests_sent(LIMIT, arrivals, SECONDS)
            settled = counts[round(SETTLED_S / TICK_S) :]
            bench.results.add(USED, name, sum(settled) / (LIMIT * len(settled) * TICK_S), unit="share")
            bench.results.add(MOST, name, most_within(counts, 10) / (10 * LIMIT), unit="share")


def loads(seed: int) -> dict[str, list[Callable[[float], float]]]:
    """Return requests a second of each node at a time. All nodes together always want more than the limit."""
    chosen = random.Random(seed)
    demands = [chosen.uniform(200, 1500) for _ in range(NODES)]
    turns = [(chosen.uniform(8, 30), chosen.uniform(0, 30)) for _ in range(NODES - 2)]

    def steady(rate: float) -> Callable[[float], float]:
        return lambda _: rate

    def switching(period_s: float, phase_s: float) -> Callable[[float], float]:
        return lambda now_s: 1000.0 if (now_s + phase_s) % period_s < period_s / 2 else 0.0

    return {
        "demands that differ": [steady(demand) for demand in demands],
        "loads that begin and end": [switching(*turn) for turn in turns] + [steady(1500.0)] * 2,
    }
