"""Invalidate other nodes' listings of a directory that this node changed at its origin. This happens before the nodes
that show its dirty names learn that the origin has them.

A node that does not answer is notified again until it answers. Until then its listing may lack a name that this node's
pending rows no longer show. A node that left the cluster is notified when it comes back: its listings seem to be fresh
if it was only cut off. All calls run on the node's loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection
from typing import Protocol

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError
from headrace.base.tasks import OwnedTasks
from headrace.peer.client import PeerClient
from headrace.ring.view import ClusterView, NodeInfo
from headrace.writeback.observers import WriteObserver

log = logging.getLogger(__name__)

DIRECTORIES_MAX = 64
"""Most directories of one round. For more, their common parent is invalidated instead. The same limit holds for the
directories that wait for one node."""
RETRY_S = 1.0
"""Pause before a failed invalidation is repeated, in seconds."""
AWAY_S_MAX = 600.0
"""Seconds for which this node keeps the directories of a node that left the cluster."""
INVALIDATE_LIMIT_S = 10.0
"""Time limit of one invalidation of one node, in seconds."""


class SendInvalidation(Protocol):
    async def __call__(
        self, path: bytes, *, relist: bool, below: bool = True, only: Collection[str] | None = None
    ) -> list[tuple[str, str]]:
        """Call PeerListings.invalidate."""
        ...


class PeerListings:
    """Invalidates the listings of other nodes."""

    def __init__(self, me: str, peers: PeerClient, *, view: Callable[[], ClusterView]) -> None:
        self._me = me
        self._peers = peers
        self._view = view

    async def invalidate(
        self, path: bytes, *, relist: bool, below: bool = True, only: Collection[str] | None = None
    ) -> list[tuple[str, str]]:
        """Invalidate a listing on all other nodes, or on those with these ids. Return the ids of nodes that failed,
        and why."""

        async def notify(node: NodeInfo) -> tuple[str, str] | None:
            try:
                deadline = Deadline.after(INVALIDATE_LIMIT_S)
                await self._peers.invalidate_listing(
                    node, path, relist=relist, below=below, deadline=deadline
                )
            except HeadraceError as error:
                return node.id, str(error)
            return None

        others = [
            node
            for node in self._view().nodes.values()
            if node.id != self._me and (only is None or node.id in only)
        ]
        return [failure for failure in await asyncio.gather(*map(notify, others)) if failure is not None]


class InvalidationBroadcaster:
    """Sends invalidations and repeats those that failed."""

    def __init__(self, send: SendInvalidation, view: Callable[[], ClusterView]) -> None:
        self._send = send
        self._view = view
        self._pending: dict[str, dict[bytes, bool]] = {}
        """Map a node id to its directories, and each to whether everything below it is invalid, too."""
        self._repeating: set[str] = set()
        self._present: set[str] = set()
        self._away: dict[str, float] = {}
        """Nodes that left the cluster, and when, by the monotonic clock."""
        self._tasks = OwnedTasks()

    def on_view(self) -> None:
        """Note the nodes that left, and notify those that came back."""
        present, now_s = set(self._view().nodes), monotonic_s()
        self._away |= dict.fromkeys(self._present - present, now_s)
        self._present = present
        for node in self._away.keys() & present:
            del self._away[node]
            if node in self._pending:
                self._repeat(node)

    async def announce(self, directories: set[bytes]) -> None:
        """Invalidate listings. On return each node that answers has dropped its listings and will list again. A node
        that does not answer is waited for once."""
        below = len(directories) > DIRECTORIES_MAX
        silent: set[str] = set()
        self._forget_long_away()
        for directory in {os.path.commonpath(directories)} if below else directories:
            for node in silent:
                self._record_failed(node, directory, below=below)
            for node in self._away:
                self._record(node, directory, below=below)
            only = self._view().nodes.keys() - silent if silent else None
            for node, why in await self._notify(directory, below=below, only=only):
                log.info(
                    "a node was not notified yet path=%s node=%s error=%s", os.fsdecode(directory), node, why
                )
                self._record_failed(node, directory, below=below)
                silent.add(node)

    async def stop(self) -> None:
        await self._tasks.close()

    async def _notify(
        self, directory: bytes, *, below: bool, only: Collection[str] | None = None
    ) -> list[tuple[str, str]]:
        """Notify nodes; return those that failed, and why. All nodes drop their listings before any lists again,
        because one may list from another."""
        failures = dict(await self._send(directory, relist=False, below=below, only=only))
        if failures:
            only = (self._view().nodes.keys() if only is None else set(only)) - failures.keys()
        failures |= dict(await self._send(directory, relist=True, below=below, only=only))
        return list(failures.items())

    def _forget_long_away(self) -> None:
        limit_s = monotonic_s() - AWAY_S_MAX
        for node in [node for node, left_s in self._away.items() if left_s < limit_s]:
            del self._away[node]
            self._pending.pop(node, None)

    def _record_failed(self, node: str, directory: bytes, *, below: bool) -> None:
        self._record(node, directory, below=below)
        self._repeat(node)

    def _record(self, node: str, directory: bytes, *, below: bool) -> None:
        directories = self._pending.setdefault(node, {})
        directories[directory] = below or directories.get(directory, False)
        if len(directories) > DIRECTORIES_MAX:
            common_parent = os.path.commonpath(list(directories))
            directories.clear()
            directories[common_parent] = True

    def _repeat(self, node: str) -> None:
        if node not in self._repeating:
            self._repeating.add(node)
            self._tasks.start(self._notify_later(node))

    async def _notify_later(self, node: str) -> None:
        """Repeat until the node has received everything. What fails meanwhile is repeated once more: the directory may
        have changed since the notice that is on its way."""
        try:
            while self._pending.get(node) and node in self._view().nodes:
                await asyncio.sleep(RETRY_S)
                for directory in list(self._pending[node]):
                    if node not in self._view().nodes:
                        break  # nobody would be notified
                    below = self._pending[node].pop(directory, None)
                    if below is None:
                        continue  # its common parent with others is there instead
                    if await self._notify(directory, below=below, only=(node,)):
                        self._record_failed(node, directory, below=below)
                        break
        finally:
            self._repeating.discard(node)
            if node not in self._away:
                self._pending.pop(node, None)


class InvalidationObserver(WriteObserver):
    """Invalidates the listings of directories in which something was persisted."""

    def __init__(self, broadcaster: InvalidationBroadcaster) -> None:
        self._broadcaster = broadcaster

    async def on_persisted(self, paths: list[bytes], directories: set[bytes]) -> None:
        await self._broadcaster.announce(directories)
