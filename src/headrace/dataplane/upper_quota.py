"""How much of its disk the upper layer may take, and when its writers are slowed down."""

from __future__ import annotations

from collections.abc import Callable

from headrace.overlay.dirty_throttle import DirtyThrottle
from headrace.store.store import Store


class UpperQuota:
    """bytes_max: of the layer, before clean files leave it. used_bytes: that it took when it was last looked over."""

    def __init__(self, bytes_max: int, pressure: DirtyThrottle) -> None:
        self._bytes_max = bytes_max
        self._pressure = pressure
        self._free_bytes: Callable[[], int] = lambda: 2 * bytes_max
        self.disk_is_full: Callable[[], bool] = lambda: False
        self.used_bytes = 0

    def measure_by(self, store: Store) -> None:
        """Go by what the disk of the store's first volume has left, too."""
        self._free_bytes = store.room_for_written
        self.disk_is_full = lambda: store.disks[0].disk_is_full

    @property
    def surplus_bytes(self) -> int:
        """What should leave the layer."""
        return self.used_bytes - self._limit_bytes(self.used_bytes)

    @property
    def pause_s(self) -> float:
        """For how long a writer is held up just now."""
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
        """Half of what can be had: of the capacity, or of the disk, where others, too, have a part of it. own_bytes:
        which the layer has."""
        return min(self._bytes_max, (own_bytes + self._free_bytes()) // 2)
