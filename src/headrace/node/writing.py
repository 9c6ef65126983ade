"""Build the write side, where the settings allow writes."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from headrace.base.deadline import transfer_limit_s
from headrace.base.errors import HeadraceError, StoreError, UsageError
from headrace.base.keyed_lock import KeyedLock
from headrace.base.listeners import Listeners
from headrace.base.model import FileId, Version
from headrace.base.write_modes import WriteModes
from headrace.config.schema import Config
from headrace.namespace.namespace import Namespace
from headrace.overlay.dirty_throttle import DirtyThrottle
from headrace.overlay.reserve import Reserve
from headrace.overlay.upper import Upper
from headrace.store.store import Store
from headrace.writeback.changes import ChangeTracker
from headrace.writeback.coherence.pending_names import SingleNodeFlags
from headrace.writeback.conflicts import ConflictCopies
from headrace.writeback.demotion import Demoter
from headrace.writeback.dirty_set import DirtySet
from headrace.writeback.durability import Durability, LocalDurability
from headrace.writeback.executor import SyncExecutor
from headrace.writeback.observers import WriteObserver, WriteObservers
from headrace.writeback.origin_changes import OriginChangeReconciler
from headrace.writeback.planner import LayerScan, StepPlanner
from headrace.writeback.preconditions import Preconditions
from headrace.writeback.removal import RemovalPropagator
from headrace.writeback.sync_journal import JOURNAL_FILE, SyncJournal
from headrace.writeback.upload import Uploader
from headrace.writeback.upper_quota import UpperQuota
from headrace.writeback.writable_layer import WritableLayer
from headrace.writeback.write_ahead import WriteAhead
from headrace.writeback.writeback import WriteBack

log = logging.getLogger(__name__)

THREADS = 16
"""Threads that read files for uploads and scan the upper layer."""
VersionResolver = Callable[[bytes, Version], Awaitable[Version | None]]
"""Makes the writer of a pending version persist it, and returns the origin's version; None if it was replaced."""


@dataclass(frozen=True, slots=True)
class WriteBackSettings:
    """Settings of write-back. delay_s: seconds that a path must be unchanged before it is persisted. timeout_s: limit
    of a request to an origin. layer_bytes_max: the size of the upper layer above which clean files are demoted, and of
    dirty files above which writers are slowed down."""

    delay_s: float
    timeout_s: float
    layer_bytes_max: int

    @classmethod
    def of(cls, config: Config) -> WriteBackSettings:
        return cls(config.persist_delay_s, config.origin_timeout_s, config.cache[0].capacity_bytes // 2)


@dataclass(frozen=True, slots=True)
class WriteState:
    """The state of an upper layer that exists before its write-back: everything that observers may read."""

    namespace: Namespace
    layer: WritableLayer
    preconditions: Preconditions
    planner: StepPlanner
    dirty: DirtySet

    @classmethod
    def of(
        cls,
        namespace: Namespace,
        layer: WritableLayer,
        *,
        query_replicas: Callable[[bytes], Awaitable[None]] | None = None,
        resolve_version: VersionResolver | None = None,
    ) -> WriteState:
        """Build the state of a layer. query_replicas, resolve_version: passed to Preconditions."""
        preconditions = Preconditions(
            namespace,
            layer.upper,
            layer.journal,
            query_replicas=query_replicas,
            resolve_version=resolve_version,
        )
        return cls(namespace, layer, preconditions, StepPlanner(layer), DirtySet())


@dataclass(frozen=True, slots=True)
class CacheOfLayer:
    """The cache that receives demoted files of a layer. owns: returns whether this node owns a path. adopted: called
    with the files that it received."""

    store: Store | None = None
    owns: Callable[[bytes], bool] = field(default=lambda path: True)
    adopted: Listeners[[list[FileId]]] = field(default_factory=Listeners)


def build_single(
    config: Config, namespace: Namespace, cache: CacheOfLayer, sessions: WriteObserver
) -> WriteBack | None:
    """Build the write side of a node without a cluster; return None where nothing can be written."""
    if WriteModes.parse(config.write).copies_max > 1:
        raise UsageError(
            f"setting write = {config.write!r}",
            why="other nodes keep the replicas",
            hint="set cluster, or use back",
        )
    layer = open_own_layer(config)
    if layer is None:
        return None
    state = WriteState.of(namespace, layer)
    observers = [SingleNodeFlags(layer.upper), sessions]
    return build_write_back(state, WriteBackSettings.of(config), observers, cache=cache)


def build_persister(
    config: Config,
    namespace: Namespace,
    directory: str,
    resolve_version: VersionResolver,
    observers: Sequence[WriteObserver],
) -> WriteBack:
    """Build the write side that persists all of an upper layer in another directory, whatever the write mode is here.
    No file leaves that layer: the report to its writer is made from them."""
    state = WriteState.of(
        namespace, open_layer(config, WriteModes.parse("back"), directory), resolve_version=resolve_version
    )
    settings = replace(WriteBackSettings.of(config), layer_bytes_max=sys.maxsize // 2)
    return build_write_back(state, settings, observers)


def open_own_layer(config: Config) -> WritableLayer | None:
    """Open the upper layer of this node; return None where nothing can be written. Files that an earlier run left under
    other settings stay where they are, and a warning names them."""
    modes = WriteModes.parse(config.write)
    upper = Upper(config.upper_folder)
    if modes.any:
        return open_layer(config, modes, config.upper_folder)
    if upper.at(b"/").is_directory() and upper.at(b"/").names():
        log.warning(
            "files written under other settings are neither shown nor persisted folder=%s",
            config.upper_folder,
        )
    return None


def open_layer(config: Config, modes: WriteModes, directory: str) -> WritableLayer:
    """Open an upper layer with its journal. Raises StoreError."""
    upper = Upper(directory)
    reserve = Reserve(config.cache[0].folder)
    try:
        reserve.spend(upper.make)
        journal = reserve.spend(lambda: SyncJournal(os.path.join(directory, JOURNAL_FILE), reserve))
    except OSError as error:
        if isinstance(error, HeadraceError):
            raise
        raise StoreError(f"folder {directory}", why=os.strerror(error.errno or 0)) from error
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix="write")
    return WritableLayer(upper, journal, modes, WriteAhead(journal.sync, threads), threads)


def build_write_back(
    state: WriteState,
    settings: WriteBackSettings,
    observers: Sequence[WriteObserver],
    *,
    cache: CacheOfLayer | None = None,
    durability: Callable[[ChangeTracker], Durability] | None = None,
    trouble_at: Callable[[bytes], str] = lambda path: "",
) -> WriteBack:
    """Build the write-back of a layer. cache: on the same disk as the layer. durability: builds the part that secures
    writes if a mode promises more than this disk and the origin. trouble_at: returns why a path may not be persisted
    now."""
    cache = cache or CacheOfLayer()
    namespace, layer, planner = state.namespace, state.layer, state.planner
    changes = ChangeTracker(layer, state.dirty, WriteObservers(observers), delay_s=settings.delay_s)
    turns = KeyedLock()
    conflicts = ConflictCopies(namespace, layer.upper, layer.journal, on_written=changes.changed_here)
    uploads = Uploader(
        namespace,
        layer,
        state.preconditions,
        conflicts,
        limit_s=partial(transfer_limit_s, settings.timeout_s),
    )
    removals = RemovalPropagator(
        namespace,
        layer,
        state.preconditions,
        conflicts,
        turns,
        limit_s=settings.timeout_s,
        on_written=changes.changed_here,
    )
    demoter = Demoter(
        layer,
        namespace.tree,
        UpperQuota(settings.layer_bytes_max, DirtyThrottle(layer.upper.pressure_path), cache.store),
        store=cache.store,
        owns=cache.owns,
        on_demoted=changes.observers.on_demoted,
        on_adopted=cache.adopted,
    )
    return WriteBack(
        layer,
        changes,
        LayerScan(layer, planner, changes, removals, turns),
        SyncExecutor(namespace, layer, planner, changes, uploads, removals, turns, trouble_at=trouble_at),
        conflicts,
        OriginChangeReconciler(
            namespace,
            layer,
            limit_s=settings.timeout_s,
            on_written=changes.observers.on_demoted,
        ),
        demoter,
        LocalDurability(layer.modes) if durability is None else durability(changes),
    )
