"""Store the attributes that an origin returned for objects besides their bytes: usual ones as a number in the record,
others at the cache file. This needs no lock: a file of an id is always of the same version."""

from __future__ import annotations

import os
from collections.abc import Mapping

from headrace.base.model import Entry, FileId, ObjectMetadata
from headrace.overlay.content_type_codes import extras_by, number_of
from headrace.overlay.object_metadata import drop_origin_extras, extras_of, store_origin_extras
from headrace.store.schema import CachedFile, can_hold_code
from headrace.store.volume import Volume


def numbers_of(entries: list[Entry], extras: Mapping[FileId, ObjectMetadata]) -> dict[FileId, int]:
    """Return the numbers of those objects whose records can hold them; the attributes of others are stored at their
    files."""
    numbers: dict[FileId, int] = {}
    for entry in entries:
        metadata = extras.get(entry.id)
        number = None if metadata is None else number_of(metadata)
        if number is not None and can_hold_code(entry.version.token):
            numbers[entry.id] = number
    return numbers


def noted(volumes: list[Volume], cached: CachedFile) -> ObjectMetadata | None:
    """Return the stored attributes, as soon as some bytes are cached; None if none were stored, or the file was
    evicted."""
    usual = extras_by(cached.content_type_code)
    if usual is not None:
        return usual
    path = _path_of(volumes, cached)
    try:
        return extras_of(path, os.stat(path))
    except OSError:
        return None


def unnote(volumes: list[Volume], cached: CachedFile) -> None:
    """Delete the attributes that an origin returned, after they changed without the bytes. Those of this node's uploads
    stay."""
    drop_origin_extras(_path_of(volumes, cached))


def note(volumes: list[Volume], cached: CachedFile, extras: ObjectMetadata) -> None:
    """Store attributes that arrived after the bytes; do nothing if the file is not complete."""
    if cached.complete:
        store_origin_extras(_path_of(volumes, cached), cached.size_bytes, extras)


def _path_of(volumes: list[Volume], cached: CachedFile) -> bytes:
    volume = volumes[cached.volume]
    return os.fsencode((volume.data_path if cached.complete else volume.part_path)(cached.id))
