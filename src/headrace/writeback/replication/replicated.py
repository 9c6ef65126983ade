"""Connect replication with write-back in mode `back:2` and more, by an observer that feeds the replicator and by the
durability that it provides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from headrace.base.os_errors import unread_error
from headrace.base.tasks import OwnedTasks
from headrace.base.write_modes import WriteModes
from headrace.overlay.upper import Upper
from headrace.writeback.durability import LocalDurability
from headrace.writeback.observers import WriteObserver
from headrace.writeback.replication.replicator import Replicator


class ReplicaObserver(WriteObserver):
    """Report written and persisted paths to the replicator, if their mode has replicas."""

    def __init__(self, upper: Upper, modes: WriteModes, replicator: Replicator) -> None:
        self._upper = upper
        self._modes = modes
        self._replicator = replicator
        self._tasks = OwnedTasks()

    def start(self, dirty: Iterable[bytes]) -> None:
        self._replicator.on_view()

    async def stop(self) -> None:
        await self._tasks.close()
        await self._replicator.stop()

    def on_opened(self, path: bytes) -> None:
        """Send the file ahead while it grows."""
        copies = self._modes.copies(path)
        if copies > 1:
            self._tasks.start(self._replicator.follow(path, copies))

    def on_changed(self, paths: list[bytes], source: int) -> None:
        if source:  # the node's own changes are noted after the round that persists them
            self._note(paths)

    async def on_persisted(self, paths: list[bytes], directories: set[bytes]) -> None:
        self._note(paths)

    def status(self) -> dict[str, object]:
        return self._replicator.status()

    def _note(self, paths: list[bytes]) -> None:
        """Note in the replicator the paths, and everything below them, that have replicas. What can't be read now is
        noted when its session reports it, or waits for it."""
        unread: dict[bytes, OSError] = {}
        below = [path for top in paths for path, _ in self._upper.walk(top, unread)]
        self._replicator.note([path for path in {*paths, *below} if self._modes.copies(path) > 1])


class ReplicatedDurability(LocalDurability):
    """Acknowledge mode `back:2` and more when that many nodes have the bytes. note: marks paths as dirty."""

    def __init__(
        self,
        upper: Upper,
        modes: WriteModes,
        replicator: Replicator,
        *,
        note: Callable[[Iterable[bytes]], None],
    ) -> None:
        super().__init__(modes)
        self._upper = upper
        self._replicator = replicator
        self._note = note

    def covers(self, path: bytes) -> bool:
        return super().covers(path) or self._modes.copies(path) > 1

    async def secure(self, path: bytes) -> None:
        """Return when enough nodes have the bytes at and below a path. Raises PeerError if there are too few nodes, or
        one does not answer, and StoreError if a path can't be read."""
        copies = self._modes.copies(path)
        if copies < 2:
            return
        try:
            paths = [below for below, _ in self._upper.walk(path)] or [path]
        except OSError as error:
            raise unread_error(path, error) from error
        self._note(paths)
        await asyncio.gather(*(self._replicator.secure(below, copies) for below in paths))
