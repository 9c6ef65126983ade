"""What an origin told of objects beside their bytes: what is usual as a number in the record, the rest at the cache
file. Needs no lock: a file of that id is of that version, whoever made it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from headrace.base.model import Entry, FileId, ObjectMetadata
from headrace.overlay.content_type_codes import extras_by, number_of
from headrace.overlay.object_metadata import drop_told, extras_of, note_told
from headrace.store.schema import CachedFile, can_tell
from headrace.store.volume import Volume


def numbers_of(entries: list[Entry], extras: Mapping[FileId, ObjectMetadata]) -> dict[FileId, int]:
    """Of those whose records say it; what there is of the others belongs to their files."""
    found: dict[FileId, int] = {}
    for entry in entries:
        known = extras.get(entry.id)
        number = None if known is None else number_of(known)
        if number is not None and can_tell(entry.version.token):
            found[entry.id] = number
    return found


def noted(volumes: list[Volume], cached: CachedFile) -> ObjectMetadata | None:
    """As soon as some of the bytes are here; None: nothing was noted, or the file went."""
    usual = extras_by(cached.told)
    if usual is not None:
        return usual
    at = _path_of(volumes, cached)
    try:
        return extras_of(at, os.stat(at))
    except OSError:
        return None


def unnote(volumes: list[Volume], cached: CachedFile) -> None:
    """What an origin told is not so any more, though the bytes are. What was put from here stays."""
    drop_told(_path_of(volumes, cached))


def note(volumes: list[Volume], cached: CachedFile, extras: ObjectMetadata) -> None:
    """What was told later than the bytes; nothing where the file is not whole."""
    if cached.complete:
        note_told(_path_of(volumes, cached), cached.size_bytes, extras)


def _path_of(volumes: list[Volume], cached: CachedFile) -> bytes:
    volume = volumes[cached.volume]
    return os.fsencode((volume.data_path if cached.complete else volume.part_path)(cached.id))
