"""Whether a claim of another host, or of another boot of this one, is one that nobody comes back for.

Whether its owner lives can't be seen from here, and its times are those of other clocks, which jump. So who looks notes
when he saw it first, by the clock that nobody sets: it is abandoned when it was there, and the same, for a day.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from headrace.base import boot_clock
from headrace.base.boot_clock import boot_id
from headrace.base.errors import CheckpointFailedError, CheckpointNoSpaceError, PathNotFoundError
from headrace.checkpoint import layout

if TYPE_CHECKING:
    from headrace.checkpoint.storage import CheckpointStorage

ABANDONED_AFTER_S = 24 * 3600.0
_NOTE_BYTES_MAX = 200


def is_abandoned(place: CheckpointStorage, name: str, state: str) -> bool:
    """state: of the claim, differs when it was made anew. Nothing is ever abandoned where nothing can be noted."""
    note = layout.sighting_name(name, boot_id())
    try:
        seen_s, _, of = place.read(note, bytes_max=_NOTE_BYTES_MAX).decode("ascii", "replace").partition(" ")
        if of == state and seen_s.isdigit():
            return boot_clock.now_s() - int(seen_s) >= ABANDONED_AFTER_S
        place.remove(note)
    except PathNotFoundError:
        pass
    with contextlib.suppress(
        CheckpointFailedError, CheckpointNoSpaceError
    ):  # or another one noted it just now
        sink = place.create(note)
        try:
            sink.write(memoryview(f"{int(boot_clock.now_s())} {state}".encode()), 0)
        finally:
            sink.close()
    return False
