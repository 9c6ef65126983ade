"""The index: names, ids, and what is cached of each id. It uses LMDB through environment.py.

Any process of the host reads; only the node writes. A read is a transaction of its own (about 2 us) and sees the last
commit. Writes may come from several threads of the node: `batch` is a lock, too. A write outside a batch is visible
everywhere and survives kill -9 when it returns; writes in a batch, when the outermost batch ends. They survive a power
loss after the next `checkpoint` (see index_checkpoint.py).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import lmdb
import msgspec

from headrace.base import boot_clock, failpoint
from headrace.base.decoding import decode_msgpack
from headrace.base.errors import (
    CorruptIndexError,
    NotAllowedError,
    NotSupportedError,
    PathNotFoundError,
    StoreError,
)
from headrace.base.model import FILE_ID_MAX, ROOT_ID, Attributes, Entry, FileId, Kind, Version
from headrace.base.private_folder import make_private
from headrace.base.trusted_owner import is_trusted
from headrace.store import compaction
from headrace.store.environment import Environment, translated
from headrace.store.index_checkpoint import PAGE_BYTES
from headrace.store.listing import ListingWriter
from headrace.store.schema import (
    COMPLETE,
    FORMAT,
    KEY,
    KIND_BITS,
    KIND_FILE,
    UNVERIFIED,
    CachedFile,
    cached_head,
    content_type_code_of,
    entry_head,
    entry_key,
    fresh_range,
    next_boot,
    pack_cached,
    pack_entry,
    pack_fresh_until,
    unpack_cached,
    unpack_entry,
    unpack_fresh_until,
)
from headrace.store.volume import take_lock

__all__ = ["Index", "ListingWriter"]

log = logging.getLogger(__name__)

OnRedated = Callable[[CachedFile], None]
NAME_BYTES_MAX = 255
CHILDREN_BATCH = 512

_AFTER_POWER_LOSS_IDS = 1 << 20
"""A power loss erases the record of ids that were assigned after the checkpoint; their cache files may still exist."""


_IDS_BEGIN_MS = 1_700_000_000_000


def _first_id() -> int:
    """Return the first id of a new index, beyond those that an earlier index in its place assigned at up to 128,000 a
    second. Kernels and programs still hold those ids if a corrupt index is created anew under them."""
    ms = time.time_ns() // 1_000_000 - _IDS_BEGIN_MS
    return ROOT_ID + 1 + ((max(0, ms) << 7) & (FILE_ID_MAX >> 1))


def new_generation() -> int:
    """Return 31 random bits."""
    return int.from_bytes(os.urandom(4), "little") >> 1


class Index:
    """The index of a node, open in one process.

    generation: random, created with the index; with another generation all ids differ. restored: this open reset the
    index to a checkpoint, because the machine was restarted without a clean close. unsettled: recovery is not finished,
    so there is no checkpoint yet; if the process is killed until then, the next open finds the same state.
    superseded: ids whose cached files have no name any more; the store evicts them first. on_redated: called within
    the transaction with the record of a file whose object has a new time and the same bytes, for example when only
    metadata changed.
    """

    def __init__(
        self, folder: str, *, writable: bool, boot_id: str, on_redated: OnRedated = lambda _: None
    ) -> None:
        self.folder = folder
        self.restored = self.unsettled = False
        self.superseded: deque[FileId] = deque()
        self._on_redated = on_redated
        self._writable = writable
        self._boot_id = boot_id
        self._lock = threading.RLock()
        self._txn: Any = None
        self._owner = 0
        self._depth = 0
        self._next_id = self._saved_next_id = FileId(ROOT_ID + 1)
        self.created = self.clean = False
        self._lock_fd = take_lock(f"{folder}/lock", f"index {folder}") if writable else -1
        self._listings: dict[FileId, list[ListingWriter]] = {}
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
        folder: str,
        *,
        writable: bool,
        boot_id: str | None = None,
        on_redated: OnRedated = lambda _: None,
    ) -> Index:
        """Open an index. CorruptIndexError, StoreBusyError; PathNotFoundError for a reader if no node created it.
        boot_id: for tests."""
        if writable:
            make_private(folder)
        else:
            _check_believed(folder)
        return cls(folder, writable=writable, boot_id=boot_id or boot_clock.boot_id(), on_redated=on_redated)

    def close(self, *, clean: bool) -> None:
        """Close the index. clean: everything is synced, so the next open need not recover; False leaves the state of a
        kill -9."""
        if self._writable and clean:
            self._set_meta(b"clean", b"1")
            self.checkpoint()
        self._environment.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _compact(self) -> None:
        """Continue with a copy that has no free pages. A client with the old file open finds no fresh listing in it,
        calls the node, and opens the copy. Without space for the copy nothing changes."""
        if not self._environment.copy_compacted():
            return
        restored, clean = self.restored, self.clean
        with self.batch():
            self._txn.drop(self._directories, delete=False)
        self._environment.close()
        try:
            compaction.install(self.folder)
        except OSError as error:
            log.warning("index not compacted error=%s", error)
        self._open()
        self.restored, self.clean = restored, clean

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

    def whole_entry(self, parent: FileId, name: bytes, now_ns: int) -> tuple[Entry, int, int | None] | None:
        """Return the entry of such a file, its volume, and `CachedFile.content_type_code`; None as in whole_file."""
        file = self.whole_file(parent, name, now_ns)
        return (
            None
            if file is None
            else (unpack_entry(parent, name, file[3]), file[2], content_type_code_of(file[4]))
        )

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
        with self._reading() as txn:
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

    def mounts(self) -> dict[str, dict[str, str]]:
        with self._reading() as txn:
            rows = [(bytes(path), bytes(value)) for path, value in txn.cursor(self._mounts)]
        return {os.fsdecode(path): decode_msgpack(value, dict[str, str]) for path, value in rows}

    def meta(self, key: bytes) -> bytes | None:
        return self._get(self._meta, key)

    # ------------------------------------------------------------ writes

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Make all writes within the context one commit, or none if an exception leaves it. Batches nest; keep them
        short."""
        with self._lock:
            if self._depth == 0:
                self._begin()
            self._depth += 1
            done, renewal = False, None
            try:
                yield
                done = True
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._end(commit=done)
                    renewal = self._environment.renew_if_needed()
        if renewal is not None:
            renewal.join()

    def put_meta(self, key: bytes, value: bytes) -> None:
        self._set_meta(key, value)

    def put_mount(self, path: str, record: dict[str, str]) -> None:
        with self.batch():
            self._put(self._mounts, os.fsencode(path), msgspec.msgpack.encode(record))

    def drop_mount(self, path: str) -> None:
        with self.batch():
            self._delete(self._mounts, os.fsencode(path))

    def ensure_directory(self, parent: FileId, name: bytes, mtime_ns: int = 0) -> FileId:
        """Return the id of a directory, and create it if needed. An existing directory keeps its id; a file of that
        name is replaced."""
        with self.batch():
            old = self._current(parent, name)
            if old is not None and old.kind is Kind.DIRECTORY:
                return old.id
            return self._replace(parent, name, Kind.DIRECTORY, Version(0, mtime_ns), old)

    def put_file(
        self, parent: FileId, name: bytes, version: Version, attributes: Attributes | None = None
    ) -> tuple[FileId, bool]:
        """Return the id of a file, and whether the name belonged to something else before. An equal version keeps its
        id, and its attributes unless new ones are passed."""
        with self.batch():
            old = self._current(parent, name)
            if old is not None and old.kind is Kind.FILE and old.version == version:
                if attributes is not None and old.attributes != attributes:
                    value = pack_entry(Kind.FILE, old.id, old.version, attributes)
                    self._put(self._entries, entry_key(parent, name), value)
                elif old.attributes is None and old.version.mtime_ns != version.mtime_ns:
                    self._redate(old.id)  # but not for this node's own uploads, whose response had no time
                return old.id, False
            return self._replace(
                parent, name, Kind.FILE, version, old, attributes=attributes
            ), old is not None

    def remove(self, parent: FileId, name: bytes) -> bool:
        """Remove a name with everything below it; return False if it does not exist."""
        with self.batch():
            old = self.lookup(parent, name)
            if old is None:
                return False
            self._forget(old)
            self._delete(self._entries, entry_key(parent, name))
            return True

    def outdate(self, parent: FileId, name: bytes, *, folder: bool = False) -> None:
        """Announce that this node is about to change a name, so that listings in progress don't bring its old entry
        back. folder: they must not bring back a directory either, which they may have read before the index had it."""
        writers = self._listings.get(parent, ())
        old = self.lookup(parent, name) if writers else None
        for writer in writers:
            writer.keep(name)
            if folder:
                writer.outdate(name, Kind.DIRECTORY, Version(0, 0))
            if old is not None:
                writer.outdate(name, old.kind, old.version)

    def listing(self, directory: FileId) -> ListingWriter:
        """Return a writer that stores a complete listing, page by page."""
        writer = ListingWriter(self, directory, was_empty=not self._children_batch(directory, b"", 1))
        self._listings.setdefault(directory, []).append(writer)
        return writer

    def end_listing(self, directory: FileId, writer: ListingWriter) -> None:
        writers = [other for other in self._listings.get(directory, []) if other is not writer]
        if writers:
            self._listings[directory] = writers
        else:
            self._listings.pop(directory, None)

    def put_children(
        self, directory: FileId, rows: list[tuple[bytes, Kind, Version]], *, tell_new: bool = False
    ) -> list[tuple[FileId, bytes]]:
        """Store names of one directory, sorted. Return those that belonged to something else before, and with tell_new
        the new ones too. The directory must be current."""
        changed: list[tuple[FileId, bytes]] = []
        with self.batch():
            if not rows or (directory != ROOT_ID and self._get(self._names, KEY.pack(directory)) is None):
                return changed  # the directory was removed while it was listed
            beyond = entry_key(directory, rows[0][0]) > self._last_key(self._entries)
            previous = b""
            for name, kind, version in rows:
                next_id, replaced = self._next_id, False
                if beyond and name != previous:
                    self._replace(directory, name, kind, version, None, append=True)
                elif kind is Kind.DIRECTORY:
                    old = self.lookup(directory, name)
                    if old is None or old.kind is not kind:
                        self._replace(directory, name, kind, version, old)
                        replaced = old is not None
                else:
                    replaced = self.put_file(directory, name, version)[1]
                if replaced or (tell_new and self._next_id != next_id):
                    changed.append((directory, name))
                previous = name
        return changed

    def set_fresh_until(self, directory: FileId, ns: int) -> None:
        with self.batch():
            if directory == ROOT_ID or self._get(self._names, KEY.pack(directory)) is not None:
                self._put(self._directories, KEY.pack(directory), pack_fresh_until(self._boot, ns))

    def expire_all(self, directory: FileId, *, to_ns: int = 0) -> None:
        """Expire the listing of a directory and every one below. to_ns: the new end of those that exist."""
        with self.batch():
            pending = [directory]
            while pending:
                current = pending.pop()
                if to_ns and self.fresh_until_ns(current):
                    self.set_fresh_until(current, to_ns)
                else:
                    self._delete(self._directories, KEY.pack(current))
                pending.extend(e.id for e in self.children(current) if e.kind is Kind.DIRECTORY)

    def put_cached(self, cached: CachedFile) -> None:
        with self.batch():
            self._put(self._files, KEY.pack(cached.id), pack_cached(cached))

    def drop_cached(self, id: FileId) -> None:
        with self.batch():
            self._delete(self._files, KEY.pack(id))

    def checkpoint(self, synced_sequence: int | None = None, *, synced_ns: int = 0) -> None:
        """Make all commits so far durable. Blocks: three disk flushes. synced_sequence: the bytes of files up to it are
        on the disk, if they were renamed before synced_ns (wall clock)."""
        assert self._owner != get_ident() or self._txn is None, "a checkpoint within a batch"
        if synced_sequence is not None:
            with self.batch():
                self._set_meta(b"synced", synced_sequence.to_bytes(8, "little"))
                self._set_meta(b"synced_ns", synced_ns.to_bytes(8, "little"))
            self.synced_ns = synced_ns
        self._environment.checkpoint()
        self.unsettled = False

    def heed_clock(self) -> None:
        """Distrust all files after a power loss, until the next sync, if the wall clock was set back before the last
        one: a file created now would seem older than that sync."""
        if time.time_ns() < self.synced_ns:
            log.warning("the clock was set back; cached files count as synced again after the next sync")
            self.checkpoint(synced_sequence=0, synced_ns=0)

    # ------------------------------------------------------------ names, inside

    def _current(self, parent: FileId, name: bytes) -> Entry | None:
        """Return the entry of a name that is about to be written, and keep listings in progress from removing the name.
        NotSupportedError for a name of an invalid length."""
        if not 0 < len(name) <= NAME_BYTES_MAX:
            raise NotSupportedError(
                os.fsdecode(name[:64]), why=f"its name has {len(name)} bytes; 1 to 255 are supported"
            )
        for writer in self._listings.get(parent, ()):
            writer.keep(name)
        return self.lookup(parent, name)

    def _replace(
        self,
        parent: FileId,
        name: bytes,
        kind: Kind,
        version: Version,
        old: Entry | None,
        *,
        append: bool = False,
        attributes: Attributes | None = None,
    ) -> FileId:
        if old is not None:
            self._forget(old)
        id = self._next_id
        self._next_id = FileId(id + 1)
        key = entry_key(parent, name)
        self._put(self._entries, key, pack_entry(kind, id, version, attributes), append=append)
        self._put(self._names, KEY.pack(id), key, append=True)
        return id

    def _forget(self, entry: Entry) -> None:
        """Delete everything about an id and those below it except its own name, which the caller overwrites or
        removes."""
        pending = [entry]
        while pending:
            current = pending.pop()
            key = KEY.pack(current.id)
            self._delete(self._names, key)
            if current.kind is Kind.FILE:
                self._supersede(current.id)
                continue
            self._delete(self._directories, key)
            for child in self.children(current.id):
                self._delete(self._entries, entry_key(current.id, child.name))
                pending.append(child)

    def _supersede(self, id: FileId) -> None:
        cached = self.cached(id)
        if cached is not None:
            self.put_cached(msgspec.structs.replace(cached, superseded=True))
            self.superseded.append(id)

    def _redate(self, id: FileId) -> None:
        cached = self.cached(id)
        if cached is None:
            return
        if cached.content_type_code is not None:
            self.put_cached(msgspec.structs.replace(cached, content_type_code=None))
        self._on_redated(cached)

    def _children_batch(self, directory: FileId, after: bytes, limit: int = CHILDREN_BATCH) -> list[Entry]:
        prefix = KEY.pack(directory)
        entries: list[Entry] = []
        with self._reading() as txn:
            cursor = txn.cursor(self._entries)
            # the least key beyond a name is that name with a zero byte added
            if cursor.set_range(prefix + after + b"\0" if after else prefix):
                for key, value in cursor:
                    if key[:8] != prefix:
                        break
                    entries.append(unpack_entry(directory, key[8:], value))
                    if len(entries) == limit:
                        break
        return entries

    def cached_batch(self, after: int) -> list[CachedFile]:
        """Return records with ids above `after`, in order; an empty list at the end."""
        records: list[CachedFile] = []
        with self._reading() as txn:
            cursor = txn.cursor(self._files)
            if cursor.set_range(KEY.pack(after + 1)):
                for key, value in cursor:
                    records.append(unpack_cached(FileId(KEY.unpack(key)[0]), value))
                    if len(records) == CHILDREN_BATCH:
                        break
        return records

    # ------------------------------------------------------------ LMDB, inside

    def _open(self) -> None:
        self._environment = Environment(
            self.folder, writable=self._writable, boot_id=self._boot_id, lock=self._lock
        )
        self._env = self._environment.env
        self._entries, self._names, self._directories, self._files, self._mounts, self._meta = (
            self._environment.databases
        )
        try:
            self._read_meta()
        except BaseException:
            self._environment.close()
            raise

    def _read_meta(self) -> None:
        fresh = self.created = self._environment.is_new
        self.restored = self._environment.restored
        if self._writable and fresh:
            with self.batch():
                self._put(self._meta, b"format", FORMAT.to_bytes(2, "little"))
                self._put(self._meta, b"generation", new_generation().to_bytes(4, "little"))
                self._put(self._meta, b"next", _first_id().to_bytes(8, "little"))
        format = int.from_bytes(self._get(self._meta, b"format") or b"", "little")
        if format != FORMAT:
            raise CorruptIndexError(
                f"index {self.folder}", why=f"it has format {format}, this is for {FORMAT}"
            )
        self.generation = int.from_bytes(self._get(self._meta, b"generation") or b"", "little")
        self.clean = self._get(self._meta, b"clean") == b"1"
        self.synced_sequence = int.from_bytes(self._get(self._meta, b"synced") or b"", "little")
        self.synced_ns = int.from_bytes(self._get(self._meta, b"synced_ns") or b"", "little")
        boot = self._get(self._meta, b"boot") or b""
        self._boot = int.from_bytes(boot[:4], "little")
        if self._writable:
            if boot[4:] != self._boot_id.encode():
                self._boot = next_boot(self._boot)
                self._set_meta(b"boot", self._boot.to_bytes(4, "little") + self._boot_id.encode())
            self._next_id = FileId(int.from_bytes(self._get(self._meta, b"next") or b"", "little"))
            self._saved_next_id = self._next_id
            self.unsettled = fresh or (self.restored and not self.clean)
            if self.restored and not self.clean:
                self._next_id = FileId(self._next_id + _AFTER_POWER_LOSS_IDS)
                self._environment.hold_checkpoint()
            self._set_meta(b"clean", b"0")
            if not self.unsettled:
                self.checkpoint()
        self._boot_ms, self._boot_end = fresh_range(self._boot)

    def _begin(self) -> None:
        try:
            txn = self._env.begin(write=True)
        except lmdb.Error as error:
            raise translated(self.folder, error) from error
        # set the owner first: otherwise the previous owner's thread would use this transaction as its own, and
        # two threads in one transaction corrupt it
        self._owner = get_ident()
        self._txn = txn

    def _end(self, *, commit: bool) -> None:
        txn = self._txn
        try:
            if commit:
                if self._next_id != self._saved_next_id:
                    txn.put(b"next", self._next_id.to_bytes(8, "little"), db=self._meta)
                failpoint.hit("index.commit")
                txn.commit()
                self._saved_next_id = self._next_id
                failpoint.hit("index.committed")
            else:
                txn.abort()
        except lmdb.Error as error:
            raise translated(self.folder, error) from error
        finally:
            self._txn = None

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        """Yield the transaction for reads: that of this thread's batch, else a new one."""
        try:
            if self._txn is not None and self._owner == get_ident():
                yield self._txn
            else:
                with self._env.begin() as txn:
                    yield txn
        except lmdb.Error as error:
            raise translated(self.folder, error) from error

    def _get(self, database: Any, key: bytes) -> bytes | None:
        try:
            if self._txn is not None and self._owner == get_ident():
                return self._txn.get(key, None, database)  # type: ignore[no-any-return]
            with self._env.begin(database) as txn:
                return txn.get(key)
        except lmdb.Error as error:
            raise translated(self.folder, error) from error

    def _put(self, database: Any, key: bytes, value: bytes, *, append: bool = False) -> None:
        """Write a value. append: the key is beyond all others; pages are then filled instead of split in half."""
        try:
            self._txn.put(key, value, db=database, append=append)
        except lmdb.Error as error:
            raise translated(self.folder, error) from error

    def _delete(self, database: Any, key: bytes) -> None:
        try:
            self._txn.delete(key, db=database)
        except lmdb.Error as error:
            raise translated(self.folder, error) from error

    def _last_key(self, database: Any) -> bytes:
        with self._reading() as txn:
            cursor = txn.cursor(database)
            return bytes(cursor.key()) if cursor.last() else b""

    def _set_meta(self, key: bytes, value: bytes) -> None:
        with self.batch():
            self._put(self._meta, key, value)


def _check_believed(folder: str) -> None:
    """Refuse an index that another user wrote: LMDB maps it and does not validate its contents. PathNotFoundError,
    NotAllowedError."""
    try:
        owner = os.stat(f"{folder}/data.mdb").st_uid
    except FileNotFoundError:
        raise PathNotFoundError(f"index {folder}", why="no node made it yet") from None
    except OSError as error:
        raise StoreError(f"index {folder} can't be opened", why=error.strerror or str(error)) from error
    if not is_trusted(owner):
        raise NotAllowedError(
            f"index {folder}", why=f"it belongs to user {owner}", hint="run this as that user"
        )
