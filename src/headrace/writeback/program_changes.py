"""Note what programs change in exclusive directories, where no session reports it, and warn when it fills the disk."""

from __future__ import annotations

import logging
from itertools import islice

from headrace.writeback.changes import ChangeTracker
from headrace.writeback.planner import LayerScan
from headrace.writeback.upper_quota import UpperQuota
from headrace.writeback.writable_layer import WritableLayer

log = logging.getLogger(__name__)

LOOK_ROWS_MAX = 100_000
"""Names from which on a node that stops does not look at a directory. A look takes some 40 µs a name."""


class ProgramChanges:
    """Pass on changes that the kernel reported. Calls are on the node's loop."""

    def __init__(
        self, layer: WritableLayer, changes: ChangeTracker, scan: LayerScan, quota: UpperQuota
    ) -> None:
        self._quota = quota
        self._is_filling = False
        self._layer = layer
        self._changes = changes
        self._scan = scan

    def changed(self, paths: list[bytes]) -> None:
        """Note changed paths. Those that were persisted before the kernel's report came are not dirty."""
        self._changes.note(filter(self._scan.is_dirty, paths), self._changes.delay_s)
        self._changes.observers.on_changed(paths, 0)

    async def rescan_below(self, path: bytes) -> None:
        """Find what is dirty at and below a path that programs moved or removed."""
        await self._scan.scan_below(path, delay_s=self._changes.delay_s)
        self._changes.wake.set()

    async def has_persisted(self, top: bytes) -> bool:
        """Look at everything at and below a directory, and return whether the origin has it. Return False without a
        look if it has very many names, because a node that stops should not take minutes."""
        rows = islice(self._layer.journal.rows(top), LOOK_ROWS_MAX)
        return sum(1 for _ in rows) < LOOK_ROWS_MAX and not await self._scan.is_any_dirty(top)

    def check_space(self, waiting_bytes: int) -> None:
        """Warn once when uploads fall behind, or the layer exceeds its limit: nothing slows these programs.
        waiting_bytes: what is not persisted."""
        if not self._layer.modes.exclusive_tops:
            return
        is_filling = self._quota.is_behind(waiting_bytes) or self._quota.surplus_bytes > 0
        if is_filling and not self._is_filling:
            log.warning(
                "programs fill the disk by exclusive directories, and are not slowed dirty_bytes=%d upper_bytes=%d",
                *(waiting_bytes, self._quota.used_bytes),
            )
        elif self._is_filling and not is_filling:
            log.info("exclusive directories take less of the disk again dirty_bytes=%d", waiting_bytes)
        self._is_filling = is_filling

    def status(self) -> dict[str, object]:
        """Return this object's fields of `headrace status`."""
        return {"exclusive_fills_disk": self._is_filling}
