"""Set the garbage collector of a process that serves many small requests."""

from __future__ import annotations

import gc

OBJECTS = 50_000
"""New objects after which the collector runs. Reference counting frees most garbage. By default the collector runs
after every 700 objects, which takes a twentieth of a session's time while small files are written."""


def collect_rarely() -> None:
    """Make the collector ignore all present objects, and run rarely from now on."""
    gc.freeze()  # without a collection before: that takes 10 ms of a start, and imports leave little garbage
    gc.set_threshold(OBJECTS, 20, 100)
