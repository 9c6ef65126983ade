"""Follow other writers' pending names: which nodes to query about a directory, and their last answers.

Each writer's record names the directories in which it has pending names (`dirty_scope.py`). The node queries the
writer, or one of its replicas if the writer does not answer. After a first full answer it requests only the changes.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.decoding import decode_json
from headrace.base.errors import ClusterUnavailableError, HeadraceError, PeerError
from headrace.base.listeners import Listeners
from headrace.base.model import Kind, Version
from headrace.base.tasks import OwnedTasks
from headrace.cluster.records import Records
from headrace.namespace.pending_rows import Rows
from headrace.overlay.pending_version import EntryState, PendingEntry, PendingVersion
from headrace.peer.client import PeerClient
from headrace.ring.view import ClusterView, NodeInfo
from headrace.wire.peer_messages import ListPending, NameRow, ResolveVersion
from headrace.writeback.coherence.dirty_scope import PREFIX, DirtyScope

log = logging.getLogger(__name__)

QUERY_LIMIT_S = 10.0
"""Time limit of one query of a directory, in seconds."""
RESOLVE_LIMIT_S = 3600.0
"""Time limit of a request to resolve a version, in seconds. The writer first persists the file, which may be large."""
REPLICA_SETS_PREFIX = "copies"
"""Prefix of the records that name a writer's replicas."""
LISTED_S = 5.0
"""Seconds after which the watch has delivered all records of a direct listing."""
ENDED_S = 5.0
"""Seconds after the deletion of a writer's record by which all its directories have been refreshed."""
RETRY_S = 1.0
"""Pause before a directory is refreshed again whose writer did not answer, in seconds."""
ENTRIES_PER_TURN = 1000
"""Entries of a replica that are merged before other tasks of the loop run. Each takes some 1 µs."""


async def _no_entries(writer: str, directory: bytes) -> list[PendingEntry]:
    return []


@dataclass(slots=True)
class WriterRows:
    """Hold the answer of a writer, or of a replica (`node`), about a directory. `state` marks it in later requests of
    changes."""

    node: str = ""
    state: str = ""
    rows: Rows = field(default_factory=dict)


class DirtyNamesSubscriber:
    """Answer which pending names other nodes have in a directory.

    - `replica_entries`: returns the entries of a writer's directory that this node holds as a replica.
    - `changed`: called with a directory, and whether everything below it is meant, when pending names there may have
      changed.
    - `own_record_deleted`: called when this node's own record was deleted.
    """

    def __init__(
        self,
        me: str,
        records: Records,
        peers: PeerClient,
        *,
        view: Callable[[], ClusterView],
        replica_entries: Callable[[str, bytes], Awaitable[list[PendingEntry]]] = _no_entries,
    ) -> None:
        self._me = me
        self._records = records
        self._peers = peers
        self._view = view
        self._replica_entries = replica_entries
        self.changed: Listeners[[bytes, bool]] = Listeners()
        self.own_record_deleted: Listeners[[]] = Listeners()
        self._scopes: dict[str, DirtyScope] = {}
        self._replica_sets: dict[str, list[str]] = {}
        self._answers: dict[tuple[str, bytes], WriterRows] = {}
        self._locks: dict[tuple[str, bytes], asyncio.Lock] = {}
        self._present: set[str] = set()
        self._listed: dict[str, DirtyScope] = {}
        self._listed_s = float("-inf")
        self._invalid: dict[str, bytes] = {}
        """Records that nobody can decode, by writer. Each one is reported once."""
        self._ended: dict[str, tuple[DirtyScope, float]] = {}
        """Writers that left and were failed over: their scope, and when their record was deleted (monotonic clock)."""
        self._unanswered: dict[tuple[str, bytes], HeadraceError] = {}
        """Why the last query failed, by writer and directory. The last answer is used meanwhile."""
        self._tasks = OwnedTasks()

    async def start(self) -> None:
        """Follow the records of replica sets, then those of dirty names."""
        await self._records.follow(f"{REPLICA_SETS_PREFIX}/", self._on_replicas)
        await self._records.follow(f"{PREFIX}/", self._on_scope)
        self._tasks.start(self._refresh_unanswered())

    async def stop(self) -> None:
        await self._tasks.close()

    # ------------------------------------------------------------ writers

    async def catch_up(self) -> None:
        """Read the writers' records directly, instead of waiting for the watch. Events that arrive later may be
        older. A record that is invalid changes nothing: the writer's last valid scope stays."""
        records = await self._records.list(f"{PREFIX}/")
        self._listed_s = monotonic_s()
        listed: dict[str, DirtyScope] = {}
        for key, raw in records.items():
            writer = key.removeprefix(f"{PREFIX}/")
            scope = self._decode(writer, raw)
            listed[writer] = self._listed.get(writer, DirtyScope()) if scope is None else scope
        self._listed = listed

    def _decode(self, writer: str, raw: bytes) -> DirtyScope | None:
        """Return the scope of a writer's record; None, with a warning, if the record is invalid. The last valid scope
        counts then: the writer may still have names there, and answers for itself which ones."""
        try:
            scope = DirtyScope.decode(raw)
        except ClusterUnavailableError as error:
            if self._invalid.get(writer) != raw:
                self._invalid[writer] = raw
                log.warning("record of pending names is invalid writer=%s error=%s", writer, error)
            return None
        self._invalid.pop(writer, None)
        return scope

    def _on_scope(self, key: str, raw: bytes | None) -> None:
        writer = key.removeprefix(f"{PREFIX}/")
        if writer == self._me:
            if raw is None:
                self.own_record_deleted()
            return
        after = DirtyScope() if raw is None else self._decode(writer, raw)
        if after is None:
            return
        if raw is None:
            self._invalid.pop(writer, None)
        before = self._scopes.pop(writer, DirtyScope())
        if after:
            self._scopes[writer] = after
        elif writer not in self._view().nodes:
            self._ended[writer] = before, monotonic_s()
        for query in [query for query in self._answers if query[0] == writer and not after.covers(query[1])]:
            del self._answers[query]
            self._locks.pop(query, None)
        for directory in before.folders ^ after.folders:
            self.changed(directory, False)
        for directory in before.below ^ after.below:
            self.changed(directory, True)

    def _on_replicas(self, key: str, raw: bytes | None) -> None:
        try:
            holders = [] if raw is None else decode_json(raw, list[str])
        except msgspec.MsgspecError:
            holders = []
        self._replica_sets[key.removeprefix(f"{REPLICA_SETS_PREFIX}/")] = holders

    def on_view(self) -> None:
        """Mark the names of writers that left or returned as changed: another node answers for them now."""
        present = set(self._view().nodes)
        for writer in (present ^ self._present) & self._scopes.keys():
            self.mark_changed(writer)
        self._present = present

    def mark_changed(self, writer: str) -> None:
        """Call `changed` for every directory in a writer's scope."""
        scope = self._scopes.get(writer, DirtyScope())
        for directory in scope.folders:
            self.changed(directory, False)
        for directory in scope.below:
            self.changed(directory, True)

    def writers(self, directory: bytes) -> list[str]:
        """Return the ids of the nodes whose records cover this directory, sorted, without this node."""
        ids = {writer for writer, scope in self._scopes.items() if scope.covers(directory)}
        if monotonic_s() < self._listed_s + LISTED_S:
            ids |= {writer for writer, scope in self._listed.items() if scope.covers(directory)}
        return sorted(ids - {self._me})

    def any_gone(self, directory: bytes) -> bool:
        """Return whether a writer of this directory left the cluster, now or within the last ENDED_S."""
        nodes, now_s = self._view().nodes, monotonic_s()
        self._ended = {
            writer: (scope, ended_s)
            for writer, (scope, ended_s) in self._ended.items()
            if now_s < ended_s + ENDED_S
        }
        return any(writer not in nodes for writer in self.writers(directory)) or any(
            scope.covers(directory) for scope, _ in self._ended.values()
        )

    def sources(self, writer: str) -> list[NodeInfo]:
        """Return the nodes that can answer for a writer, best first, without this node."""
        nodes = self._view().nodes
        ids = [writer, *self._replica_sets.get(writer, [])]
        members = [nodes[id] for id in ids if id in nodes and id != self._me]
        return [node for node in members if self._peers.usable(node)]

    def is_member(self, node: str) -> bool:
        """Return whether a node is in the view of the cluster."""
        return node in self._view().nodes

    def holds(self, writer: str) -> bool:
        """Return whether this node is assigned as a replica of the writer."""
        return self._me in self._replica_sets.get(writer, [])

    # ------------------------------------------------------------ names

    async def rows(self, directory: bytes) -> Rows:
        """Return the names of a directory that differ from the origin, as their writers report them now. If no node
        can answer for a writer, use its last answer while it is a member of the cluster, and nothing afterwards."""
        merged: Rows = {}
        for writer in self.writers(directory):
            rows = await self._query(writer, directory)
            if writer not in self.writers(directory):
                continue  # the writer has persisted all of it meanwhile
            for name, row in rows.items():
                if row is not None or name not in merged:
                    merged[name] = row
        return merged

    async def _query(self, writer: str, directory: bytes) -> Rows:
        """Query a writer's names in a directory, one query at a time: each answer builds on the one before."""
        lock = self._locks.setdefault((writer, directory), asyncio.Lock())
        async with lock:
            return await self._query_sources(writer, directory)

    async def _query_sources(self, writer: str, directory: bytes) -> Rows:
        key = (writer, directory)
        answer = self._answers.setdefault(key, WriterRows())
        failure: HeadraceError = PeerError(f"node {writer}", why="it does not answer")
        for node in self.sources(writer):
            if node.id != writer and self.holds(writer):
                break  # this node's own replica is as recent
            try:
                rows = await self._query_node(node, writer, directory, answer)
                self._unanswered.pop(key, None)
                return rows
            except HeadraceError as error:
                failure = error
                log.info(
                    "query of pending names failed node=%s path=%s error=%s",
                    node.id,
                    os.fsdecode(directory),
                    error,
                )
        self._unanswered.pop(key, None)
        if self.holds(writer):
            rows = await self._rows_of_replica(writer, directory)
            answer.node, answer.state, answer.rows = self._me, "", rows
            return rows
        if writer not in self._view().nodes and not self._replica_sets.get(writer):
            self._answers.pop(key, None)
            return {}
        self._unanswered[key] = failure
        return answer.rows

    async def _rows_of_replica(self, writer: str, directory: bytes) -> Rows:
        """Return the rows of a writer's directory as this node's own replica has them."""
        rows: Rows = {}
        entries = await self._replica_entries(writer, directory)
        for start in range(0, len(entries), ENTRIES_PER_TURN):
            _merge(rows, writer, entries[start : start + ENTRIES_PER_TURN])
            await asyncio.sleep(0)
        return rows

    async def _refresh_unanswered(self) -> None:
        """Refresh directories whose writers did not answer and can be asked again. A notice of a change that led to
        such a query was delivered, and does not come again."""
        while True:
            await asyncio.sleep(RETRY_S)
            can_answer = {
                writer for writer in {writer for writer, _ in self._unanswered} if self.sources(writer)
            }
            for writer, directory in list(self._unanswered):
                if writer not in self.writers(directory):
                    del self._unanswered[writer, directory]
                elif writer in can_answer:
                    self.changed(directory, False)

    def check_answered(self, directory: bytes) -> None:
        """Raise PeerError if a member did not answer the last query about its names in a directory."""
        for writer in self.writers(directory):
            failure = self._unanswered.get((writer, directory))
            if failure is not None and self.is_member(writer):
                raise PeerError(f"node {writer}", why=f"its names are not known: {failure}")

    async def _query_node(self, node: NodeInfo, writer: str, directory: bytes, answer: WriterRows) -> Rows:
        deadline = Deadline.after(QUERY_LIMIT_S)
        since = answer.state if answer.node == node.id else ""
        rows = dict(answer.rows)  # the last answer stays complete if a page fails
        while True:
            page = await self._peers.list_pending(node, ListPending(writer, directory, since), deadline)
            if page.whole:
                rows = {}
            since = page.state
            _merge(rows, writer, page.names)
            if not page.more:
                answer.node, answer.state, answer.rows = node.id, since, rows
                return rows

    async def resolve_version(self, path: bytes, version: Version) -> Version | None:
        """Return the origin's version of a file that another node wrote; the writer persists it first. A replica knows
        the version, too, if it persisted the file in a failover. Return None if the file never reached the origin.
        Raise HeadraceError if a node that may know the version cannot answer now."""
        pending = PendingVersion.parse(version.token)
        if pending is None:
            return version
        sources = self.sources(pending.writer)
        failure = self._silent_source(pending.writer, sources)
        has_writer_answered = False
        for node in sources:
            is_writer = node.id == pending.writer
            limit = Deadline.after(RESOLVE_LIMIT_S if is_writer else QUERY_LIMIT_S)
            try:
                answer = await self._peers.resolve_version(node, ResolveVersion(path, version.token), limit)
            except HeadraceError as error:
                failure = failure or error
                continue
            if answer.version is not None:
                return answer.version
            has_writer_answered |= is_writer
        if failure is not None and not has_writer_answered:
            raise failure
        return None

    def _silent_source(self, writer: str, sources: list[NodeInfo]) -> HeadraceError | None:
        """Return an error for a member that `sources` leaves out, because it did not answer lately; None if there is
        none."""
        asked = {self._me, *(node.id for node in sources)}
        for id in (writer, *self._replica_sets.get(writer, [])):
            if id in self._view().nodes and id not in asked:
                return PeerError(f"node {id}", why="it does not answer")
        return None


def _merge(rows: Rows, writer: str, names: list[PendingEntry]) -> None:
    """Apply a page of entries to the rows."""
    for entry in names:
        if entry.means == EntryState.ORIGIN:
            rows.pop(entry.name, None)
        else:
            rows[entry.name] = None if entry.means == EntryState.HIDDEN else row_of(writer, entry)


def row_of(writer: str, entry: PendingEntry) -> NameRow:
    """Return the row of a pending entry. The version token of a file is that of its pending version."""
    if entry.means == EntryState.DIRECTORY:
        return NameRow(entry.name, int(Kind.DIRECTORY), 0, 0, "")
    token = PendingVersion(writer, entry.inode, entry.ctime_ns).token
    return NameRow(entry.name, int(Kind.FILE), entry.size_bytes, entry.mtime_ns, token)
