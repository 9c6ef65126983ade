"""What other nodes wrote and have not persisted yet: whom to ask about a folder, and what they said last.

Each writer's record says in which folders it has such names (`cover.py`). The writer is asked; when it does not answer,
one that holds copies of what it wrote. What was told once is asked for again by its changes only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from headrace.base.deadline import Deadline
from headrace.base.decoding import decode_json
from headrace.base.errors import ClusterUnavailableError, HeadraceError
from headrace.base.model import Kind, Version
from headrace.cluster.records import Records
from headrace.namespace.dirty_scope import PREFIX, DirtyScope
from headrace.namespace.pending_rows import Rows
from headrace.overlay.pending_version import EntryState, PendingEntry, PendingVersion
from headrace.peer.client import PeerClient
from headrace.ring.view import ClusterView, NodeInfo
from headrace.wire.peer_messages import ListPending, NameRow, ResolveVersion

log = logging.getLogger(__name__)

ASK_LIMIT_S = 10.0
SETTLE_LIMIT_S = 3600.0
"""The writer persists a file of any size first; while it lives it is waited for."""
COPIES = "copies"
LISTED_S = 5.0
"""By then the records that were listed were heard of, too."""
ENDED_S = 5.0
"""By then all folders were looked at again in which one wrote whose record is gone."""


@dataclass(slots=True)
class WriterRows:
    """What a writer, or a holder of its copies (node), said of a folder."""

    node: str = ""
    state: str = ""
    rows: Rows = field(default_factory=dict)


class DirtyNamesSubscriber:
    """on_stirred: to be set; told of a folder, and whether of all below it too, that what other nodes have there may be
    another thing than before. mirrored: to be set; what copies that this node has say of a folder of a writer's."""

    def __init__(
        self,
        me: str,
        records: Records,
        peers: PeerClient,
        *,
        view: Callable[[], ClusterView],
    ) -> None:
        self._me = me
        self._records = records
        self._peers = peers
        self._view = view
        self.mirrored: Callable[[str, bytes], list[PendingEntry]] = lambda writer, path: []
        self.on_stirred: Callable[[bytes, bool], None] = lambda path, below: None
        self.on_own_gone: Callable[[], None] = lambda: None
        """To be set: this node's own record is gone."""
        self._covers: dict[str, DirtyScope] = {}
        self._holders: dict[str, list[str]] = {}
        self._told: dict[tuple[str, bytes], WriterRows] = {}
        self._asking: dict[tuple[str, bytes], asyncio.Lock] = {}
        self._here: set[str] = set()
        self._listed: dict[str, DirtyScope] = {}
        self._listed_s = float("-inf")
        self._ended: dict[str, tuple[DirtyScope, float]] = {}
        """Who is gone, and was persisted in its place: where it wrote, and when its record went; monotonic."""

    async def start(self) -> None:
        await self._records.follow(f"{COPIES}/", self._hear_holders)
        await self._records.follow(f"{PREFIX}/", self._hear)

    # ------------------------------------------------------------ who

    async def catch_up(self) -> None:
        """Whoever is named in the records now is asked, from now on. What is heard of them meanwhile may be older."""
        found = await self._records.list(f"{PREFIX}/")
        self._listed_s = time.monotonic()
        self._listed = {key.removeprefix(f"{PREFIX}/"): DirtyScope.decode(raw) for key, raw in found.items()}

    def _hear(self, key: str, raw: bytes | None) -> None:
        writer = key.removeprefix(f"{PREFIX}/")
        if writer == self._me:
            if raw is None:
                self.on_own_gone()
            return
        before = self._covers.pop(writer, DirtyScope())
        try:
            now = DirtyScope() if raw is None else DirtyScope.decode(raw)
        except ClusterUnavailableError as error:
            log.warning("record not understood error=%s", error)
            return
        if now:
            self._covers[writer] = now
        elif writer not in self._view().nodes:
            self._ended[writer] = before, time.monotonic()
        for told in [one for one in self._told if one[0] == writer and not now.covers(one[1])]:
            del self._told[told]
            self._asking.pop(told, None)
        for folder in before.folders ^ now.folders:
            self.on_stirred(folder, False)
        for folder in before.below ^ now.below:
            self.on_stirred(folder, True)

    def _hear_holders(self, key: str, raw: bytes | None) -> None:
        try:
            holders = [] if raw is None else decode_json(raw, list[str])
        except msgspec.MsgspecError:
            holders = []
        self._holders[key.removeprefix(f"{COPIES}/")] = holders

    def on_view(self) -> None:
        """Of who went, or came back, others are asked."""
        here = set(self._view().nodes)
        for writer in (here ^ self._here) & self._covers.keys():
            self.stir_all(writer)
        self._here = here

    def stir_all(self, writer: str) -> None:
        """Everything that is known of a writer may be another thing now."""
        cover = self._covers.get(writer, DirtyScope())
        for folder in cover.folders:
            self.on_stirred(folder, False)
        for folder in cover.below:
            self.on_stirred(folder, True)

    def writers(self, folder: bytes) -> list[str]:
        """Who has such names in a folder, by the records."""
        found = {writer for writer, cover in self._covers.items() if cover.covers(folder)}
        if time.monotonic() < self._listed_s + LISTED_S:
            found |= {writer for writer, cover in self._listed.items() if cover.covers(folder)}
        return sorted(found - {self._me})

    def any_gone(self, folder: bytes) -> bool:
        nodes, now_s = self._view().nodes, time.monotonic()
        self._ended = {
            writer: (cover, ended_s)
            for writer, (cover, ended_s) in self._ended.items()
            if now_s < ended_s + ENDED_S
        }
        return any(writer not in nodes for writer in self.writers(folder)) or any(
            cover.covers(folder) for cover, _ in self._ended.values()
        )

    def sources(self, writer: str) -> list[NodeInfo]:
        """Whom to ask for what a writer wrote, in order; not this node itself."""
        nodes = self._view().nodes
        ids = [writer, *self._holders.get(writer, [])]
        able = [nodes[id] for id in ids if id in nodes and id != self._me]
        return [node for node in able if self._peers.usable(node)]

    def holds(self, writer: str) -> bool:
        """Whether this node is to have copies of what the writer wrote."""
        return self._me in self._holders.get(writer, [])

    # ------------------------------------------------------------ what

    async def rows(self, folder: bytes) -> Rows:
        """What the names of a folder mean where it is not what the origin has, as its writers say now. Of a writer whom
        nobody can speak for: what it said last while it is in the cluster, else nothing."""
        found: Rows = {}
        for writer in self.writers(folder):
            rows = await self._ask(writer, folder)
            if writer not in self.writers(folder):
                continue  # the origin has all of it by now
            for name, row in rows.items():
                if row is not None or name not in found:
                    found[name] = row
        return found

    async def _ask(self, writer: str, folder: bytes) -> Rows:
        """One question about a folder at a time: its answers build on one another."""
        lock = self._asking.setdefault((writer, folder), asyncio.Lock())
        async with lock:
            return await self._ask_first(writer, folder)

    async def _ask_first(self, writer: str, folder: bytes) -> Rows:
        key = (writer, folder)
        told = self._told.setdefault(key, WriterRows())
        for node in self.sources(writer):
            if node.id != writer and self.holds(writer):
                break  # the copies here are as good
            try:
                return await self._ask_node(node, writer, folder, told)
            except HeadraceError as error:
                log.info(
                    "not told what was written node=%s path=%s error=%s", node.id, os.fsdecode(folder), error
                )
        if self.holds(writer):
            own = self._told[key] = WriterRows(self._me)
            _take_in(own.rows, writer, self.mirrored(writer, folder))
            return own.rows
        if writer not in self._view().nodes and not self._holders.get(writer):
            self._told.pop(key, None)
            return {}
        return told.rows

    async def _ask_node(self, node: NodeInfo, writer: str, folder: bytes, told: WriterRows) -> Rows:
        deadline = Deadline.after(ASK_LIMIT_S)
        since = told.state if told.node == node.id else ""
        while True:
            answer = await self._peers.ask_written(node, ListPending(writer, folder, since), deadline)
            if answer.whole:
                told.rows = {}
            told.node, told.state, since = node.id, answer.state, answer.state
            _take_in(told.rows, writer, answer.names)
            if not answer.more:
                return told.rows

    async def settle(self, path: bytes, version: Version) -> Version | None:
        """What the origin has of a file that another node wrote, which is persisted on return; None: it never came
        there. HeadraceError: nobody can tell just now."""
        written = PendingVersion.parse(version.token)
        if written is None:
            return version
        for node in self.sources(written.writer):
            settled = await self._peers.settle(
                node, ResolveVersion(path, version.token), Deadline.after(SETTLE_LIMIT_S)
            )
            return settled.version
        return None


def _take_in(rows: Rows, writer: str, names: list[PendingEntry]) -> None:
    for one in names:
        if one.means == EntryState.ORIGIN:
            rows.pop(one.name, None)
        else:
            rows[one.name] = None if one.means == EntryState.HIDDEN else row_of(writer, one)


def row_of(writer: str, one: PendingEntry) -> NameRow:
    if one.means == EntryState.DIRECTORY:
        return NameRow(one.name, int(Kind.DIRECTORY), 0, 0, "")
    token = PendingVersion(writer, one.inode, one.ctime_ns).token
    return NameRow(one.name, int(Kind.FILE), one.size_bytes, one.mtime_ns, token)
