"""Telling the other nodes that their listings of folders are old, as this node put something there: before those that
show what it wrote are told that the origin has it.

Who can't be told is told again until it heard, or is out of the cluster. Until then its listing may lack a name that
this node's rows don't show any more. On the node's loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection
from typing import Protocol

from headrace.ring.view import ClusterView

log = logging.getLogger(__name__)

AT_ONCE_MAX = 64
"""Folders of one round; beyond that what they have in common. So are those that a node has not heard of."""
AGAIN_S = 1.0


class SendInvalidation(Protocol):
    async def __call__(
        self, path: bytes, *, relist: bool, below: bool = True, only: Collection[str] | None = None
    ) -> list[tuple[str, str]]:
        """Neighbourhood.forget."""
        ...


class InvalidationBroadcaster:
    def __init__(self, forget: SendInvalidation, view: Callable[[], ClusterView]) -> None:
        self._forget = forget
        self._view = view
        self._untold: dict[str, dict[bytes, bool]] = {}
        """Id of a node → folder → whether all below it, too."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def announce(self, folders: set[bytes]) -> None:
        """Whoever answers has heard on return, and will list anew."""
        below = len(folders) > AT_ONCE_MAX
        for folder in {os.path.commonpath(folders)} if below else folders:
            for node, why in await self._tell(folder, below=below):
                log.info("not told of a change yet path=%s node=%s error=%s", os.fsdecode(folder), node, why)
                self._note(node, folder, below=below)

    def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _tell(
        self, folder: bytes, *, below: bool, only: Collection[str] | None = None
    ) -> list[tuple[str, str]]:
        """All forget before any lists anew, which may be from another one of them."""
        untold = dict(await self._forget(folder, relist=False, below=below, only=only))
        untold |= dict(await self._forget(folder, relist=True, below=below, only=only))
        return list(untold.items())

    def _note(self, node: str, folder: bytes, *, below: bool) -> None:
        folders = self._untold.setdefault(node, {})
        folders[folder] = below or folders.get(folder, False)
        if len(folders) > AT_ONCE_MAX:
            top = os.path.commonpath(list(folders))
            folders.clear()
            folders[top] = True
        if node not in self._tasks:
            self._tasks[node] = asyncio.ensure_future(self._tell_later(node))

    async def _tell_later(self, node: str) -> None:
        """Until all is told."""
        try:
            while self._untold.get(node) and node in self._view().nodes:
                await asyncio.sleep(AGAIN_S)
                for folder, below in list(self._untold[node].items()):
                    if await self._tell(folder, below=below, only=(node,)):
                        break
                    if self._untold[node].get(folder) == below:
                        del self._untold[node][folder]
        finally:
            del self._tasks[node]
            self._untold.pop(node, None)
