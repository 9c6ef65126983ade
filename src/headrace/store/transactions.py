"""Read and write the tables of an open index in transactions of LMDB.

One thread writes at a time, and keeps the lock until its outermost batch ends. A read needs no lock. In the thread of
a batch it sees the batch's writes, in other threads the last commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import get_ident
from typing import Any

import lmdb

from headrace.base import failpoint
from headrace.base.model import ROOT_ID, FileId
from headrace.store.environment import Environment, translated
from headrace.store.schema import KEY

_NEXT_ID = b"next"
_WITHIN = nullcontext()


class Transactions:
    """The transactions of one environment, which this class does not close. lock: taken by each batch.

    A commit that assigned ids records the next one, so no id is assigned twice. StoreError, NoSpaceError and
    CorruptIndexError in all methods.
    """

    def __init__(self, environment: Environment, lock: threading.RLock) -> None:
        self.next_id = self._saved_next_id = FileId(ROOT_ID + 1)
        self._environment = environment
        self._env = environment.env
        self._meta = environment.meta
        self._lock = lock
        self._txn: Any = None
        self._owner = 0
        self._on_commit: list[Callable[[], None]] = []

    def batch(self) -> AbstractContextManager[None]:
        """Make all writes within the context one commit, or none if an exception leaves it. A batch within another one
        is a part of that.

        Blocks while another thread has a batch, and at the end if the disk does not keep up with the checkpoints. The
        commit survives kill -9 on return, a power loss after the next checkpoint.
        """
        return _WITHIN if self.is_in_batch else self._outermost()

    @contextmanager
    def _outermost(self) -> Iterator[None]:
        with self._lock:
            self._begin()
            done, renewal = False, None
            try:
                yield
                done = True
            finally:
                self._end(commit=done)
                renewal = self._environment.renew_if_needed()
        if renewal is not None:
            renewal.join()

    @property
    def is_in_batch(self) -> bool:
        """Return whether the calling thread has a batch open."""
        return self._txn is not None and self._owner == get_ident()

    def when_committed(self, call: Callable[[], None]) -> None:
        """Call a function, which must not fail, when the batch of this thread is committed; at once if there is none.
        A batch that fails drops it."""
        if self.is_in_batch:
            self._on_commit.append(call)
        else:
            call()

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """Yield the transaction for reads: that of this thread's batch, else a new one."""
        try:
            if self._txn is not None and self._owner == get_ident():
                yield self._txn
            else:
                with self._env.begin() as txn:
                    yield txn
        except lmdb.Error as error:
            raise translated(self._environment.folder, error) from error

    def get(self, database: Any, key: bytes) -> bytes | None:
        try:
            if self._txn is not None and self._owner == get_ident():
                return self._txn.get(key, None, database)  # type: ignore[no-any-return]
            with self._env.begin(database) as txn:
                return txn.get(key)
        except lmdb.Error as error:
            raise translated(self._environment.folder, error) from error

    def last_key(self, database: Any) -> bytes:
        """Return the greatest key of a table, b"" if it is empty."""
        with self.reading() as txn:
            cursor = txn.cursor(database)
            return bytes(cursor.key()) if cursor.last() else b""

    def ids_of(self, database: Any) -> list[int]:
        """Return the keys of a table that has ids for keys."""
        with self.reading() as txn:
            return [KEY.unpack(key)[0] for key in txn.cursor(database).iternext(keys=True, values=False)]

    def put(self, database: Any, key: bytes, value: bytes, *, append: bool = False) -> None:
        """Write a value within a batch. append: the key is beyond all others; pages are then filled instead of split in
        half."""
        try:
            self._txn.put(key, value, db=database, append=append)
        except lmdb.Error as error:
            raise translated(self._environment.folder, error) from error

    def delete(self, database: Any, key: bytes) -> None:
        """Delete a key, which may be absent, within a batch."""
        try:
            self._txn.delete(key, db=database)
        except lmdb.Error as error:
            raise translated(self._environment.folder, error) from error

    def clear(self, database: Any) -> None:
        """Delete all rows of a table in one commit."""
        with self.batch():
            self._txn.drop(database, delete=False)

    def new_id(self) -> FileId:
        """Return an id that was never assigned before, within a batch."""
        id = self.next_id
        self.next_id = FileId(id + 1)
        return id

    def skip_ids(self, last: int) -> None:
        """Assign no id up to that one, within a batch."""
        self.next_id = max(self.next_id, FileId(last + 1))

    def load_next_id(self, *, skipped: int) -> None:
        """Continue with the ids that the index has recorded. skipped: ids to leave out."""
        self._saved_next_id = FileId(int.from_bytes(self.get(self._meta, _NEXT_ID) or b"", "little"))
        self.next_id = FileId(self._saved_next_id + skipped)

    def _begin(self) -> None:
        try:
            txn = self._env.begin(write=True)
        except lmdb.Error as error:
            raise translated(self._environment.folder, error) from error
        # set the owner first: otherwise the previous owner's thread would use this transaction as its own, and
        # two threads in one transaction corrupt it
        self._owner = get_ident()
        self._txn = txn

    def _end(self, *, commit: bool) -> None:
        txn = self._txn
        calls, self._on_commit = self._on_commit, []
        try:
            if commit:
                self._record_next_id(txn)
                txn.commit()
                self._saved_next_id = self.next_id
                for call in calls:
                    call()
                failpoint.hit("index.committed")
            else:
                txn.abort()
        except lmdb.Error as error:
            raise translated(self._environment.folder, error) from error
        finally:
            self._txn = None

    def _record_next_id(self, txn: Any) -> None:
        """Add the next id to a transaction that is about to be committed."""
        try:
            if self.next_id != self._saved_next_id:
                txn.put(_NEXT_ID, self.next_id.to_bytes(8, "little"), db=self._meta)
            failpoint.hit("index.commit")
        except BaseException:
            txn.abort()  # the error refers to it, and would keep it open; the next batch would wait for it
            raise
