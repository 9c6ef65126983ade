"""Makes an input smaller as long as it shows the same defect."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS_MAX = 10.0


def shrink(data: bytes, shows: Callable[[bytes], bool], *, seconds: float = SECONDS_MAX) -> bytes:
    """shows: whether an input shows the defect."""
    until_s = time.monotonic() + seconds
    step = max(1, len(data) // 2)
    while step:
        place = 0
        while place < len(data):
            if time.monotonic() > until_s:
                return data
            shorter = data[:place] + data[place + step :]
            if shows(shorter):
                data = shorter
            else:
                place += step
        step //= 2
    for place, byte in enumerate(data):
        if time.monotonic() > until_s:
            break
        plain = data[:place] + b"0" + data[place + 1 :]
        if byte != 0x30 and shows(plain):
            data = plain
    return data
