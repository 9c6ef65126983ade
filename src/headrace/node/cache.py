"""Open the cache of a node, and replace an index that is damaged."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator

from headrace.base.errors import CorruptIndexError, HeadraceError, PathNotFoundError
from headrace.base.model import FileId, Version
from headrace.base.private_folder import private
from headrace.config.schema import Config, spill_of
from headrace.jobs.expiry import CachedLives
from headrace.node.space_policy import NodeCapacity, PolicyDivision
from headrace.overlay.upper import SMALL_FILES, TREES
from headrace.plan.planned_files import PlannedFiles
from headrace.policy.current import CurrentPolicy
from headrace.seal.catalogue import Catalogue, ids_now
from headrace.store.index import Index
from headrace.store.sealed_files import SealedFile, StoredSeals
from headrace.store.space import SpaceRules
from headrace.store.store import Store
from headrace.store.volume import Volume, take_lock
from headrace.writeback.sync_journal import JOURNAL_FILE

log = logging.getLogger(__name__)


_OF_A_START = {"cache", "capacity", "files", "index", "lock", "reserve", "upper", "written"}
"""Names in a cache directory of which nobody can miss anything while `files` and `upper` have no file."""
_OF_A_LAYER = {*TREES, *SMALL_FILES} | {JOURNAL_FILE + end for end in ("", "-journal", "-shm", "-wal")}
"""Names in an upper layer of which nobody can miss anything while its trees are empty."""


def remove_new_cache(folder: str) -> None:
    """Remove a cache directory that a failed start created. It stays if it has more than such a start leaves. Raises
    OSError, or StoreBusyError if a node uses it."""
    lock = take_lock(f"{folder}/lock", f"cache volume {folder}")
    try:
        has_files = any(files for _, _, files in os.walk(f"{folder}/files"))
        names = {name.removesuffix(".new") for name in os.listdir(folder)}  # killed before it renamed a file
        if not has_files and names <= _OF_A_START and _is_new_layer(f"{folder}/upper"):
            shutil.rmtree(folder)
    finally:
        os.close(lock)


def _is_new_layer(upper: str) -> bool:
    """Return whether an upper layer, if there is any, has nothing: no file, directory or link of a user, and no mark,
    as that of a removed name is an entry, too. Raises OSError."""
    try:
        names = os.listdir(upper)
    except FileNotFoundError:
        return True
    trees = [f"{upper}/{name}" for name in TREES if name in names]
    return {*names} <= _OF_A_LAYER and not any(os.listdir(tree) for tree in trees)


def index_folder(config: Config) -> str:
    """Return the directory of the index, on the first volume."""
    return os.path.join(config.cache[0].folder, "index")


def open_store(
    config: Config, planned: PlannedFiles, policy: CurrentPolicy, lives: CachedLives, capacity: NodeCapacity
) -> Store:
    """Open the cache, with a new index if the old one is corrupt. Remove the remains of seals of an earlier run.
    planned: what plans say of its files. policy, capacity: divide its space. lives: hears
    of its files."""
    volumes = [
        Volume(number, volume.folder, volume.capacity_bytes, volume.tier, writes_a_day=volume.writes_a_day)
        for number, volume in enumerate(config.cache)
    ]
    rules = SpaceRules(
        high=config.watermark_high,
        low=config.watermark_low,
        borrowed_share=config.borrowed_share,
        policy=config.eviction_policy,
        planned=planned,
        lives=lives,
        sinks=config.tier_move_bytes_s > 0,
        divide=lambda index: PolicyDivision(
            *(policy, capacity, index), usable_bytes=int(config.watermark_low * capacity.size_bytes)
        ),
    )
    if os.path.exists(_corrupt_mark(config)):
        move_index_away(config, CorruptIndexError("the last run found a damaged page"))
    try:
        store = _store_at(config, volumes, rules)
    except CorruptIndexError as error:
        move_index_away(config, error)
        store = _store_at(config, volumes, rules)
    try:
        if Catalogue.of_cache(config.cache[0].folder).remove_drafts():
            store.sealed.renew()
    except OSError as error:
        log.warning("the remains of seals can't be removed error=%s", error)
    return store


def _seals_of(config: Config) -> StoredSeals:
    catalogue = Catalogue.of_cache(config.cache[0].folder)
    return StoredSeals(read_ids=lambda: _sealed_ids(catalogue), read_files=lambda: _sealed_files(catalogue))


def _sealed_ids(catalogue: Catalogue) -> Iterator[Iterable[int]]:
    for seal in catalogue.seals():
        try:
            yield ids_now(catalogue, seal)
        except (HeadraceError, OSError) as error:
            log.warning("the files of a damaged seal may be evicted seal=%s error=%s", seal, error)
    yield from catalogue.ids_in_use()


def _sealed_files(catalogue: Catalogue) -> Iterator[SealedFile]:
    for seal in catalogue.seals():
        try:
            record = catalogue.record(seal)
            files = (entry for entry in catalogue.entries(record) if entry.is_file)
            for id, entry in zip(catalogue.ids(record), files, strict=False):
                if entry.checksum is None:
                    continue  # the index alone knew whether it arrived: it is fetched again
                version = Version(entry.size_bytes, entry.mtime_ns, entry.token)
                yield SealedFile(FileId(id), version, entry.checksum)
        except (HeadraceError, OSError) as error:
            log.warning("the files of a damaged seal are not kept seal=%s error=%s", seal, error)


def move_index_away(config: Config, error: CorruptIndexError) -> None:
    """Move a corrupt index away, so that the next open creates a new one."""
    new_path = f"{index_folder(config)}.corrupt-{time.time_ns() // 1_000_000}"
    log.warning("the index is corrupt, it is moved away and created again error=%s path=%s", error, new_path)
    os.rename(index_folder(config), new_path)


def _corrupt_mark(config: Config) -> str:
    return os.path.join(index_folder(config), "corrupt")


def remembers_mounts(config: Config) -> bool:
    """Return whether the index has mounts that were attached while a node ran. Return True when it can't be read,
    because the node will then detect that. Creates nothing."""
    try:
        index = Index.open(index_folder(config), writable=False)
    except PathNotFoundError:
        return False
    except HeadraceError:
        return True
    try:
        return bool(index.mounts.all())
    finally:
        index.close(clean=False)


def mark_index_corrupt(config: Config) -> None:
    """Make the next start move the index away, even when that start does not detect the damage."""
    try:
        with open(_corrupt_mark(config), "wb", opener=private):
            pass
    except OSError as error:
        log.error("the index can't be marked as corrupt error=%s", error)


def close_after_failure(store: Store) -> None:
    """Close the store after a failed start. Its errors are only logged, because the first failure is the one to
    report."""
    try:
        store.close()
    except HeadraceError as error:
        log.warning("the store could not be closed cleanly error=%s", error)


def _store_at(config: Config, volumes: list[Volume], rules: SpaceRules) -> Store:
    return Store.open(
        index_folder(config),
        volumes,
        rules=rules,
        spill=spill_of(config.socket_path),
        seals=_seals_of(config),
    )
