"""The LMDB environment of an index: open it, keep its checkpoint, limit its file, copy it without free pages.

transactions.py reads and writes through it. Only these two, and the lookup of a hit in index.py, call LMDB.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

import lmdb

from headrace.base import failpoint
from headrace.base.errors import CorruptIndexError, HeadraceError, NoSpaceError, StoreError
from headrace.base.private_folder import private
from headrace.overlay.reserve import is_full
from headrace.store import compaction, index_checkpoint
from headrace.store.growth import Growth

log = logging.getLogger(__name__)

MAP_BYTES = 64 << 30

DATABASES = (b"entries", b"names", b"directories", b"files", b"mounts", b"meta")


class Environment:
    """An open environment. env: LMDB's. databases: all its tables, each also an attribute. is_new: nothing was ever
    committed in it. restored: it was reset to its checkpoint. lock: held by the thread that commits."""

    def __init__(self, directory: str, *, writable: bool, boot_id: str, lock: threading.RLock) -> None:
        """Open the environment. Raises CorruptIndexError or StoreError."""
        self.folder = directory
        self.restored = False
        self._writable, self._boot_id, self._lock = writable, boot_id, lock
        self._pin: Any = None
        self._growth: Growth | None = None
        self._checkpointing = threading.Lock()
        self._renewal: threading.Thread | None = None
        try:
            with compaction.files_stay(directory):
                self._open(f"{directory}/data.mdb")
        except lmdb.Error as error:
            raise translated(directory, error) from error
        except HeadraceError:
            raise
        except OSError as error:
            raise StoreError(
                f"index {directory} can't be opened", why=error.strerror or str(error)
            ) from error

    def _open(self, data: str) -> None:
        if self._writable:
            compaction.recover(self.folder)
            self.restored = index_checkpoint.restore(self.folder, self._boot_id)
        if os.path.exists(data):
            index_checkpoint.newest_meta(data)
        self.env = lmdb.open(
            self.folder,
            map_size=MAP_BYTES,
            mode=0o600,
            max_dbs=len(DATABASES),
            max_readers=1024,
            readonly=not self._writable,
            create=self._writable,
            sync=False,
            readahead=False,
            # a spare transaction keeps its reader slot, which a forked child would share: LMDB would then
            # reuse pages while one of the two still reads them. Costs 0.1 µs a read
            max_spare_txns=8 if self._writable else 0,
        )
        try:
            stat = os.stat(data)
            self._identity = stat.st_dev, stat.st_ino
            info = self.env.info()
            index_checkpoint.check_length(data, info["last_pgno"])
            self.is_new = info["last_txnid"] == 0
            self.databases = [self.env.open_db(name, create=self._writable) for name in DATABASES]
            self.entries, self.names, self.directories, self.files, self.mounts, self.meta = self.databases
            if self._writable:
                self.env.reader_check()
                self._growth = Growth(data)
        except lmdb.DiskError:  # the disk is full, and nothing is damaged
            self.close()
            raise
        except lmdb.Error as error:
            self.close()
            raise CorruptIndexError(f"index {self.folder} is corrupt", why=str(error)) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._renewal is not None:
            self._renewal.join()
        if self._pin is not None:
            self._pin.abort()
            self._pin = None
        self.env.close()
        if self._growth is not None:
            self._growth.close()
            self._growth = None

    @property
    def is_replaced(self) -> bool:
        """Return whether another file is in the place of the open one."""
        try:
            stat = os.stat(f"{self.folder}/data.mdb")
        except OSError:
            return False
        return (stat.st_dev, stat.st_ino) != self._identity

    @property
    def pages(self) -> int:
        """Return the size of the data file in pages."""
        return int(self.env.info()["last_pgno"]) + 1

    def live_pages(self, txn: Any) -> int:
        """Return the pages of the names and records of a commit, without free pages and the lists of them."""
        stats = [txn.stat(database) for database in self.databases]
        return sum(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats)

    # ------------------------------------------------------------ the checkpoint

    def checkpoint(self) -> None:
        """Make all commits so far durable. Blocks: three disk flushes, all outside the lock."""
        try:
            with self._checkpointing:
                self.env.reader_check()  # free the slots of killed clients, which keep pages; there are 1024
                with self._lock:
                    pin = self.env.begin()  # before the old one ends, so that no page is free in between
                    page = index_checkpoint.newest_meta(f"{self.folder}/data.mdb")
                try:
                    self.env.sync(True)
                    failpoint.hit("checkpoint.synced")
                    index_checkpoint.write_checkpoint(self.folder, self._boot_id, page)
                except BaseException:
                    pin.abort()
                    raise
                live = self.live_pages(pin)
                with self._lock:
                    self._hold(pin)
                    assert self._growth is not None
                    self._growth.rebase(pin.id(), live)
        except lmdb.Error as error:
            raise translated(self.folder, error) from error
        except HeadraceError:
            raise
        except OSError as error:
            kind = NoSpaceError if is_full(error) else StoreError
            raise kind(f"index {self.folder} can't be synced", why=error.strerror or str(error)) from error

    def hold_checkpoint(self) -> None:
        """Keep the pages of the restored checkpoint until there is a new one."""
        self._hold(self.env.begin())

    def _hold(self, pin: Any) -> None:
        """Hold a pin: as long as it is open, no page that its commit can see is used again."""
        if self._pin is not None:
            self._pin.abort()
        self._pin = pin

    # ------------------------------------------------------------ the size of the file

    def renew_if_needed(self) -> threading.Thread | None:
        """Renew the checkpoint, after a commit and under the lock, before the file grows too large. Return the thread
        if the caller must wait for it; the caller waits without the lock."""
        if self._growth is None:
            return None
        pages, renewal = self.pages, self._renewal
        if renewal is None or not renewal.is_alive():
            if not self._growth.needs_checkpoint(pages):
                return None
            renewal = self._renewal = threading.Thread(target=self._renew, name="checkpoint", daemon=True)
            renewal.start()
        return renewal if self._growth.outruns_disk(pages) else None

    def _renew(self) -> None:
        try:
            self.checkpoint()
        except HeadraceError as error:  # the next sync raises it
            log.warning("checkpoint of the index failed error=%s", error)

    @property
    def is_bloated(self) -> bool:
        """Return whether most pages of the file are free."""
        return self._growth is not None and self._growth.is_bloated(self.pages)

    def copy_compacted(self) -> bool:
        """Make a durable copy without free pages beside the file. Return False if the disk has no space for it."""
        try:
            with open(compaction.copy_path(self.folder), "wb", opener=private) as file:
                self.env.copyfd(file.fileno(), compact=True)
            compaction.settle_copy(self.folder, self._boot_id)
        except (lmdb.Error, OSError) as error:
            log.warning("the index was not compacted error=%s", error)
            compaction.recover(self.folder)
            return False
        return True


def translated(directory: str, error: lmdb.Error) -> StoreError | NoSpaceError:
    if isinstance(error, lmdb.MapFullError):
        return NoSpaceError(f"index {directory} is full", why=f"it has {MAP_BYTES >> 30} GiB")
    if isinstance(error, lmdb.DiskError):
        return NoSpaceError(f"index {directory} can't be written", why="the filesystem is full")
    kinds = (
        lmdb.CorruptedError,
        lmdb.InvalidError,
        lmdb.VersionMismatchError,
        lmdb.PageNotFoundError,
        lmdb.PanicError,
        lmdb.BadTxnError,  # after a damaged page in the same transaction
    )
    if isinstance(error, kinds):
        return CorruptIndexError(f"index {directory} is corrupt", why=str(error))
    return StoreError(f"index {directory} can't be used", why=str(error))
