"""Seal data sets without a command (`seal = "auto"`), if they are cached, did not change lately, and have small files.

Such a seal is removed before a reader could miss a change: when a name below it changes at the origin, when its files
are to be freed, and when the cache needs their room. The node unmounts it. `headrace up` mounts it in place
(`cli/sealed_mounts.py`), because only that process knows the mountpoint.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from headrace.base.clock import monotonic_s
from headrace.base.errors import HeadraceError
from headrace.base.model import FileId
from headrace.base.namespace_path import is_at_or_below
from headrace.base.tasks import OwnedTasks
from headrace.jobs.automatic_seals import AutomaticSeals
from headrace.jobs.progress import JobProgress
from headrace.namespace.namespace import Namespace
from headrace.seal.catalogue import SealId

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 5.0
PAUSES_MAX = 64
"""Most quiet times that a data set waits, after seals of it were soon removed."""


@dataclass(slots=True)
class _DataSet:
    """Describes the tree below a mount of an origin. why: why it has no seal now. pauses: the number of quiet times
    that it must be unchanged before it is sealed again. Times are monotonic."""

    path: bytes
    changed_s: float
    seal: SealId | None = None
    sealed_s: float = 0.0
    compared_s: float = 0.0
    why: str = "it is new"
    pauses: int = 1


class AutoSeal:
    """Seals data sets in one task on the node's loop.

    quiet_s: seconds that a data set must be unchanged before it is sealed, and seconds between two comparisons of a
    sealed one with its origin. None: no data set is sealed, and the seals of an earlier run are removed. relist: lists
    all directories below a path again.
    """

    def __init__(
        self,
        namespace: Namespace,
        seals: AutomaticSeals,
        *,
        quiet_s: float | None,
        relist: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._namespace = namespace
        self._seals = seals
        self._is_on = quiet_s is not None
        self._quiet_s = quiet_s or 0.0
        self._relist = relist
        self._data_sets: dict[bytes, _DataSet] = {}
        self._mounts: set[bytes] = set()
        self._tasks = OwnedTasks()

    def start(self) -> None:
        self._tasks.start(self._run() if self._is_on else self._remove_all())

    async def stop(self) -> None:
        await self._tasks.close()

    def status(self) -> list[dict[str, Any]]:
        """Return each data set with its seal, or why it has none."""
        return [
            {"path": os.fsdecode(path), "seal": str(data_set.seal or ""), "why": data_set.why}
            for path, data_set in sorted(self._data_sets.items())
        ]

    def names_changed(self, names: Iterable[tuple[FileId, bytes]]) -> None:
        """Unmount the seals below which a name changed; they are removed soon after."""
        if not self._data_sets:
            return
        for path in self._namespace.tree.paths_of(names):
            for data_set in self._data_sets.values():
                if is_at_or_below(path, data_set.path):
                    self._revoke(data_set, "its names changed at the origin")

    async def revoke(self, path: bytes, why: str) -> None:
        """Remove the seals that keep files at, below or above a path. On return those files may be freed."""
        removals = [
            self._revoke(data_set, why)
            for data_set in self._data_sets.values()
            if is_at_or_below(path, data_set.path) or is_at_or_below(data_set.path, path)
        ]
        for removal in removals:
            if removal is not None:
                await asyncio.wait([removal])

    async def revoke_oldest(self) -> bool:
        """Remove the oldest seal, because nothing else can be evicted. Return False if there is none."""
        sealed = [data_set for data_set in self._data_sets.values() if data_set.seal is not None]
        if not sealed:
            return False
        oldest = min(sealed, key=lambda data_set: data_set.sealed_s)
        oldest.pauses = PAUSES_MAX
        await self.revoke(oldest.path, "the cache needed the room")
        return True

    async def _run(self) -> None:
        await self._adopt()
        while True:
            self._follow_mounts()
            for data_set in list(self._data_sets.values()):
                try:
                    await self._check(data_set)
                except HeadraceError as error:
                    self._defer(data_set, str(error))
                except Exception:
                    log.exception("a data set could not be sealed path=%s", os.fsdecode(data_set.path))
                    self._defer(data_set, "an internal error, see the log")
            await asyncio.sleep(min(CHECK_INTERVAL_S, self._quiet_s / 4))

    async def _remove_all(self) -> None:
        for record in self._seals.records():
            await self._seals.remove(record.seal)

    async def _adopt(self) -> None:
        """Adopt the seals of the last run. Names may have changed since, so the first check compares them."""
        self._follow_mounts()
        for record in self._seals.records():
            data_set = self._data_sets.get(os.fsencode(record.path))
            if data_set is None or data_set.seal is not None:
                await self._seals.remove(record.seal)
            else:
                data_set.seal, data_set.why = record.seal, ""

    def _follow_mounts(self) -> None:
        """Watch the tree below each mount that is not below another one."""
        paths = {os.fsencode(mount.path) for mount in self._namespace.tree.mounts.all()}
        tops = {
            path
            for path in paths
            if not any(is_at_or_below(path, other) and path != other for other in paths)
        }
        for path in paths ^ self._mounts if self._mounts else ():
            for data_set in self._data_sets.values():
                if is_at_or_below(path, data_set.path) and path != data_set.path:
                    self._revoke(data_set, "a mount below it was added or removed")
        self._mounts = paths
        for path in tops - self._data_sets.keys():
            self._data_sets[path] = _DataSet(path, monotonic_s())
        for path in self._data_sets.keys() - tops:
            self._revoke(self._data_sets.pop(path), "its mount was removed")

    async def _check(self, data_set: _DataSet) -> None:
        now_s = monotonic_s()
        if data_set.seal is not None and not self._seals.exists(data_set.seal):
            data_set.seal, data_set.pauses = None, PAUSES_MAX
            self._defer(data_set, "a user removed its seal")
        if data_set.seal is None:
            if now_s - data_set.changed_s >= data_set.pauses * self._quiet_s:
                await self._try_to_seal(data_set)
            return
        if now_s - data_set.sealed_s > PAUSES_MAX * self._quiet_s:
            data_set.pauses = 1
        if now_s - data_set.compared_s >= self._quiet_s:
            data_set.compared_s = now_s
            await self._relist(data_set.path)  # a change calls names_changed

    async def _try_to_seal(self, data_set: _DataSet) -> None:
        why = await self._seals.reason_against(data_set.path)
        if why:
            self._defer(data_set, why)
            return
        before_s, progress = data_set.changed_s, JobProgress()
        seal = await self._seals.make(data_set.path, progress)
        if seal is None:
            self._defer(data_set, progress.failed[0][1])
            return
        data_set.seal, data_set.why, data_set.sealed_s = seal, "", monotonic_s()
        data_set.compared_s = data_set.sealed_s
        data_set.pauses = min(PAUSES_MAX, 2 * data_set.pauses)
        if data_set.changed_s != before_s:  # it may have two versions of the names
            self._revoke(data_set, "its names changed while it was sealed")
        else:
            log.info("a data set was sealed path=%s seal=%s", os.fsdecode(data_set.path), seal)

    def _defer(self, data_set: _DataSet, why: str) -> None:
        data_set.changed_s, data_set.why = monotonic_s(), why

    def _revoke(self, data_set: _DataSet, why: str) -> asyncio.Task[None] | None:
        """Unmount the seal of a data set, if it has one, and return the task that removes it."""
        self._defer(data_set, why)
        seal, data_set.seal = data_set.seal, None
        if seal is None:
            return None
        self._seals.unmount(seal)
        log.info("an automatic seal is removed path=%s seal=%s why=%s", os.fsdecode(data_set.path), seal, why)
        return self._tasks.start(self._seals.remove(seal))
