"""Limit the disk space of the upper layer: by demotion of clean files, and by delays of its writers."""

from __future__ import annotations

from headrace.overlay.dirty_throttle import DirtyThrottle
from headrace.store.store import Store


class UpperQuota:
    """Compare the layer's size with its limit.

    bytes_max: most bytes of the layer. store: its first volume reports the free space of the disk. used_bytes: the
    layer's size at the last scan, less the files that have left since.
    """

    def __init__(self, bytes_max: int, pressure: DirtyThrottle, store: Store | None) -> None:
        self._bytes_max = bytes_max
        self._pressure = pressure
        self._store = store
        self.used_bytes = 0

    def disk_is_full(self) -> bool:
        return self._store is not None and self._store.disks[0].disk_is_full

    def measured(self, used_bytes: int) -> None:
        """Set the layer's size, as a scan measured it."""
        self.used_bytes = used_bytes

    @property
    def surplus_bytes(self) -> int:
        """Return the bytes by which the layer exceeds its limit; negative below it."""
        return self.used_bytes - self._limit_bytes(self.used_bytes)

    @property
    def pause_s(self) -> float:
        """Return the present delay of a writer, in seconds."""
        return self._pressure.pause_s

    def slow_writers(self, waiting_bytes: int) -> None:
        """Set the delay of writers by the bytes that are not persisted yet."""
        self._pressure.set(waiting_bytes, self._limit_bytes(waiting_bytes))

    def is_behind(self, waiting_bytes: int) -> bool:
        """Return whether so much is not persisted that writers through sessions are delayed."""
        return 2 * waiting_bytes > self._limit_bytes(waiting_bytes)

    def left(self, freed_bytes: int) -> None:
        """Subtract a file that left the layer."""
        self.used_bytes = max(0, self.used_bytes - freed_bytes)

    def close(self) -> None:
        """End the delay of writers."""
        self._pressure.set(0, 1)
        self._pressure.close()

    def _limit_bytes(self, own_bytes: int) -> int:
        """Return half of the space that the layer could use: of its capacity, or of the disk, which others use too.
        own_bytes: bytes that the layer has already."""
        free_bytes = 2 * self._bytes_max if self._store is None else self._store.space.room_for_written()
        return min(self._bytes_max, (own_bytes + free_bytes) // 2)
