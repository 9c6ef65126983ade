"""Time to live of 10,000,000 files, in simulated time."""

from __future__ import annotations

import resource
import time
from array import array

from headrace.base.model import FileId
from headrace.policy.expiry import TimerWheel

from .cases import Bench

FILES = 10_000_000
TTL_S, LOADED_IN_S, DAY_S = 2 * 86_400, 3 * 3600, 86_400
EXAMINED_MAX = 20_000
LATENESS = "expiry of 10,000,000 files: lateness at most"
PROCESSOR = "the same: processor share of a core"
MEMORY = "the same: memory"
SETTING = "the same: processor time of setting a time"
LONGEST = "the same: longest call"
_ODD = 0x9E37_79B9_7F4A_7C15
_MASK = (1 << 63) - 1


def expiry(bench: Bench) -> None:
    """All files are fetched within 3 hours, with 2 days to live since the last use. Half of them are used a day later.
    The wheel is asked each second, and gets the true times from an array."""
    count = bench.count(FILES)
    last_use_s = array("I", (number * LOADED_IN_S // count for number in range(count)))
    back = pow(_ODD, -1, 1 << 63)

    def expires_at(id: FileId) -> float:
        return last_use_s[id * back & _MASK] + TTL_S

    before = resident_bytes()
    wheel = TimerWheel(0)
    start = time.thread_time()
    for number in range(count):
        wheel.set(FileId(number * _ODD & _MASK), last_use_s[number] + TTL_S)
    bench.results.add(SETTING, "timer wheel", (time.thread_time() - start) / count * 1e6, unit="µs")
    bench.results.add(MEMORY, "timer wheel", (resident_bytes() - before) / count, unit="B a file")
    for number in range(0, count, 2):
        last_use_s[number] += DAY_S
    latest_s = longest_s = used_s = 0.0
    end_s = TTL_S + LOADED_IN_S + DAY_S + 2
    expired = 0
    for now_s in range(1, end_s):
        start = time.thread_time()
        ids = wheel.due(now_s, EXAMINED_MAX, expires_at)
        call_s = time.thread_time() - start
        used_s, longest_s = used_s + call_s, max(longest_s, call_s)
        expired += len(ids)
        if ids:
            latest_s = max(latest_s, now_s - min(map(expires_at, ids)))
    assert expired == count
    bench.results.add(LATENESS, "timer wheel", latest_s, unit="s")
    bench.results.add(PROCESSOR, "timer wheel", used_s / end_s, unit="share")
    bench.results.add(LONGEST, "timer wheel", longest_s * 1000, unit="ms")


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
