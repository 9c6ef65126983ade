"""Answer other nodes' requests about dirty names, pending versions and directory leases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.base.model import Version
from headrace.overlay.pending_version import PendingVersion
from headrace.wire.peer_messages import ListPending, PendingNamesPage
from headrace.writeback.coherence.pending_names import OwnVersions
from headrace.writeback.coherence.publisher import NAMES_PER_PAGE_MAX, DirtyNamesPublisher
from headrace.writeback.replication.dirty_files import DirtyFiles
from headrace.writeback.replication.replica_host import ReplicaHost

AFTER = "after:"
"""Prefix of the state of a page of a replica's names. The last name in hex follows."""


def _after(state: str) -> bytes:
    """Return the name after which the next page begins; b"" for the first page, also for any other state."""
    try:
        return bytes.fromhex(state.removeprefix(AFTER)) if state.startswith(AFTER) else b""
    except ValueError:
        return b""


@dataclass(frozen=True, slots=True)
class CoherenceService:
    """Answer other nodes. publisher, own: None if no mount of this node is writable. release_lease: releases the lease
    of a directory."""

    me: str
    files: DirtyFiles
    replica_host: ReplicaHost
    publisher: DirtyNamesPublisher | None
    own: OwnVersions | None
    release_lease: Callable[[bytes], Awaitable[None]]

    async def answer(self, request: ListPending) -> PendingNamesPage:
        """Return a page of the dirty names of a directory, of this node or of a writer whose replicas are here."""
        if request.writer != self.me:
            return await self._replica_page(request)
        if self.publisher is None:
            return PendingNamesPage([], "", whole=True)
        return self.publisher.answer(request)

    async def _replica_page(self, request: ListPending) -> PendingNamesPage:
        """Return the first page of a replica's names, or the next one. The state of a page is its last name."""
        after = _after(request.since)
        entries = await self.files.replica_entries(
            request.writer, request.path, after=after, most=NAMES_PER_PAGE_MAX + 1
        )
        page = entries[:NAMES_PER_PAGE_MAX]
        more = len(entries) > len(page)
        state = f"{AFTER}{page[-1].name.hex()}" if more else ""
        return PendingNamesPage(page, state, whole=not after, more=more)

    async def resolve_version(self, path: bytes, token: str) -> Version | None:
        """Return the origin's version of a pending version; None if that version never reached the origin. Raises
        ClusterUnavailableError if this node has it as a replica that is not persisted yet."""
        written = PendingVersion.parse(token)
        if written is None:
            return None
        if written.writer == self.me:
            return None if self.own is None else await self.own.resolve_version(path, written)
        return self.replica_host.resolve_version(path, written)
