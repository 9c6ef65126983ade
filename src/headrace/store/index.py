"""The index: names, ids, and what is cached of each id. It uses LMDB through transactions.py.

Any process of the host reads; only the node writes. A read is a transaction of its own (about 2 us) and sees the last
commit. Writes may come from several threads of the node: `batch` is a lock, too. A write outside a batch is visible
everywhere and survives kill -9 when it returns; writes in a batch, when the outermost batch ends. They survive a power
loss after the next `checkpoint` (see index_checkpoint.py).
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cached_property, partial

import lmdb

from headrace.base import boot_clock
from headrace.base.errors import (
    NotAllowedError,
    PathNotFoundError,
    StoreError,
)
from headrace.base.model import ROOT_ID, Entry, FileId, Kind, Version
from headrace.base.namespace_path import NAME_BYTES_MAX
from headrace.base.private_folder import make_private
from headrace.base.trusted_owner import is_trusted
from headrace.store import compaction
from headrace.store.environment import Environment, translated
from headrace.store.index_checkpoint import PAGE_BYTES
from headrace.store.index_state import IndexState
from headrace.store.mount_rows import MountRows
from headrace.store.names import NameWriter, OnRedated
from headrace.store.schema import (
    COMPLETE,
    KEY,
    KIND_BITS,
    KIND_FILE,
    UNVERIFIED,
    CachedFile,
    cached_head,
    entry_head,
    fresh_range,
    pack_cached,
    unpack_cached,
    unpack_entry,
    unpack_fresh_until,
)
from headrace.store.transactions import Transactions
from headrace.store.volume import take_lock

log = logging.getLogger(__name__)

CHILDREN_BATCH = 512


class Index:
    """The index of a node, open in one process. Reads are methods of its own.

    mounts: reads and writes the rows of mounts. state: what the index records about itself.
    superseded: ids whose cached files have no name any more; the store evicts them first. on_redated: as in NameWriter.
    """

    def __init__(
        self, directory: str, *, writable: bool, boot_id: str, on_redated: OnRedated = lambda _: None
    ) -> None:
        self.folder = directory
        self.superseded: deque[FileId] = deque()
        self._on_redated = on_redated
        self._writable = writable
        self._boot_id = boot_id
        self._lock_fd = take_lock(f"{directory}/lock", f"index {directory}") if writable else -1
        try:
            self._open()
            if self._environment.is_bloated:
                self._compact()
        except BaseException:
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
            raise

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        writable: bool,
        boot_id: str | None = None,
        on_redated: OnRedated = lambda _: None,
    ) -> Index:
        """Open an index. Raises CorruptIndexError, StoreBusyError or PathNotFoundError for a reader if no node created
        it. boot_id: for tests."""
        if writable:
            make_private(directory)
        else:
            _check_believed(directory)
        return cls(
            directory, writable=writable, boot_id=boot_id or boot_clock.boot_id(), on_redated=on_redated
        )

    def close(self, *, clean: bool) -> None:
        """Close the index. clean: everything is synced, so the next open need not recover; False leaves the state of a
        kill -9."""
        if self._writable and clean:
            self.state.end_run()
        self._environment.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _compact(self) -> None:
        """Continue with a copy that has no free pages. A client with the old file open finds no fresh listing in it,
        calls the node, and opens the copy. Without space for the copy nothing changes."""
        if not self._environment.copy_compacted():
            return
        state = self.state
        self._transactions.clear(self._directories)
        self._environment.close()
        try:
            compaction.install(self.folder)
        except OSError as error:
            log.warning("the index was not compacted error=%s", error)
        self._open(continues=state)

    def _open(self, *, continues: IndexState | None = None) -> None:
        lock = threading.RLock()
        environment = self._environment = Environment(
            self.folder, writable=self._writable, boot_id=self._boot_id, lock=lock
        )
        # a lookup has no time for an attribute of another object
        self._env = environment.env
        self._entries, self._names, self._directories, self._files, _, _ = environment.databases
        transactions = self._transactions = Transactions(environment, lock)
        self._get = transactions.get
        try:
            self.state = IndexState(
                transactions,
                environment,
                writable=self._writable,
                boot_id=self._boot_id,
                continues=continues,
            )
        except BaseException:
            environment.close()
            raise
        self._boot = self.state.boot
        self._boot_ms, self._boot_end = fresh_range(self._boot)
        self.mounts = MountRows(transactions, environment)

    @cached_property
    def names(self) -> NameWriter:
        """Return the writer of names, for the node. It refers to the index, so a reader must not have it: a client that
        drops a replaced index frees the file at once, without the garbage collector."""
        assert self._writable
        return NameWriter(
            self._transactions, self._environment, self, boot=self._boot, on_redated=self._on_redated
        )

    @property
    def is_replaced(self) -> bool:
        """Return whether a smaller copy, with the same ids, is in the place of the open file."""
        return self._environment.is_replaced

    def reopen_after_fork(self) -> None:
        """Open the index again in the child of a reader: LMDB must not be used across a fork. The parent's stays open.
        Errors as in open."""
        assert not self._writable
        self._environment.close()
        self._open()

    # ------------------------------------------------------------ reads

    def lookup(self, parent: FileId, name: bytes) -> Entry | None:
        if len(name) > NAME_BYTES_MAX or not name:
            return None
        value = self._get(self._entries, KEY.pack(parent) + name)
        return None if value is None else unpack_entry(parent, name, value)

    def fresh_lookup(self, parent: FileId, name: bytes, now_ns: int) -> tuple[bool, Entry | None]:
        """Return whether the listing of a directory is fresh at now_ns, and then the entry of a name or None. One
        transaction, as most lookups of a mount need both; it sees nothing of a batch."""
        key, now_ms = KEY.pack(parent), self._boot_ms + now_ns // 1_000_000
        try:
            txn = self._env.begin()
            try:
                fresh = txn.get(key, None, self._directories)
                if fresh is None or not now_ms < int.from_bytes(fresh, "little") <= self._boot_end:
                    return False, None
                value = txn.get(key + name, None, self._entries) if name else None
            finally:
                txn.abort()
        except lmdb.BadValsizeError:  # no name is so long
            return True, None
        except lmdb.Error as error:
            raise translated(self.folder, error) from error
        return True, None if value is None else unpack_entry(parent, name, value)

    def whole_file(
        self, parent: FileId, name: bytes, now_ns: int
    ) -> tuple[FileId, int, int, bytes, bytes] | None:
        """Return id, size and volume of a file, and the values of its entry and its record. None unless the file is
        completely cached and trusted, and the listing of its directory is fresh at now_ns. One transaction in one
        function, which unpacks only what a read needs: 2 instead of 8 us."""
        key = KEY.pack(parent)
        try:
            txn = self._env.begin()
            try:
                fresh = txn.get(key, None, self._directories)
                value = txn.get(key + name, None, self._entries)
                if fresh is None or value is None:
                    return None
                head, id, size_bytes, _ = entry_head(value)
                cached = txn.get(KEY.pack(id), None, self._files)
            finally:
                txn.abort()
        except lmdb.BadValsizeError:  # no name is so long
            return None
        except lmdb.Error as error:
            raise translated(self.folder, error) from error
        if cached is None or head & KIND_BITS != KIND_FILE:
            return None
        if not self._boot_ms + now_ns // 1_000_000 < int.from_bytes(fresh, "little") <= self._boot_end:
            return None
        volume, flags = cached_head(cached)
        if flags & (COMPLETE | UNVERIFIED) != COMPLETE:
            return None
        return id, size_bytes, volume, value, cached

    def entry(self, id: FileId) -> Entry | None:
        """Return the entry of an id; None if its name belongs to another id now."""
        if id == ROOT_ID:
            return Entry(ROOT_ID, ROOT_ID, b"", Kind.DIRECTORY, Version(0, 0))
        key = self._get(self._names, KEY.pack(id))
        if key is None:
            return None
        value = self._get(self._entries, key)
        if value is None:
            return None
        entry = unpack_entry(FileId(KEY.unpack_from(key)[0]), key[8:], value)
        return entry if entry.id == id else None

    def path_of(self, id: FileId) -> bytes | None:
        """Return the path of an id, b"/" for the root; None if the id is not current."""
        parts: list[bytes] = []
        while id != ROOT_ID:
            key = self._get(self._names, KEY.pack(id))
            if key is None:
                return None
            parts.append(key[8:])
            id = FileId(KEY.unpack_from(key)[0])
        return b"/" + b"/".join(reversed(parts))

    def children(self, directory: FileId, *, after: bytes = b"") -> Iterator[Entry]:
        """Yield the entries of a directory in byte order, with names beyond `after`. Each batch is of one commit; the
        next one may be of a later commit."""
        while True:
            batch = self._children_batch(directory, after)
            yield from batch
            if len(batch) < CHILDREN_BATCH:
                return
            after = batch[-1].name

    def fresh_until_ns(self, directory: FileId) -> int:
        """Return the time (CLOCK_BOOTTIME) until which the complete listing is fresh; 0 if it was never listed or is
        invalid."""
        value = self._get(self._directories, KEY.pack(directory))
        return 0 if value is None else unpack_fresh_until(self._boot, value)

    def cached(self, id: FileId) -> CachedFile | None:
        value = self._get(self._files, KEY.pack(id))
        return None if value is None else unpack_cached(id, value)

    def cached_files(self) -> Iterator[CachedFile]:
        after = 0
        while True:
            batch = self.cached_batch(after)
            yield from batch
            if len(batch) < CHILDREN_BATCH:
                return
            after = batch[-1].id

    def statistics(self) -> dict[str, int]:
        """Return sizes. entries: names in the tree. files: cached files. bytes: of the index file. live_bytes: of its
        pages with names and records."""
        with self._transactions.reading() as txn:
            entries = txn.stat(self._names)["entries"]
            files = txn.stat(self._files)["entries"]
            live_pages = self._environment.live_pages(txn)
        return {
            "entries": entries,
            "files": files,
            "bytes": self.size_bytes,
            "live_bytes": live_pages * PAGE_BYTES,
        }

    @property
    def size_bytes(self) -> int:
        """Return the size of the index file."""
        return self._environment.pages * PAGE_BYTES

    # ------------------------------------------------------------ writes

    def batch(self) -> AbstractContextManager[None]:
        """Make all writes within the context one commit, or none if an exception leaves it. Batches nest; keep them
        short: other threads wait, as does the caller if the disk does not keep up."""
        return self._transactions.batch()

    def put_cached(self, cached: CachedFile) -> None:
        with self.batch():
            self._transactions.put(self._files, KEY.pack(cached.id), pack_cached(cached))

    def drop_cached(self, id: FileId) -> None:
        with self.batch():
            self._transactions.delete(self._files, KEY.pack(id))

    def supersede(self, id: FileId) -> None:
        """Let the store evict a file first, because its name is gone or means another one: as soon as that is
        committed."""
        self._transactions.when_committed(partial(self.superseded.append, id))

    def _children_batch(self, directory: FileId, after: bytes) -> list[Entry]:
        prefix = KEY.pack(directory)
        entries: list[Entry] = []
        with self._transactions.reading() as txn:
            cursor = txn.cursor(self._entries)
            # the least key beyond a name is that name with a zero byte added
            if cursor.set_range(prefix + after + b"\0" if after else prefix):
                for key, value in cursor:
                    if key[:8] != prefix:
                        break
                    entries.append(unpack_entry(directory, key[8:], value))
                    if len(entries) == CHILDREN_BATCH:
                        break
        return entries

    def cached_batch(self, after: int) -> list[CachedFile]:
        """Return records with ids above `after`, in order; an empty list at the end."""
        records: list[CachedFile] = []
        with self._transactions.reading() as txn:
            cursor = txn.cursor(self._files)
            if cursor.set_range(KEY.pack(after + 1)):
                for key, value in cursor:
                    records.append(unpack_cached(FileId(KEY.unpack(key)[0]), value))
                    if len(records) == CHILDREN_BATCH:
                        break
        return records


def _check_believed(directory: str) -> None:
    """Refuse an index that another user wrote: LMDB maps it and does not validate its contents. Raises
    PathNotFoundError or NotAllowedError."""
    try:
        owner = os.stat(f"{directory}/data.mdb").st_uid
    except FileNotFoundError:
        raise PathNotFoundError(f"index {directory}", why="no node made it yet") from None
    except OSError as error:
        raise StoreError(f"index {directory} can't be opened", why=error.strerror or str(error)) from error
    if not is_trusted(owner):
        raise NotAllowedError(
            f"index {directory}", why=f"it belongs to user {owner}", hint="run this as that user"
        )
