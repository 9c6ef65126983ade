"""What other nodes are told, and asked, of writes: the desk's side of told.py, registry.py and take_over.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.base.model import Version
from headrace.dataplane.dirty_files import DirtyFiles
from headrace.dataplane.failover import Failover
from headrace.dataplane.pending_names import PendingNames
from headrace.overlay.pending_version import PendingVersion
from headrace.wire.peer_messages import ListPending, PendingNamesPage


@dataclass(frozen=True, slots=True)
class CoherenceService:
    """told: None where nothing can be written. give_up: of the right to make new names in a folder."""

    me: str
    files: DirtyFiles
    take_over: Failover
    told: PendingNames | None
    give_up: Callable[[bytes], Awaitable[None]]

    async def answer(self, request: ListPending) -> PendingNamesPage:
        if request.writer != self.me:
            return PendingNamesPage(self.files.mirrored(request.writer, request.path), "", whole=True)
        if self.told is None or self.told.registry is None:
            return PendingNamesPage([], "", whole=True)
        return self.told.registry.answer(request)

    async def settle(self, path: bytes, token: str) -> Version | None:
        written = PendingVersion.parse(token)
        if written is None:
            return None
        if written.writer == self.me:
            return None if self.told is None else await self.told.settle(path, written)
        return self.take_over.taken(path, written)
