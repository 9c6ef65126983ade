"""Let hot files gain copies, and lose them again, where the policy says `replicas = "auto"`.

Each node counts what peers read of the segments that it owns (`policy/heat.py`), and publishes the holders of its hot
segments as a leased record `hot/NODE`. All nodes follow these records, so each finds the copies without a question.
While etcd is away the holders stay as they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from headrace.base.clock import monotonic_s
from headrace.base.decoding import decode_json
from headrace.base.errors import HeadraceError
from headrace.base.model import FileId
from headrace.base.namespace_path import check_node_id
from headrace.base.tasks import OwnedTasks
from headrace.cluster.records import Records
from headrace.dataplane.peer_service import ReadCounts
from headrace.policy.heat import HOLDERS_MAX, HOT_MAX, HotSegment, ReadHeat, SegmentRead
from headrace.ring.ring import key_of
from headrace.ring.view import SEGMENT_BYTES
from headrace.wire.peer_messages import FileRange

log = logging.getLogger(__name__)

PREFIX = "hot"
EXCHANGE_S = 1.0
EXTRA_SHARE = 0.05
"""Share of a node's capacity that the copies of its hot segments may take on other nodes."""
NODES_MAX = 4096
RECORD_BYTES_MAX = 1 << 18
KEY_DIGITS = 16


class PublishedHot(msgspec.Struct, frozen=True):
    """The record of a node. nodes: ids of holders. segments: by the key of the ring in hexadecimal, the positions of
    the holders in nodes."""

    nodes: Annotated[list[Annotated[str, Meta(max_length=255)]], Meta(max_length=NODES_MAX)] = []
    segments: Annotated[
        dict[
            Annotated[str, Meta(pattern=f"^[0-9a-f]{{{KEY_DIGITS}}}$")],
            Annotated[list[Annotated[int, Meta(ge=0, lt=NODES_MAX)]], Meta(max_length=HOLDERS_MAX)],
        ],
        Meta(max_length=HOT_MAX),
    ] = {}


def encode_hot(holders: dict[int, tuple[str, ...]]) -> bytes:
    nodes = sorted({id for ids in holders.values() for id in ids})
    positions = {id: position for position, id in enumerate(nodes)}
    segments = {f"{key:0{KEY_DIGITS}x}": [positions[id] for id in ids] for key, ids in holders.items()}
    return msgspec.json.encode(PublishedHot(nodes, segments))


def decode_hot(raw: bytes) -> dict[int, tuple[str, ...]]:
    """Decode the record of another node: the holders by key. Raises msgspec.DecodeError."""
    if len(raw) > RECORD_BYTES_MAX:
        raise msgspec.ValidationError(f"a record of {len(raw)} bytes: {RECORD_BYTES_MAX} are allowed")
    record = decode_json(raw, PublishedHot)
    try:
        for id in record.nodes:
            check_node_id(id)
        return {int(key, 16): tuple(record.nodes[n] for n in ns) for key, ns in record.segments.items()}
    except (ValueError, IndexError) as error:
        raise msgspec.ValidationError(f"a record of hot segments: {error}") from error


class HotTable:
    """The holders of hot segments, as all nodes have published them."""

    def __init__(self) -> None:
        self._by_node: dict[str, dict[int, tuple[str, ...]]] = {}
        self._holders: dict[int, tuple[str, ...]] = {}

    def of(self, key: int) -> Sequence[str]:
        """Return the holders of a segment."""
        return self._holders.get(key, ())

    def published(self, node: str) -> dict[int, tuple[str, ...]]:
        return self._by_node.get(node, {})

    def put(self, node: str, holders: dict[int, tuple[str, ...]]) -> dict[int, tuple[str, ...]]:
        """Replace what a node has published. Return what it had published before."""
        before = self._by_node.pop(node, {})
        if holders:
            self._by_node[node] = holders
        self._holders |= holders
        for key in before.keys() - holders.keys():
            others = [known[key] for known in self._by_node.values() if key in known]
            if others:
                self._holders[key] = others[-1]
            else:
                del self._holders[key]
        return before


class OwnFiles(Protocol):
    """Gives access to the files of this node, as far as copies concern them."""

    def is_primary(self, path: bytes, segment: int) -> bool: ...
    def is_automatic(self, path: bytes) -> bool: ...
    def give(self, ids: list[FileId]) -> None:
        """Give files to all their owners, soon."""
        ...

    def borrow(self, id: FileId) -> None:
        """Mark a file as borrowed, unless this node owns a part of it."""
        ...


class HotCopies(ReadCounts):
    """Counts reads, and decides once a second. me: this node. nodes: returns the ids of all nodes. extra_bytes_max: of
    all copies of this node's segments."""

    def __init__(
        self,
        me: str,
        table: HotTable,
        files: OwnFiles,
        records: Records,
        *,
        nodes: Callable[[], list[str]],
        is_wanted: Callable[[], bool],
        extra_bytes_max: int,
    ) -> None:
        self._me = me
        self._table = table
        self._files = files
        self._records = records
        self._nodes = nodes
        self._is_wanted = is_wanted
        self._extra_bytes_max = extra_bytes_max
        self._heat = ReadHeat()
        self._hot: dict[int, HotSegment] = {}
        self._held: dict[int, FileId] = {}
        self._tasks = OwnedTasks()

    def start(self, joined: asyncio.Event) -> None:
        """Publish and follow hot segments from the moment on that the node has joined the cluster."""
        self._tasks.start(self._run(joined))

    async def stop(self) -> None:
        await self._tasks.close()

    def statistics(self) -> dict[str, int]:
        """Return the hot segments of which this node is the primary owner, and what it holds for others."""
        copies = [(len(hot.holders), hot.segment.size_bytes) for hot in self._hot.values()]
        return {
            "hot_segments": len(self._hot),
            "hot_copies": sum(count for count, _ in copies),
            "hot_bytes": sum(count * size_bytes for count, size_bytes in copies),
            "hot_held": len(self._held),
        }

    def note_read(self, id: FileId, wanted: FileRange, reader: str) -> None:
        """Note that a peer reads a part of a file here."""
        segment = wanted.start // SEGMENT_BYTES
        if not self._is_wanted() or not reader or not self._files.is_automatic(wanted.path):
            return
        if not self._files.is_primary(wanted.path, segment):
            return
        size_bytes = min(SEGMENT_BYTES, wanted.size_bytes - segment * SEGMENT_BYTES)
        read = SegmentRead(key_of(wanted.path, segment), int(id), size_bytes)
        self._heat.note(read, reader, wanted.end - wanted.start, monotonic_s())

    def note_taken(self, id: FileId, offered: FileRange) -> None:
        """Note that this node has taken a file that it owns."""
        key = key_of(offered.path, offered.start // SEGMENT_BYTES)
        if self._me in self._table.of(key):
            self._held[key] = id

    # ------------------------------------------------------------ internal

    async def _run(self, joined: asyncio.Event) -> None:
        await joined.wait()
        while True:
            try:
                await self._records.follow(f"{PREFIX}/", self._on_record)
                break
            except HeadraceError:
                await asyncio.sleep(EXCHANGE_S)
        while True:
            await asyncio.sleep(EXCHANGE_S)
            try:
                if self._is_wanted() or self._hot:
                    await self.exchange()
            except HeadraceError as error:
                log.info("hot segments can't be published, their holders stay error=%s", error)

    async def exchange(self) -> None:
        """Decide which segments are hot now, and publish that. Raise ClusterUnavailableError, with nothing changed
        for other nodes."""
        nodes = [node for node in self._nodes() if node != self._me] if self._is_wanted() else []
        hot = self._heat.decide(nodes, extra_bytes_max=self._extra_bytes_max, now_s=monotonic_s())
        holders = {key: segment.holders for key, segment in hot.items()}
        self._hot = hot
        if holders == self._table.published(self._me):
            return
        await self._records.put(f"{PREFIX}/{self._me}", encode_hot(holders), leased=True)
        before = self._table.put(self._me, holders)
        gained = [key for key, ids in holders.items() if not set(ids) <= set(before.get(key, ()))]
        self._files.give([FileId(hot[key].segment.file) for key in gained])

    def _on_record(self, key: str, value: bytes | None) -> None:
        node = key.removeprefix(f"{PREFIX}/")
        if node == self._me:
            return
        try:
            holders = decode_hot(value) if value else {}
        except msgspec.DecodeError as error:
            log.warning("the hot segments of a node are invalid node=%s error=%s", node, error)
            return
        before = self._table.put(node, holders)
        for segment, ids in before.items():
            if self._me in ids and self._me not in self._table.of(segment):
                id = self._held.pop(segment, None)
                if id is not None:
                    self._files.borrow(id)
