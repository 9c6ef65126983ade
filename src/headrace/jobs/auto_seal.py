"""Seal data sets without a command (`seal = "auto"`), if they are cached, did not change lately, and have small files.
The configuration says so for all, a rule of the policy for some.

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
from headrace.base.printable import path_text
from headrace.base.tasks import OwnedTasks
from headrace.jobs.automatic_seals import AutomaticSeals
from headrace.jobs.data_sets import data_sets
from headrace.jobs.progress import JobProgress
from headrace.namespace.namespace import Namespace
from headrace.policy.current import CurrentPolicy
from headrace.seal.catalogue import SealId

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 5.0
PAUSES_MAX = 64
"""Most quiet times that a data set waits, after seals of it were soon removed."""


@dataclass(slots=True)
class _DataSet:
    """Describes a tree that may be sealed. why: why it has no seal now. pauses: the number of quiet times
    that it must be unchanged before it is sealed again. Times are monotonic."""

    path: bytes
    changed_s: float
    seal: SealId | None = None
    sealed_s: float = 0.0
    compared_s: float = 0.0
    why: str = "it is new"
    pauses: int = 1


@dataclass(frozen=True, slots=True)
class AutoSealRules:
    """Says which data sets are sealed, and when.

    policy: its rules decide; by_default decides about data sets without a rule. quiet_s: seconds that a data set must
    be unchanged before it is sealed, and seconds between two comparisons of a sealed one with its origin.
    """

    policy: CurrentPolicy
    by_default: bool = False
    quiet_s: float = 300.0


class AutoSeal:
    """Seals data sets in one task on the node's loop. relist: lists all directories below a path again."""

    def __init__(
        self,
        namespace: Namespace,
        seals: AutomaticSeals,
        rules: AutoSealRules,
        *,
        relist: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._namespace = namespace
        self._seals = seals
        self._rules = rules
        self._relist = relist
        self._data_sets: dict[bytes, _DataSet] = {}
        self._mounts: set[bytes] = set()
        self._refused: dict[bytes, str] = {}
        self._removals: dict[SealId, asyncio.Task[None]] = {}
        """The seals that are to go. Another program may hold one mounted for long."""
        self._is_running = False
        self._tasks = OwnedTasks()
        namespace.tree.mounts.changed.add(self._on_changed)
        rules.policy.changed.add(lambda _: self._on_changed())

    def start(self) -> None:
        self._is_running = True
        self._tasks.start(self._run())

    async def stop(self) -> None:
        self._is_running = False
        await self._tasks.close()

    def status(self) -> list[dict[str, Any]]:
        """Return each data set with its seal, or why it has none and when it is looked at again, in seconds."""
        return [
            {
                "path": path_text(path),
                "seal": str(data_set.seal or ""),
                "why": data_set.why,
                "next_s": None if data_set.seal is not None else round(self._wait_s(data_set), 1),
            }
            for path, data_set in sorted(self._data_sets.items())
        ]

    def _wait_s(self, data_set: _DataSet) -> float:
        """Return the seconds for which a data set must still be unchanged before it may be sealed."""
        return max(0.0, data_set.changed_s + data_set.pauses * self._rules.quiet_s - monotonic_s())

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
        pause_s = min(CHECK_INTERVAL_S, self._rules.quiet_s / 4)
        is_late = False
        while not await self._adopt(is_late=is_late):
            is_late = True
            await asyncio.sleep(pause_s)
        while True:
            self._choose()
            for data_set in list(self._data_sets.values()):
                if self._data_sets.get(data_set.path) is not data_set:
                    continue  # it went during the checks before: nobody would end a seal of it
                try:
                    await self._check(data_set)
                except HeadraceError as error:
                    self._defer(data_set, str(error))
                except Exception:
                    log.exception("a data set could not be sealed path=%s", os.fsdecode(data_set.path))
                    self._defer(data_set, "an internal error, see the log")
            for seal in [seal for seal, removal in self._removals.items() if removal.done()]:
                self._begin_removal(seal, level=logging.INFO)
            await asyncio.sleep(pause_s)

    async def _adopt(self, *, is_late: bool) -> bool:
        """Adopt the seals of the last run. Names may have changed since, so the first check compares them. is_late: the
        node has followed changes already, and could not remove these seals for them; so they are removed now. Return
        False if the disk does not tell which there are."""
        self._choose()
        try:
            records = self._seals.records()
        except OSError as error:
            level = logging.INFO if is_late else logging.WARNING
            log.log(level, "the automatic seals of the last run can't be read error=%s", error)
            return False
        for record in records:
            data_set = self._data_sets.get(os.fsencode(record.path))
            if is_late or data_set is None or data_set.seal is not None:
                await asyncio.wait([self._begin_removal(record.seal)])
            else:
                data_set.seal, data_set.why = record.seal, ""
        return True

    def _on_changed(self) -> None:
        """Unmount at once what hides a new mount, or is no longer to be sealed."""
        if self._is_running:
            self._choose()

    def _choose(self) -> None:
        """Watch the data sets of the present mounts and the present policy, and no others."""
        mounts = {os.fsencode(mount.path) for mount in self._namespace.tree.mounts.all()}
        for path in mounts ^ self._mounts if self._mounts else ():
            for data_set in self._data_sets.values():
                if is_at_or_below(path, data_set.path) and path != data_set.path:
                    self._revoke(data_set, "a mount below it was added or removed")
        self._mounts = mounts
        self._refused = data_sets(mounts, self._rules.policy.resolver, by_default=self._rules.by_default)
        for path in self._refused.keys() - self._data_sets.keys():
            self._data_sets[path] = _DataSet(path, monotonic_s())
        for path in self._data_sets.keys() - self._refused.keys():
            self._revoke(self._data_sets.pop(path), "neither a mount nor the policy names it any more")
        for path, why in self._refused.items():
            if why and self._data_sets[path].seal is not None:
                self._revoke(self._data_sets[path], why)

    async def _check(self, data_set: _DataSet) -> None:
        now_s = monotonic_s()
        if data_set.seal is not None and not self._seals.exists(data_set.seal):
            data_set.seal, data_set.pauses = None, PAUSES_MAX
            self._defer(data_set, "a user removed its seal")
        if data_set.seal is None:
            if self._wait_s(data_set) == 0.0:
                await self._try_to_seal(data_set)
            return
        if now_s - data_set.sealed_s > PAUSES_MAX * self._rules.quiet_s:
            data_set.pauses = 1
        if now_s - data_set.compared_s >= self._rules.quiet_s:
            data_set.compared_s = now_s
            await self._relist(data_set.path)  # a change calls names_changed

    async def _try_to_seal(self, data_set: _DataSet) -> None:
        before_s, progress = data_set.changed_s, JobProgress()
        why = self._refused.get(data_set.path) or await self._seals.reason_against(data_set.path)
        if data_set.changed_s != before_s:
            return  # it changed, or is no longer to be sealed
        if why:
            self._defer(data_set, why)
            return
        seal = await self._seals.make(data_set.path, progress)
        if seal is None:
            self._defer(data_set, progress.failed[0][1])
            return
        data_set.seal, data_set.why, data_set.sealed_s = seal, "", monotonic_s()
        data_set.compared_s = data_set.sealed_s
        data_set.pauses = min(PAUSES_MAX, 2 * data_set.pauses)
        if data_set.changed_s != before_s:  # it may have two versions of the names
            self._revoke(data_set, "its names changed while it was sealed")
        elif why := self._refused.get(data_set.path, ""):
            self._revoke(data_set, why)
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
        try:
            self._seals.unmount(seal)
        except (HeadraceError, OSError) as error:  # the removal tries it again, until it succeeds
            log.warning("an automatic seal can't be unmounted seal=%s error=%s", seal, error)
        log.info("an automatic seal is removed path=%s seal=%s why=%s", os.fsdecode(data_set.path), seal, why)
        return self._begin_removal(seal)

    def _begin_removal(self, seal: SealId, *, level: int = logging.WARNING) -> asyncio.Task[None]:
        removal = self._removals[seal] = self._tasks.start(self._remove(seal, level))
        return removal

    async def _remove(self, seal: SealId, level: int) -> None:
        """Remove a seal. Where that fails, such as for one that another program holds mounted, the next check tries it
        again: until then its files can't be evicted."""
        try:
            await self._seals.remove(seal)
        except (HeadraceError, OSError) as error:
            log.log(level, "an automatic seal can't be removed seal=%s error=%s", seal, error)
        else:
            self._removals.pop(seal, None)
