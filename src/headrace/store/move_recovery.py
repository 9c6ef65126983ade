"""Finish or undo, at a start, the moves between volumes that a kill interrupted.

A copy keeps its name in the staging place until its move has ended (`staged_copy.py`). Of the two cache files the one
stays that the index names.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from msgspec import structs

from headrace.base.errors import CorruptIndexError
from headrace.base.model import FileId
from headrace.base.tiers import MEMORY
from headrace.store.index import Index
from headrace.store.schema import CachedFile
from headrace.store.staged_copy import staged_ids, unstage
from headrace.store.volume import Volume

log = logging.getLogger(__name__)

BATCH = 1000


def settle_moves(index: Index, volumes: Sequence[Volume]) -> None:
    """Remove the copies of moves that did not end, or the old files of those whose record was written. What a disk
    can't remove stays for the next start."""
    for volume in volumes:
        try:
            for id in staged_ids(volume):
                _settle(index, volumes, volume, id)
        except CorruptIndexError:
            raise
        except OSError as error:
            volume.note_failure(error)
            log.warning("moves of files can't be ended folder=%s error=%s", volume.folder, error)


def _settle(index: Index, volumes: Sequence[Volume], volume: Volume, id: FileId) -> None:
    cached = index.cached(id)
    if cached is None or cached.volume != volume.number:
        # after a power loss, the old file may be gone although the index names it
        if cached is None or where_it_is(volumes, cached) is cached:
            volume.unlink(id)
    elif _has(volume, cached):
        for other in volumes:
            if other is not volume:
                other.unlink(id)
    unstage(volume, id)


def where_it_is(volumes: Sequence[Volume], cached: CachedFile) -> CachedFile:
    """Return the record of a complete file that is on another volume than the index says. A power loss takes the
    index back to its checkpoint, and a move after that stays on the disks."""
    if not cached.complete or _has(volumes[cached.volume], cached):
        return cached
    other = next((volume for volume in volumes if _has(volume, cached)), None)
    return cached if other is None else structs.replace(cached, volume=other.number)


def _has(volume: Volume, cached: CachedFile) -> bool:
    try:
        return os.stat(volume.data_path(cached.id)).st_size == cached.size_bytes
    except OSError:
        return False


def forget_lost(index: Index, volumes: Sequence[Volume]) -> None:
    """Delete the records of files that were in memory before the machine was restarted."""
    lost = {volume.number for volume in volumes if volume.is_new and volume.tier == MEMORY}
    if not lost:
        return
    ids: list[FileId] = [cached.id for cached in index.cached_files() if cached.volume in lost]
    for start in range(0, len(ids), BATCH):
        with index.batch():
            for id in ids[start : start + BATCH]:
                index.drop_cached(id)
