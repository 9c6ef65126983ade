"""The cases: hits of one job, origin bytes of four, the peak rate, a plan of 10,000,000 samples."""

from __future__ import annotations

import itertools
import math
import random
import resource
import statistics
import time
from array import array
from dataclasses import dataclass

from nodebench.machine import Workplace
from nodebench.results import Results
from nodebench.telling import Telling

from headrace.plan.orders import PlannedStream
from headrace.plan.schedule import rate_now, smoothest_rates

from .belady import misses_of_libcachesim
from .caches import FewestReadersCache, FixedCache, PlannedCache, PolicyCache, SimulatedCache
from .jobs import PlannedJobs, misses, substituted_misses

FILES, EPOCHS = 20_000, 4
SAMPLES = 10_000_000
JOINT = "origin bytes a joint epoch of 4 jobs, cache 25 %"
SUBSTITUTED = "the same with substitution"
HITS = "hits of one job, data = 4 x cache, of cache/data"
ALL_MISSES = "origin bytes of 4 epochs"
PEAK = "peak rate at the origin, of the taut string's"
OF_THE_JOB = "a plan: processor time of the job"
SETS = "data sets"


@dataclass
class Bench(Telling):
    """scale: of all counts."""

    place: Workplace
    results: Results
    scale: float
    repeat: int

    @property
    def files(self) -> int:
        return max(400, round(FILES * self.scale))

    def add_epochs(self, measure: str, contender: str, counts: list[int]) -> None:
        """Add each epoch after the first, which begins with an empty cache."""
        for count in counts[1:]:
            self.results.add(measure, contender, count / self.files, unit=SETS)


def caches_without_plan(files: int) -> dict[str, SimulatedCache]:
    return {
        "LRU": PolicyCache("lru", files // 4),
        "S3-FIFO (ours)": PolicyCache("s3fifo", files // 4),
        "never evict": FixedCache(files // 4),
    }


def single(bench: Bench) -> None:
    for name, cache in caches_without_plan(bench.files).items():
        add_hits(bench, name, misses(cache, bench.files, 1, EPOCHS))
    jobs = PlannedJobs(bench.files, 1)
    add_hits(bench, "plan", jobs.misses(PlannedCache(jobs.orders, bench.files // 4), EPOCHS))


def add_hits(bench: Bench, contender: str, counts: list[int]) -> None:
    for count in counts[1:]:
        bench.results.add(HITS, contender, (bench.files - count) / (bench.files // 4), unit="share")


def joint(bench: Bench) -> None:
    for name, cache in caches_without_plan(bench.files).items():
        bench.add_epochs(JOINT, name, misses(cache, bench.files, 4, EPOCHS))
    jobs = PlannedJobs(bench.files, 4)
    counts = jobs.misses(PlannedCache(jobs.orders, bench.files // 4), EPOCHS)
    bench.add_epochs(JOINT, "plan", counts)
    bench.results.add(ALL_MISSES, "plan", sum(counts) / bench.files, unit=SETS)
    try:
        value = misses_of_libcachesim(bench.place.root, bench.files, 4, EPOCHS)
        bench.results.add(ALL_MISSES, "Belady of libcachesim", value, unit=SETS)
    except ImportError:
        bench.results.skip(ALL_MISSES, "Belady of libcachesim", "libcachesim is not installed")


def substitution(bench: Bench) -> None:
    quarter = bench.files // 4
    caches: dict[str, SimulatedCache] = {
        "LRU": PolicyCache("lru", quarter),
        "S3-FIFO (ours)": PolicyCache("s3fifo", quarter),
        "fewest readers left": FewestReadersCache(quarter, 4, bench.files),
    }
    for name, cache in caches.items():
        bench.add_epochs(SUBSTITUTED, name, substituted_misses(cache, bench.files, 4, EPOCHS))


def peak(bench: Bench) -> None:
    """A fetcher asks for its rate every tenth of a second, and knows the next 60 s."""
    steps, step_s, batch = max(100, round(1000 * bench.scale)), 0.162, 7
    for seed in range(bench.repeat):
        sizes = random.Random(seed)
        demand = [
            (number * step_s, sum(max(1, round(sizes.gauss(146_600_628, 68_341_808))) for _ in range(batch)))
            for number in range(1, steps + 1)
        ]
        buffer_bytes = 8 * round(statistics.mean(size for _, size in demand))
        ideal = max(rate for _, rate in smoothest_rates(demand, buffer_bytes, 0))
        bench.results.add(
            PEAK, "the next 60 s known", followed_peak(demand, buffer_bytes, 60.0) / ideal, unit="ratio"
        )
        bench.results.add(
            PEAK, "the next 5 s known", followed_peak(demand, buffer_bytes, 5.0) / ideal, unit="ratio"
        )
        just_in_time = max(size for _, size in demand) / step_s
        bench.results.add(PEAK, "each batch while the last one computes", just_in_time / ideal, unit="ratio")


def followed_peak(demand: list[tuple[float, int]], buffer_bytes: int, horizon_s: float) -> float:
    """Return the highest rate of a fetcher that follows the first segment, as new demand becomes known."""
    tick_s, highest, fetched, used = 0.1, 0.0, 0.0, 0
    upcoming = list(demand)
    for tick in itertools.count():
        now_s = tick * tick_s
        while upcoming and upcoming[0][0] <= now_s:
            used += upcoming.pop(0)[1]
        if not upcoming:
            break
        known = [(at_s - now_s, size) for at_s, size in upcoming if at_s - now_s <= horizon_s]
        rate = rate_now(known, buffer_bytes, math.ceil(max(0.0, fetched - used)))
        highest = max(highest, rate)
        fetched = max(fetched, used) + rate * tick_s
    return highest


def large(bench: Bench) -> None:
    count = max(10_000, round(SAMPLES * bench.scale))
    order = list(range(count))
    random.Random(0).shuffle(order)
    for _ in range(bench.repeat):
        start = time.thread_time()
        array("I", iter(order))
        bench.results.add(OF_THE_JOB, "from an iterator", time.thread_time() - start, unit="s")
        start = time.thread_time()
        numbers = array("I", order)
        bench.results.add(OF_THE_JOB, "from a list", time.thread_time() - start, unit="s")
        before = resident_bytes()
        stream = PlannedStream(numbers, 24)
        total_s, longest_s = build_in_steps(stream)
        taken = (resident_bytes() - before) / count + numbers.itemsize
        bench.results.add("a plan: processor time of the node", "plan", total_s, unit="s")
        bench.results.add("a plan: longest step", "plan", longest_s * 1000, unit="ms")
        bench.results.add("a plan: memory", "plan", round(taken, 2), unit="B a sample")
        probes = random.Random(1).sample(order, 10_000)
        start = time.thread_time()
        for file in probes:
            stream.next_position(file)
        bench.results.add("a plan: next use", "plan", (time.thread_time() - start) / 10_000 * 1e6, unit="µs")
        del stream, numbers


def build_in_steps(stream: PlannedStream) -> tuple[float, float]:
    """Make the tables as an event loop does. Return the processor seconds of all steps, and of the longest."""
    total_s = longest_s = 0.0
    is_built = False
    while not is_built:
        start = time.thread_time()
        is_built = stream.build(4096)
        step_s = time.thread_time() - start
        total_s, longest_s = total_s + step_s, max(longest_s, step_s)
    return total_s, longest_s


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
