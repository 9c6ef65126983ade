"""The collector of a serving process looks at new objects only, and rarely."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from headrace.base.garbage_collector import OBJECTS, collect_rarely
collect_rarely()
assert gc.get_freeze_count() > 1000 and gc.get_threshold()[0] == OBJECTS
runs = []
gc.callbacks.append(lambda phase, info: runs.append(phase))
kept = [[] for _ in range(OBJECTS // 2)]
assert not runs
kept += [[] for _ in range(OBJECTS)]
assert runs
"""


def test_the_collector_runs_after_many_objects() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
