"""What an origin told of objects beside their bytes, at their cache files. Needs no lock: a file of that id is of that
version, whoever made it.
"""

from __future__ import annotations

import os

from headrace.base.model import Extras
from headrace.layer.extras import drop_told, extras_of, note_told
from headrace.store.schema import CachedFile
from headrace.store.volume import Volume


def noted(volumes: list[Volume], cached: CachedFile) -> Extras | None:
    """As soon as some of the bytes are here; None: nothing was noted, or the file went."""
    at = _path_of(volumes, cached)
    try:
        return extras_of(at, os.stat(at))
    except OSError:
        return None


def unnote(volumes: list[Volume], cached: CachedFile | None) -> None:
    """What an origin told is not so any more, though the bytes are. What was put from here stays."""
    if cached is not None:
        drop_told(_path_of(volumes, cached))


def note(volumes: list[Volume], cached: CachedFile, extras: Extras) -> None:
    """What was told later than the bytes; nothing where the file is not whole."""
    if cached.complete:
        note_told(_path_of(volumes, cached), cached.size_bytes, extras)


def _path_of(volumes: list[Volume], cached: CachedFile) -> bytes:
    volume = volumes[cached.volume]
    return os.fsencode((volume.data_path if cached.complete else volume.part_path)(cached.id))
