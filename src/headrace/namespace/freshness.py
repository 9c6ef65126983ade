"""Say how old listings may be: the policy's age for a directory, or the sync interval of its mount."""

from __future__ import annotations

import asyncio
import logging
import os

from headrace.base.errors import HeadraceError
from headrace.base.model import ROOT_ID, FileId, Kind
from headrace.base.tasks import OwnedTasks
from headrace.namespace.changes import STALE_NS
from headrace.namespace.mounts import Mount
from headrace.namespace.tree import NameTree
from headrace.policy.current import CurrentPolicy
from headrace.policy.resolve import PolicyResolver

log = logging.getLogger(__name__)

ENTRIES_A_TURN = 4096
"""Entries that are passed before others have their turn on the loop: some 10 ms."""


class Freshness:
    """The ages of listings. After a change of the policy, directories with another age than before are listed again at
    their next access."""

    def __init__(self, tree: NameTree, policy: CurrentPolicy) -> None:
        self._tree = tree
        self._policy = policy
        self._tasks = OwnedTasks()
        policy.changed.add(self._on_changed)

    async def stop(self) -> None:
        await self._tasks.close()

    def age_s(self, directory: bytes, mount: Mount) -> float:
        """Return the seconds for which a listing may be used; inf: for ever."""
        fresh_s = self._policy.of_directory(directory).fresh_s
        return mount.sync_interval_s if fresh_s is None else fresh_s

    def _on_changed(self, before: PolicyResolver) -> None:
        self._tasks.start(self._expire(before))

    async def _expire(self, before: PolicyResolver) -> None:
        """Expire the listings whose age the policy changed. before: the policy that they were made under."""
        count = 0
        pending: list[tuple[FileId, bytes]] = [(ROOT_ID, b"/")]
        while pending:
            directory, path = pending.pop()
            try:
                if before.of_directory(path).fresh_s != self._policy.of_directory(path).fresh_s:
                    self._expire_one(directory)
                for entry in self._tree.index.children(directory):
                    count += 1
                    if entry.kind is Kind.DIRECTORY:
                        pending.append((entry.id, path.rstrip(b"/") + b"/" + entry.name))
                    if count % ENTRIES_A_TURN == 0:
                        await asyncio.sleep(0)
            except HeadraceError as error:
                log.warning("listings keep their age path=%s error=%s", os.fsdecode(path), error)

    def _expire_one(self, directory: FileId) -> None:
        if self._tree.is_listed(directory):
            self._tree.index.names.set_fresh_until(directory, STALE_NS)
