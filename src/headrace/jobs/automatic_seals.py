"""Decide whether a data set is worth an automatic seal, and make, unmount and remove automatic seals."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, suppress

from headrace.base.errors import HeadraceError, MountError, PathNotFoundError, UsageError
from headrace.base.model import Entry, FileId, Kind
from headrace.base.namespace_path import is_at_or_below
from headrace.jobs.progress import JobProgress
from headrace.jobs.seal import Sealing
from headrace.namespace.namespace import Namespace
from headrace.seal.catalogue import Catalogue, SealId, SealRecord
from headrace.seal.inner_mounts import InnerMounts
from headrace.seal.mounted import is_of, mounts_of, source_on_top
from headrace.seal.places import unmounting_seal

log = logging.getLogger(__name__)

FILES_MIN = 100
"""Fewest files of a data set that is sealed. Fewer are read fast enough through the mount."""
AVERAGE_BYTES_MAX = 4 << 20
"""Largest average size of the files of a data set that is sealed. The open of a larger file takes a small part of the
time of its read."""
REMOVE_ATTEMPTS = 10
"""Most attempts to remove a seal that is mounted again meanwhile, with REMOVE_PAUSE_S seconds between them."""
REMOVE_PAUSE_S = 0.2


class AutomaticSeals:
    """Makes and removes automatic seals with a node's `Sealing`."""

    def __init__(
        self,
        namespace: Namespace,
        sealing: Sealing,
        catalogue: Catalogue,
        disk: Executor,
    ) -> None:
        self._namespace = namespace
        self._sealing = sealing
        self._catalogue = catalogue
        self._disk = disk

    def records(self) -> list[SealRecord]:
        """Return the automatic seals. Blocks for small files."""
        return [record for record in self._records() if record.automatic]

    def exists(self, seal: SealId) -> bool:
        return seal in self._catalogue.seals()

    async def reason_against(self, path: bytes) -> str:
        """Return why a directory is not sealed now; "" if it is worth a seal."""
        if self._sealing.how_to_protect(path):
            return "its files can be written"
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._disk, lambda: self._sealing.trouble or self._survey(path))

    async def make(self, path: bytes, progress: JobProgress) -> SealId | None:
        """Seal a directory. Return None if a file failed; progress has its reason. Raises HeadraceError."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", os.fsdecode(path).strip("/"))[:50] or "all"
        seal = await self._sealing.make(path, SealId(f"auto-{name}", 0), progress, automatic=True)
        return None if progress.failed_files else seal

    def unmount(self, seal: SealId) -> None:
        """Unmount a seal everywhere. Open files stay readable. If another program mounted something over it, both
        mounts stay. Seals inside it are mounted again by a thread: their paths lead through the mount, whose session
        may wait for this loop."""
        for mountpoint in reversed(mounts_of(self._catalogue, seal)):
            if not is_of(source_on_top(mountpoint), self._catalogue, seal):
                continue
            stack = ExitStack()
            with suppress(MountError):
                inner = stack.enter_context(unmounting_seal(mountpoint))
                if inner:
                    self._disk.submit(_attach_again, inner, stack.pop_all())
            stack.close()

    async def remove(self, seal: SealId) -> None:
        """Unmount and remove a seal. `headrace up` may be mounting it at this moment."""
        for _ in range(REMOVE_ATTEMPTS):
            self.unmount(seal)
            try:
                return await self._sealing.remove(seal, at_once=True)
            except PathNotFoundError:
                return None
            except UsageError:  # it is mounted again
                await asyncio.sleep(REMOVE_PAUSE_S)
        return await self._sealing.remove(seal, at_once=True)

    def _survey(self, path: bytes) -> str:
        """Return why the tree is not worth a seal, by its names and files; "" if it is. Stops at the first file that is
        not cached."""
        text = os.fsdecode(path)
        for record in self._records():
            if not record.automatic and _overlap(record.path, text) and self._is_in_place(record.seal):
                return f"seal {record.seal} is mounted over it"
        top = self._namespace.tree.directory_at(path)
        if top is None:
            return "nothing of it was listed"
        files = size_bytes = 0
        for entry in self._entries(top):
            if entry is None:
                return "it was not listed as a whole"
            files += 1
            size_bytes += entry.version.size_bytes
            if not self._sealing.is_whole(entry, may_be_lost=True):
                return "it is not cached as a whole"
        if files < FILES_MIN:
            return f"it has fewer than {FILES_MIN} files"
        return "" if size_bytes <= AVERAGE_BYTES_MAX * files else "its files are large"

    def _entries(self, top: FileId) -> Iterator[Entry | None]:
        """Yield the files below a directory, and None for a directory that was never listed as a whole."""
        index, pending = self._namespace.tree.index, [top]
        while pending:
            directory = pending.pop()
            if index.fresh_until_ns(directory) == 0:
                yield None
            for child in index.children(directory):
                if child.kind is Kind.DIRECTORY:
                    pending.append(child.id)
                elif child.version.size_bytes:
                    yield child

    def _records(self) -> Iterator[SealRecord]:
        for seal in self._catalogue.seals():
            try:
                yield self._catalogue.record(seal)
            except (HeadraceError, OSError):
                continue  # status names damaged ones

    def _is_in_place(self, seal: SealId) -> bool:
        return any(place.in_place for place in self._catalogue.places(seal))


def _attach_again(inner: InnerMounts, stack: ExitStack) -> None:
    with stack:
        try:
            inner.attach_again()
        except MountError as error:
            log.warning("a seal was lost with the one around it error=%s", error)


def _overlap(path: str, other: str) -> bool:
    return is_at_or_below(path, other) or is_at_or_below(other, path)
