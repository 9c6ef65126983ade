"""Nodes publish the holders of hot segments, follow each other's, and keep theirs while etcd is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from headrace.base.errors import ClusterUnavailableError
from headrace.base.model import FileId
from headrace.cluster.embedded import EmbeddedRecords
from headrace.cluster.records import Followers
from headrace.node.hot_copies import (
    EXCHANGE_S,
    RECORD_BYTES_MAX,
    HotCopies,
    HotTable,
    PublishedHot,
    decode_hot,
    encode_hot,
)
from headrace.policy.heat import HALF_LIFE_S, HOT_MAX
from headrace.ring.ring import key_of
from headrace.testing.virtual_loop import pass_time
from headrace.wire.peer_messages import FileRange

MIB = 1 << 20
HOT = key_of(b"/hot", 0)


class FlakyRecords(EmbeddedRecords):
    is_away = False

    async def put(self, key: str, value: bytes, leased: bool = False) -> None:
        if self.is_away:
            raise ClusterUnavailableError("put", why="away")
        await super().put(key, value, leased)


class FilesOfNode:
    """Notes what HotCopies did with the files of a node."""

    def __init__(self, *, is_primary: bool) -> None:
        self.primary = is_primary
        self.given: list[FileId] = []
        self.borrowed: list[FileId] = []

    def is_primary(self, path: bytes, segment: int) -> bool:
        return self.primary

    def is_automatic(self, path: bytes) -> bool:
        return path.startswith(b"/hot")

    def give(self, ids: list[FileId]) -> None:
        self.given += ids

    def borrow(self, id: FileId) -> None:
        self.borrowed.append(id)


class HotNode:
    def __init__(self, name: str, shared: Followers, *, is_primary: bool = False) -> None:
        self.table = HotTable()
        self.files = FilesOfNode(is_primary=is_primary)
        self.records = FlakyRecords(shared)
        self.nodes = ["a", "b", "c"]
        self.is_wanted = True
        self.hot = HotCopies(
            *(name, self.table, self.files, self.records),
            nodes=lambda: self.nodes,
            is_wanted=lambda: self.is_wanted,
            extra_bytes_max=100 * MIB,
        )
        joined = asyncio.Event()
        joined.set()
        self.hot.start(joined)

    def serve(self, reader: str, times: int, *, path: bytes = b"/hot", size_bytes: int = MIB) -> None:
        for _ in range(times):
            self.hot.note_read(FileId(7), FileRange(path, size_bytes, 1, "v", 0, size_bytes), reader)

    async def stop(self) -> None:
        await self.hot.stop()


@pytest.fixture
async def nodes() -> AsyncIterator[dict[str, HotNode]]:
    shared = Followers()
    nodes = {id: HotNode(id, shared, is_primary=id == "a") for id in "abc"}
    yield nodes
    for node in nodes.values():
        await node.stop()


async def test_all_nodes_know_the_holders_of_a_hot_file(nodes: dict[str, HotNode]) -> None:
    nodes["a"].serve("b", 6)
    await pass_time(2 * EXCHANGE_S)
    assert {id: tuple(node.table.of(HOT)) for id, node in nodes.items()} == dict.fromkeys("abc", ("b",))
    assert nodes["a"].files.given == [7]
    assert nodes["a"].hot.statistics() == {
        "hot_segments": 1,
        "hot_copies": 1,
        "hot_bytes": MIB,
        "hot_held": 0,
    }
    nodes["b"].hot.note_taken(FileId(9), FileRange(b"/hot", MIB, 1, "v", 0, MIB))
    assert nodes["b"].hot.statistics()["hot_held"] == 1
    await pass_time(6 * HALF_LIFE_S)
    assert not any(node.table.of(HOT) for node in nodes.values())
    assert nodes["b"].files.borrowed == [9] and nodes["c"].files.borrowed == []


async def test_only_automatic_paths_of_the_primary_owner_count(nodes: dict[str, HotNode]) -> None:
    nodes["a"].serve("b", 20, path=b"/cold")
    nodes["b"].serve("c", 20)
    nodes["a"].serve("", 20)
    await pass_time(2 * EXCHANGE_S)
    assert not any(node.table.of(HOT) or node.table.of(key_of(b"/cold", 0)) for node in nodes.values())


async def test_a_policy_without_auto_ends_all_copies(nodes: dict[str, HotNode]) -> None:
    nodes["a"].serve("b", 6)
    await pass_time(2 * EXCHANGE_S)
    nodes["a"].is_wanted = False
    await pass_time(2 * EXCHANGE_S)
    assert not any(node.table.of(HOT) for node in nodes.values())
    nodes["a"].serve("b", 20)
    await pass_time(2 * EXCHANGE_S)
    assert not nodes["a"].table.of(HOT)


async def test_holders_stay_while_etcd_is_away(nodes: dict[str, HotNode]) -> None:
    nodes["a"].serve("b", 6)
    await pass_time(2 * EXCHANGE_S)
    nodes["a"].records.is_away = True
    nodes["a"].serve("c", 30)
    await pass_time(20 * HALF_LIFE_S)
    assert {tuple(node.table.of(HOT)) for node in nodes.values()} == {("b",)}
    nodes["a"].records.is_away = False
    await pass_time(2 * EXCHANGE_S)
    assert not any(node.table.of(HOT) for node in nodes.values())


@pytest.mark.expected_warnings("headrace.node.hot_copies")
async def test_an_invalid_record_changes_nothing(nodes: dict[str, HotNode]) -> None:
    nodes["a"].serve("b", 6)
    await pass_time(2 * EXCHANGE_S)
    await nodes["a"].records.put("hot/a", b'{"nodes": [], "segments": {"0000000000000001": [0]}}')
    await pass_time(EXCHANGE_S / 2)
    assert tuple(nodes["c"].table.of(HOT)) == ("b",)


def test_two_nodes_may_publish_a_segment_for_a_while() -> None:
    table = HotTable()
    table.put("a", {1: ("b",), 2: ("c",)})
    table.put("d", {1: ("c",)})
    assert table.of(1) == ("c",)
    table.put("d", {})
    assert (table.of(1), table.of(2)) == (("b",), ("c",))
    assert table.put("a", {2: ("b",)}) == {1: ("b",), 2: ("c",)}
    assert (table.of(1), table.of(2)) == ((), ("b",))


@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b'{"nodes": ["a"], "segments": {"1": [0]}}',
        b'{"nodes": ["a"], "segments": {"000000000000000G": [0]}}',
        b'{"nodes": ["a"], "segments": {"0000000000000001": [1]}}',
        b'{"nodes": ["a"], "segments": {"0000000000000001": [-1]}}',
        b'{"nodes": ["a/b"], "segments": {"0000000000000001": [0]}}',
        b'{"nodes": ["a"], "segments": {"0000000000000001": [' + b"0," * 16 + b"0]}}",
        b" " * (RECORD_BYTES_MAX + 1),
    ],
)
def test_a_bad_record_is_refused(raw: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_hot(raw)


def test_the_longest_record_is_accepted() -> None:
    holders = {(1 << 63) + key: tuple(f"node-{n}.example.org" for n in range(15)) for key in range(HOT_MAX)}
    raw = encode_hot(holders)
    assert decode_hot(raw) == holders and len(raw) < RECORD_BYTES_MAX / 4
    with pytest.raises(msgspec.DecodeError):
        decode_hot(encode_hot(holders | {1: ("a",)}))
    assert PublishedHot() == msgspec.json.decode(encode_hot({}), type=PublishedHot)
