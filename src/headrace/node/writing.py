"""Build the write side, where the settings allow writes."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from headrace.base.errors import HeadraceError, StoreError, UsageError
from headrace.base.write_modes import WriteModes
from headrace.config.schema import Config
from headrace.dataplane.writeback import WriteBack, WriteBackSettings
from headrace.namespace.tree import Namespace
from headrace.overlay.reserve import Reserve
from headrace.overlay.sync_journal import SyncJournal
from headrace.overlay.upper import Upper

log = logging.getLogger(__name__)

THREADS = 16
"""Threads that read files for uploads and scan the upper layer."""


def build_writing(
    config: Config,
    namespace: Namespace,
    *,
    on_written: Callable[[list[bytes], int], None],
    announce: Callable[[set[bytes]], Awaitable[None]],
) -> WriteBack | None:
    """Return the write side, or None where nothing can be written. Files that an earlier run left under other
    settings stay where they are, and a warning names them."""
    modes = WriteModes.parse(config.write)
    upper = Upper(config.upper_folder)
    if not modes.any:
        if upper.at(b"/").is_folder() and upper.at(b"/").names():
            log.warning(
                "files written under other settings are neither shown nor persisted folder=%s",
                config.upper_folder,
            )
        return None
    if modes.copies_max > 1 and not config.cluster:
        raise UsageError(
            f"setting write = {config.write!r}",
            why="other nodes keep the replicas",
            hint="set cluster, or use back",
        )
    return _build(config, modes, namespace, config.upper_folder, on_written=on_written, announce=announce)


def build_persister(
    config: Config,
    namespace: Namespace,
    folder: str,
    *,
    on_written: Callable[[list[bytes], int], None],
    announce: Callable[[set[bytes]], Awaitable[None]],
) -> WriteBack:
    """Build the write side that persists all of an upper layer in another directory, whatever the mode of writing is
    here."""
    modes = WriteModes.parse("back")
    return _build(config, modes, namespace, folder, on_written=on_written, announce=announce)


def _build(
    config: Config,
    modes: WriteModes,
    namespace: Namespace,
    folder: str,
    *,
    on_written: Callable[[list[bytes], int], None],
    announce: Callable[[set[bytes]], Awaitable[None]],
) -> WriteBack:
    upper = Upper(folder)
    reserve = Reserve(config.cache[0].folder)
    try:
        reserve.spend(upper.make)
        journal = reserve.spend(lambda: SyncJournal(os.path.join(folder, "known.db"), reserve))
    except OSError as error:
        if isinstance(error, HeadraceError):
            raise
        raise StoreError(f"folder {folder}", why=os.strerror(error.errno or 0)) from error
    return WriteBack(
        namespace,
        upper,
        journal,
        modes,
        ThreadPoolExecutor(THREADS, thread_name_prefix="write"),
        WriteBackSettings(
            delay_s=config.persist_delay_s,
            timeout_s=config.origin_timeout_s,
            layer_bytes_max=config.cache[0].capacity_bytes // 2,
        ),
        on_written=on_written,
        announce=announce,
    )
