"""Keep the index's own state: its format and generation, its boots, and its last sync.

The rows are in the table "meta"; other modules of the node keep rows of their own there. schema.py has their meaning.
"""

from __future__ import annotations

import logging
import os
import time

from headrace.base.errors import CorruptIndexError
from headrace.base.model import FILE_ID_MAX, ROOT_ID
from headrace.store.environment import Environment
from headrace.store.schema import FORMAT, next_boot
from headrace.store.transactions import Transactions

log = logging.getLogger(__name__)

_AFTER_POWER_LOSS_IDS = 1 << 20
"""A power loss erases the record of ids that were assigned after the checkpoint; their cache files may still exist."""
_SYNC_FAILED = b"sync_failed"
_IDS_BEGIN_MS = 1_700_000_000_000


def _first_id() -> int:
    """Return the first id of a new index, beyond those that an earlier index in its place assigned at up to 128,000 a
    second. Kernels and programs still hold those ids if a corrupt index is replaced under them."""
    ms = time.time_ns() // 1_000_000 - _IDS_BEGIN_MS
    return ROOT_ID + 1 + ((max(0, ms) << 7) & (FILE_ID_MAX >> 1))


def new_generation() -> int:
    """Return 31 random bits."""
    return int.from_bytes(os.urandom(4), "little") >> 1


class IndexState:
    """The state of an open index, read when it is constructed. In the node, construction also begins a run: it marks
    the index as not clean and makes a checkpoint, unless recovery comes first.

    generation: random, created with the index; with another generation all ids differ. created: this open created the
    index. clean: the last run closed it. restored: this open reset the index to a checkpoint, because the machine was
    restarted without a clean close. unsettled: recovery is not finished, so there is no checkpoint yet; if the process
    is killed until then, the next open finds the same state. boot: the number of this boot. synced_sequence, synced_ns:
    of the last sync, as in `checkpoint`. sync_failed: a sync failed in this boot, in this run or an earlier one.

    continues: the state of the same index before it was compacted; what it says of the last run stays true.
    """

    def __init__(
        self,
        transactions: Transactions,
        environment: Environment,
        *,
        writable: bool,
        boot_id: str,
        continues: IndexState | None,
    ) -> None:
        self._transactions = transactions
        self._environment = environment
        self._table = environment.meta
        self._boot_id = boot_id
        self.unsettled = False
        self.created = environment.is_new
        if writable and self.created:
            self._create()
        format = self._number(b"format")
        if format != FORMAT:
            raise CorruptIndexError(
                f"index {environment.folder}", why=f"it has format {format}, this is for {FORMAT}"
            )
        self.generation = self._number(b"generation")
        self.clean = self.get(b"clean") == b"1"
        self.restored = environment.restored
        self.synced_sequence = self._number(b"synced")
        self.synced_ns = self._number(b"synced_ns")
        self.sync_failed = self.get(_SYNC_FAILED) == boot_id.encode()
        self.boot = int.from_bytes((self.get(b"boot") or b"")[:4], "little")
        if writable:
            self._begin_run(boot_id)
        if continues is not None:
            self.clean, self.restored = continues.clean, continues.restored

    def _create(self) -> None:
        with self._transactions.batch():
            self.put(b"format", FORMAT.to_bytes(2, "little"))
            self.put(b"generation", new_generation().to_bytes(4, "little"))
            self.put(b"next", _first_id().to_bytes(8, "little"))

    def _begin_run(self, boot_id: str) -> None:
        if (self.get(b"boot") or b"")[4:] != boot_id.encode():
            self.boot = next_boot(self.boot)
            self.put(b"boot", self.boot.to_bytes(4, "little") + boot_id.encode())
        lost_power = self.restored and not self.clean
        self._transactions.load_next_id(skipped=_AFTER_POWER_LOSS_IDS if lost_power else 0)
        self.unsettled = self.created or lost_power
        if lost_power:
            self._environment.hold_checkpoint()
        self.put(b"clean", b"0")
        if not self.unsettled:
            self.checkpoint()

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a row, None if it is absent."""
        return self._transactions.get(self._table, key)

    def put(self, key: bytes, value: bytes) -> None:
        """Write a row, in a commit of its own or that of the surrounding batch."""
        with self._transactions.batch():
            self._transactions.put(self._table, key, value)

    def _number(self, key: bytes) -> int:
        return int.from_bytes(self.get(key) or b"", "little")

    def checkpoint(self, synced_sequence: int | None = None, *, synced_ns: int = 0) -> None:
        """Make all commits so far durable. Blocks: three disk flushes. synced_sequence: the bytes of files up to it are
        on the disk, if they were renamed before synced_ns (wall clock)."""
        assert not self._transactions.is_in_batch, "a checkpoint within a batch"
        if synced_sequence is not None:
            with self._transactions.batch():
                self.put(b"synced", synced_sequence.to_bytes(8, "little"))
                self.put(b"synced_ns", synced_ns.to_bytes(8, "little"))
            self.synced_sequence, self.synced_ns = synced_sequence, synced_ns
        self._environment.checkpoint()
        self.unsettled = False

    def note_failed_sync(self) -> None:
        """Record that the kernel could not write some pages. It has them in memory as if it had written them, so they
        are wrong as soon as they are read from the disk: in this boot the page cache proves nothing any more."""
        if not self.sync_failed:
            self.put(_SYNC_FAILED, self._boot_id.encode())
            self.sync_failed = True

    def skip_ids(self, last: int) -> None:
        """Assign no id up to that one any more."""
        with self._transactions.batch():
            self._transactions.skip_ids(last)

    def end_run(self) -> None:
        """Mark the index as clean: everything is synced, so the next open need not recover. Durable on return."""
        self.put(b"clean", b"1")
        self.checkpoint()

    def heed_clock(self) -> None:
        """Distrust all files after a power loss, until the next sync, if the wall clock was set back before the last
        one: a file created now would seem older than that sync. Blocks as `checkpoint` does, but only then."""
        if time.time_ns() < self.synced_ns:
            log.warning("the clock was set back; cached files count as synced again after the next sync")
            self.checkpoint(synced_sequence=0, synced_ns=0)
