"""Say when a file's time and size name its bytes.

A second write within one tick of a clock leaves the time, and often the size. Bytes that were read before that write
would count as its bytes for ever.
"""

from __future__ import annotations

_TICK_NS = 20_000_000
"""Age at which another write gives a file another time: a tick of the kernel's clock, and more on a busy machine."""
_COARSE_NS = 2_000_000_000
"""The same for a time of whole seconds. Some file systems and protocols have no others; FAT has even seconds."""


def tick_left_s(mtime_ns: int, now_ns: int) -> float:
    """Return the seconds to wait before a file of that time is read; mostly 0. now_ns: by this host's clock. A time
    that is ahead of it by more than a tick was set by a program, and needs no wait."""
    tick_ns = _TICK_NS if mtime_ns % 10**9 else _COARSE_NS
    left_ns = mtime_ns + tick_ns - now_ns
    return left_ns / 1e9 if 0 < left_ns <= 2 * tick_ns else 0.0
