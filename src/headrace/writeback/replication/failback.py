"""Query the replicas for files that they persisted in a failover of this node. The node does so at its start, after it
lost its lease, and when the origin has a version that this node did not upload. The replica's side is failover.py."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError
from headrace.base.tasks import all_of
from headrace.peer.client import PeerClient
from headrace.ring.view import ClusterView, NodeInfo
from headrace.wire.peer_messages import FailedOverFile
from headrace.writeback.planner import in_turns
from headrace.writeback.sync_journal import JournalRecord, SyncJournal

log = logging.getLogger(__name__)

OTHERS_MAX = 100_000
"""Most paths of which a second version is kept, of some hundred bytes each."""
QUERY_LIMIT_S = 10.0
"""Time limit of one query, in seconds."""
REPORTS_LIMIT_S = 120.0
"""Seconds after which no further report of a node is requested. The next query continues there."""
SILENT_LIMIT_S = 30.0
"""Seconds for which a conflict waits for a member that does not answer."""
RETRY_S = 1.0
"""Pause before nodes that did not answer are queried again, in seconds."""


class Failback:
    """Record in this node's journal what replicas persisted for it."""

    def __init__(
        self, me: str, peers: PeerClient, journal: SyncJournal, *, view: Callable[[], ClusterView]
    ) -> None:
        self._me = me
        self._peers = peers
        self._journal = journal
        self._view = view
        self._asking = asyncio.Lock()
        self._asked_s = float("-inf")
        self._silent_since_s: dict[str, float] = {}
        """The nodes that did not answer the last query, and since when they answered none."""
        self._others: dict[bytes, JournalRecord] = {}
        """The row that was dropped where a report and this node's own upload name two versions of a path."""

    async def ask(self, refused: bytes = b"") -> None:
        """Query all other nodes at one time, and record the files that they persisted for this node. A node that does
        not answer is skipped; its uploads are later recognized by their bytes. refused: a path that has another version
        at the origin than the journal says. If no node explains it, those that do not answer are queried again for
        SILENT_LIMIT_S: this node, or the network, may only just be back. A second version of the path from an earlier
        report is recorded at once: if the origin does not have that one either, the caller asks again."""
        before = self._journal.get(refused) if refused else None
        await self._ask_all()
        while refused and not self._is_explained(refused, before) and self._may_answer():
            await asyncio.sleep(RETRY_S)
            await self._ask_all()
        other = self._others.pop(refused, None)
        if other is not None and self._journal.get(refused) == before:
            self._journal.note(other)

    def _is_explained(self, refused: bytes, before: JournalRecord | None) -> bool:
        """Return whether a report changed a path's row, or there is a second version of it."""
        return refused in self._others or self._journal.get(refused) != before

    async def _ask_all(self) -> None:
        wanted_s = monotonic_s()
        async with self._asking:
            if self._asked_s > wanted_s:
                return  # an earlier caller queried after this call began
            begun_s = monotonic_s()
            others = [node for node in self._view().nodes.values() if node.id != self._me]
            members = {node.id for node in others}
            self._silent_since_s = {
                id: since_s for id, since_s in self._silent_since_s.items() if id in members
            }
            await all_of(map(self._ask, others))
            self._asked_s = begun_s  # not before: a cancelled query is none for those who wait

    def _may_answer(self) -> bool:
        """Return whether a member did not answer the last query, and has not been silent for long."""
        begun_s = monotonic_s() - SILENT_LIMIT_S
        return any(since_s > begun_s for since_s in self._silent_since_s.values())

    async def _ask(self, node: NodeInfo) -> None:
        """Query one node until it has reported all files, as one report has a limit."""
        last: list[FailedOverFile] = []
        limit = Deadline.after(REPORTS_LIMIT_S)
        try:
            while files := await self._query(node, done=False):
                if files == last:
                    break  # it did not forget them
                last = files
                async for file in in_turns(files):
                    self._note(
                        JournalRecord(file.path, file.inode, file.ctime_ns, file.size_bytes, file.version)
                    )
                await asyncio.to_thread(self._journal.sync)  # durable first: the other node then forgets them
                log.info("a replica persisted files of this node node=%s files=%d", node.id, len(files))
                await self._query(node, done=True)
                limit.check(f"all reports of node {node.id}")
            self._silent_since_s.pop(node.id, None)
        except (HeadraceError, OSError) as error:
            self._silent_since_s.setdefault(node.id, monotonic_s())
            log.info("a replica did not report which files it persisted node=%s error=%s", node.id, error)

    async def _query(self, node: NodeInfo, *, done: bool) -> list[FailedOverFile]:
        return await self._peers.query_failover(
            node, self._me, done=done, deadline=Deadline.after(QUERY_LIMIT_S)
        )

    def _note(self, row: JournalRecord) -> None:
        """Record a row unless this node uploaded something newer. Both times are from this host's clock, which may have
        been set back in between. So the other row is kept, in case that the origin does not have this one."""
        own = self._journal.get(row.path)
        is_newer = own is None or own.begun or own.ctime_ns <= row.ctime_ns
        if own is not None and own.is_there and not own.begun and own.version != row.version:
            self._others[row.path] = own if is_newer else row
            if len(self._others) > OTHERS_MAX:
                del self._others[next(iter(self._others))]
        if is_newer:
            self._journal.note(row)
