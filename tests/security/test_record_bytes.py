"""Whatever bytes somebody writes to etcd, a node that reads them goes on (finding 2)."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import msgspec
import pytest

from headrace.base.errors import ClusterUnavailableError
from headrace.cluster.embedded import EmbeddedRecords
from headrace.cluster.membership import Membership
from headrace.cluster.records import Followers
from headrace.node.shared_mounts import MountRecord, SharedMounts, _encode
from headrace.ring.view import ClusterView, NodeInfo
from headrace.testing.waiting import until
from headrace.writeback.coherence.dirty_scope import DirtyScope
from headrace.writeback.replication.placement import PREFIX as HOLDERS
from headrace.writeback.replication.placement import ReplicaSetRecords

pytestmark = pytest.mark.expected_warnings("record can't be decoded")


NONSENSE = [
    b"",
    b"{}",
    b"\x80",
    b"[]",
    b'{"url":"\x80"}',
    b'{"id":"\xff"}',
    b'{"url":7}',
    b'{"x":' + b"[" * 9000,
]


@pytest.mark.parametrize("raw", NONSENSE, ids=range(len(NONSENSE)))
async def test_a_record_that_is_none_stops_nobody(raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    attached: dict[str, str] = {}
    views: list[ClusterView] = []

    async def attach(path: str, url: str, options: dict[str, str]) -> None:
        attached[path] = url

    async def detach(path: str) -> None:
        del attached[path]

    async def alive(_: NodeInfo) -> bool:
        return False

    records = EmbeddedRecords(Followers())
    records.start = lambda: asyncio.sleep(0)  # type: ignore[attr-defined]
    me, other = (NodeInfo(id, f"run-{id}", "127.0.0.1:1", "", 1 << 30, "0", 1) for id in ("me", "b"))
    member = Membership(records, me, on_view=views.append, is_alive=alive)  # type: ignore[arg-type]
    mounts = SharedMounts(records, attach=attach, detach=detach, check=lambda *_: None)
    await member.start()
    await mounts.start({}, {})
    for key in ("nodes/x", "mounts/x"):
        await records.put(key, raw)
    await records.put("nodes/b", msgspec.json.encode(other))
    await records.put("mounts/y", _encode(MountRecord("s3://y")))
    await until(lambda: bool(attached and set(views[-1].nodes) == {"me", "b"}))
    await mounts.stop()
    await member._tasks.close()
    assert list(attached.values()) == ["s3://y"]


@pytest.mark.parametrize("raw", NONSENSE, ids=range(len(NONSENSE)))
async def test_a_record_of_what_was_written_that_is_none(raw: bytes) -> None:
    records = EmbeddedRecords(Followers())
    await records.put(f"{HOLDERS}/a", raw)
    with contextlib.suppress(ClusterUnavailableError):
        assert not await ReplicaSetRecords(records).is_holder("a", "b")
    with contextlib.suppress(ClusterUnavailableError):
        assert not DirtyScope.decode(raw)
