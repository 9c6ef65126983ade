"""Remove at the origins the directories whose place a file has taken.

Such a directory waits in `gone`, beside the tree of the upper layer. It would block the upload of that file, and of
what comes below its former path later. Each directory is removed by itself, so an origin that is away delays only
paths that such a directory touches: those at, above and below its former path. A directory that is created above it
need not wait. Calls are on the node's loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator

from headrace.base.beneath import SafePath
from headrace.base.clock import monotonic_s
from headrace.base.errors import ClusterUnavailableError, DeadlineExceededError, HeadraceError
from headrace.base.keyed_lock import KeyedLock
from headrace.base.namespace_path import split
from headrace.base.tasks import OwnedTasks, all_of
from headrace.overlay.hiding import pending_removals
from headrace.overlay.mark_names import MARKS
from headrace.overlay.marks import mark_value
from headrace.writeback.action import by_depth
from headrace.writeback.removal import RemovalPropagator
from headrace.writeback.writable_layer import WritableLayer

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""Pause before a removal that failed is tried again, in seconds."""
CONCURRENCY_MAX = 16
"""Most directories that one call removes at the same time."""
Pending = list[tuple[SafePath, bytes]]
"""Directories in `gone`, with their former paths."""


class PendingRemovals:
    """Remove such directories. wake: makes the node look at `due_s` again. held_back: returns why nothing is removed
    now; "" for no reason. due_s: time on the monotonic clock at which `remove_others_soon` has something to do."""

    def __init__(
        self,
        layer: WritableLayer,
        removals: RemovalPropagator,
        *,
        wake: Callable[[], None],
        held_back: Callable[[], str],
    ) -> None:
        self._layer = layer
        self._removals = removals
        self._wake = wake
        self._held_back = held_back
        self._turns = KeyedLock()
        self._tasks = OwnedTasks()
        self._again_s = 0.0
        self._unread: set[str] = set()
        self.due_s = math.inf

    async def stop(self) -> None:
        await self._tasks.close()

    def find(self) -> None:
        """Make the directories of an earlier run due."""
        if self._all():
            self.due_s = 0.0

    def is_any_near(self, path: bytes) -> bool:
        """Return whether a directory touches a path."""
        return bool(near((former for _, former in self._all()), [path]))

    async def remove_near(
        self, paths: Collection[bytes], *, folders: Collection[bytes]
    ) -> dict[bytes, HeadraceError]:
        """Remove the directories that touch one of the paths, or that were at or above a folder. folders: directories
        that are to be created. Return the errors by former path."""
        return await self._remove(self._chosen(paths, folders)[0])

    def remove_others_soon(self, paths: Collection[bytes], *, folders: Collection[bytes]) -> None:
        """Begin to remove all other directories, in the background: their origins may be away. After a failure there is
        a pause."""
        others = self._chosen(paths, folders)[1]
        self.due_s = math.inf
        if not others or self._tasks:
            return  # the task that runs looks for others at its end
        if monotonic_s() < self._again_s:
            self.due_s = self._again_s
        else:
            self._tasks.start(self._remove_others(others))

    async def _remove_others(self, others: Pending) -> None:
        try:
            await self._remove(others)
        finally:
            if self._all():
                self._retry()

    def _all(self) -> Pending:
        """Return all directories. Mode `local` is left out: its settings may change later. So is a directory whose path
        can't be read now, until `find`. What it blocks is refused by the origin, and tried again."""
        unread: dict[SafePath, OSError] = {}
        pending = pending_removals(self._layer.upper, unread)
        for directory, error in unread.items():
            if repr(directory) not in self._unread:
                log.warning("a removed directory can't be read, retrying path=%s error=%s", directory, error)
        self._unread = {repr(directory) for directory in unread}
        return [pair for pair in pending if self._layer.persists(pair[1])]

    def _chosen(self, paths: Collection[bytes], folders: Collection[bytes]) -> tuple[Pending, Pending]:
        """Return the directories that `remove_near` removes, and the others."""
        pending = self._all()
        if not pending:
            return [], []
        chosen = {*near((former for _, former in pending), paths), *folders}
        chosen.update(directory for path in folders for directory in _above(path))
        return (
            [pair for pair in pending if pair[1] in chosen],
            [pair for pair in pending if pair[1] not in chosen],
        )

    async def _remove(self, pending: Pending) -> dict[bytes, HeadraceError]:
        """Remove directories, deeper ones first. Return the errors by former path."""
        errors: dict[bytes, HeadraceError] = {}
        places: dict[bytes, list[SafePath]] = {}
        for place, former in pending:
            places.setdefault(former, []).append(place)
        gate = asyncio.Semaphore(CONCURRENCY_MAX)

        async def remove(former: bytes) -> None:
            async with gate, self._turns.at(former):
                error = await self._remove_at(former, places[former])
                if error is not None:
                    errors[former] = error

        for level in reversed(by_depth(places)):
            await all_of(map(remove, level))
        if errors:
            self._retry()
        return errors

    async def _remove_at(self, former: bytes, places: list[SafePath]) -> HeadraceError | None:
        """Remove the directories that had one path. Return the error of the first that failed."""
        try:
            for place in places:
                if _former_path(place) != former:
                    continue  # another call has removed it
                if why := self._held_back():
                    raise ClusterUnavailableError(os.fsdecode(former), why=why)
                await self._removals.remove_pending([(place, former)])
        except (HeadraceError, OSError) as error:
            log.info(
                "a removed directory is still at the origin path=%s error=%s", os.fsdecode(former), error
            )
            if isinstance(error, HeadraceError):
                return error
            return DeadlineExceededError(os.fsdecode(former), why=str(error))
        except Exception as error:
            log.exception("a removed directory is still at the origin path=%s", os.fsdecode(former))
            return HeadraceError(os.fsdecode(former), why=f"an internal error: {error!r}")
        return None

    def _retry(self) -> None:
        self.due_s = self._again_s = monotonic_s() + RETRY_S
        self._wake()


def near(paths: Iterable[bytes], others: Collection[bytes]) -> list[bytes]:
    """Return those of the paths that are at, above or below one of the others."""
    if not others:
        return []
    below_them = set(others)
    above_them = {directory for other in others for directory in _above(other)}
    return [
        path
        for path in paths
        if path in below_them or path in above_them or any(up in below_them for up in _above(path))
    ]


def _above(path: bytes) -> Iterator[bytes]:
    while path != b"/":
        path = split(path)[0]
        yield path


def _former_path(place: SafePath) -> bytes:
    """Return the former path of a directory in `gone`; b"" if it is no longer there. Raises OSError."""
    return mark_value(place, MARKS.path) or b""
