"""A publisher of pending names with records in memory, and peers that hear it or ask it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.base.deadline import Deadline
from headrace.base.errors import ClusterUnavailableError, PeerError
from headrace.base.namespace_path import split
from headrace.cluster.embedded import EmbeddedRecords
from headrace.overlay.pending_version import EntryState, PendingEntry
from headrace.ring.view import ClusterView, NodeInfo, next_view
from headrace.wire.peer_messages import DirtyNamesChanged, ListPending, PendingNamesPage, RecallLease
from headrace.writeback.coherence.dirty_scope import DirtyScope
from headrace.writeback.coherence.publisher import DirtyNamesPublisher
from headrace.writeback.coherence.subscriber import DirtyNamesSubscriber


def view_of(*ids: str) -> ClusterView:
    nodes = {id: NodeInfo(id, "", "", "", 1 << 30, "", 3) for id in ids}
    return next_view(None, nodes, epoch=1)


class CountingRecords(EmbeddedRecords):
    writes = 0
    away = False

    async def put(self, key: str, value: bytes, leased: bool = False) -> None:
        if self.away:
            raise ClusterUnavailableError("records", why="the test says so")
        self.writes += 1
        await super().put(key, value, leased)


class RecordingPeers:
    """Peers that hear what is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, DirtyNamesChanged | RecallLease]] = []

    async def notify(
        self, node: NodeInfo, request: DirtyNamesChanged | RecallLease, deadline: Deadline
    ) -> None:
        self.heard.append((node.id, request))


class PublisherFixture:
    """A publisher, and the names of its node."""

    def __init__(self, peers: RecordingPeers | None = None) -> None:
        self.names: dict[bytes, EntryState] = {}
        self.unread: set[bytes] = set()
        self.records = CountingRecords()
        self.peers = peers or RecordingPeers()
        self.unmarked: list[bytes] = []
        self.view = view_of("n0", "n1")
        self.registry = DirtyNamesPublisher(
            "n0",
            "run",
            self.records,
            self.peers,  # type: ignore[arg-type]
            view=lambda: self.view,
            entry_of=lambda path: None if path in self.unread else self.look(path),
            is_clean=lambda path: self.look(path).means == EntryState.ORIGIN,
            unmark=self.unmarked.append,
        )

    def look(self, path: bytes) -> PendingEntry:
        return PendingEntry(split(path)[1], self.names.get(path, EntryState.ORIGIN))

    def write(self, *paths: bytes, means: EntryState = EntryState.FILE) -> None:
        self.names |= dict.fromkeys(paths, means)
        self.registry.note(paths, paths if means is EntryState.DIRECTORY else ())

    def cover(self) -> DirtyScope:
        raw = self.records.shared.mirror.get("written/n0")
        return DirtyScope() if raw is None else DirtyScope.decode(raw)

    def ask(self, path: bytes, since: str = "") -> tuple[dict[bytes, int], str, bool]:
        answer = self.registry.answer(ListPending("n0", path, since))
        return {row.name: row.means for row in answer.names}, answer.state, answer.whole


def elsewhere_of(here: PublisherFixture, me: str, *ids: str) -> DirtyNamesSubscriber:
    return DirtyNamesSubscriber(me, here.records, here.peers, view=lambda: view_of(*ids))  # type: ignore[arg-type]


class Answering(RecordingPeers):
    """Peers that answer with one name; before that, what `meanwhile` does."""

    is_usable = True

    def __init__(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self.meanwhile = meanwhile

    def usable(self, node: NodeInfo) -> bool:
        return self.is_usable

    async def list_pending(
        self, node: NodeInfo, request: ListPending, deadline: Deadline
    ) -> PendingNamesPage:
        await self.meanwhile()
        return PendingNamesPage([PendingEntry(b"x", EntryState.FILE, 5, 1, 2, 3)], "state", whole=True)


class Paging(Answering):
    """Peers that answer from a publisher, page by page. pages_left: pages that they send before they are away."""

    def __init__(self, here: PublisherFixture) -> None:
        self.here = here
        self.pages_left = 100
        super().__init__(self.take_page)

    async def take_page(self) -> None:
        self.pages_left -= 1
        if self.pages_left < 0:
            raise PeerError("node n0", why="the test says so")

    async def list_pending(
        self, node: NodeInfo, request: ListPending, deadline: Deadline
    ) -> PendingNamesPage:
        await self.meanwhile()
        return self.here.registry.answer(request)
