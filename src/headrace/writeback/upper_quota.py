"""Limit how much of its disk the upper layer takes, and slow its writers down."""

from __future__ import annotations

from headrace.overlay.dirty_throttle import DirtyThrottle
from headrace.store.store import Store


class UpperQuota:
    """Compare what the layer takes with what it may take. bytes_max: of the layer, before clean files leave it. store:
    its first volume gives the free bytes of the disk. used_bytes: of the layer, at the last scan."""

    def __init__(self, bytes_max: int, pressure: DirtyThrottle, store: Store | None) -> None:
        self._bytes_max = bytes_max
        self._pressure = pressure
        self._store = store
        self.used_bytes = 0

    def disk_is_full(self) -> bool:
        return self._store is not None and self._store.disks[0].disk_is_full

    def measured(self, used_bytes: int) -> None:
        """Note what the layer takes, as it was looked over."""
        self.used_bytes = used_bytes

    @property
    def surplus_bytes(self) -> int:
        """Return how many bytes should leave the layer."""
        return self.used_bytes - self._limit_bytes(self.used_bytes)

    @property
    def pause_s(self) -> float:
        """Return for how long a writer is held up just now."""
        return self._pressure.pause_s

    def slow_writers(self, waiting_bytes: int) -> None:
        """Hold writers up by what waits to be persisted."""
        self._pressure.set(waiting_bytes, self._limit_bytes(waiting_bytes))

    def left(self, freed_bytes: int) -> None:
        """Count a file that left the layer."""
        self.used_bytes = max(0, self.used_bytes - freed_bytes)

    def close(self) -> None:
        """Slow nobody down any more."""
        self._pressure.set(0, 1)
        self._pressure.close()

    def _limit_bytes(self, own_bytes: int) -> int:
        """Return half of what can be had, of the capacity or of the disk, which others use, too. own_bytes: of the
        layer."""
        free_bytes = 2 * self._bytes_max if self._store is None else self._store.space.room_for_written()
        return min(self._bytes_max, (own_bytes + free_bytes) // 2)
