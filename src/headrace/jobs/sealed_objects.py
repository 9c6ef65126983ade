"""Ask origins whether they still have the objects of a seal that no cache has."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, PathNotFoundError
from headrace.base.namespace_path import join
from headrace.jobs.missing_files import is_sealed_version, sealed_version
from headrace.namespace.mounts import MountTable
from headrace.seal.snapshot import SnapshotEntry

AT_ONCE = 64
REQUEST_LIMIT_S = 60.0


class SealedObjects:
    """The objects of seals at the origins of the mounts."""

    def __init__(self, mounts: MountTable) -> None:
        self._mounts = mounts

    async def faults(self, top: str, entries: Sequence[SnapshotEntry]) -> list[str]:
        """Return for each file why its origin can't give the sealed bytes any more; "" if it can. top: the path of the
        namespace of the directory that was sealed."""
        slots = asyncio.Semaphore(AT_ONCE)

        async def fault(entry: SnapshotEntry) -> str:
            async with slots:
                return await self._fault(join(os.fsencode(top), entry.path), entry)

        return await asyncio.gather(*map(fault, entries))

    async def _fault(self, path: bytes, entry: SnapshotEntry) -> str:
        place = self._mounts.find(path)
        if place is None:
            return "no mount of this node answers for it, and no cache has it"
        mount, key = place
        try:
            info = await mount.origin.head(key, deadline=Deadline.after(REQUEST_LIMIT_S))
        except PathNotFoundError:
            return "the object is gone from its origin since it was sealed, and no cache has it"
        except HeadraceError as error:
            return f"it is not in the cache, and its origin can't be asked: {error}"
        if is_sealed_version(entry, info.version):
            return ""
        return (
            f"the object has changed at its origin since it was sealed, and no cache has it: version "
            f"{info.version.text}, sealed {sealed_version(entry).text}"
        )
