"""DLIO as it is, but for the page cache, which is dropped before each epoch. Run by DLIO's Python, not by ours.

Arguments are DLIO's own. The first rank drops the cache while the others wait, before the clock of the epoch starts.
"""

from __future__ import annotations

import os
from typing import Any

from dlio_benchmark import main
from dlio_benchmark.utils.statscounter import StatsCounter
from dlio_benchmark.utils.utility import DLIOMPI

_start_epoch = StatsCounter.start_epoch


def start_epoch(self: Any, *words: Any) -> None:
    meeting = DLIOMPI.get_instance()
    meeting.comm().barrier()
    if meeting.rank() == 0:
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w") as control:
            control.write("3")
    meeting.comm().barrier()
    _start_epoch(self, *words)


if __name__ == "__main__":
    StatsCounter.start_epoch = start_epoch
    main.main()
