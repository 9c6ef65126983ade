"""Mounts are the same on all nodes, whatever happens at the same time, fails or is cancelled."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headrace.base.errors import ClusterUnavailableError, PathExistsError, PathNotFoundError, UsageError
from headrace.base.tasks import OwnedTasks
from headrace.cluster.embedded import EmbeddedRecords
from headrace.cluster.records import Followers
from headrace.config.schema import MountConfig
from headrace.node.shared_mounts import MountRecord, SharedMounts, _encode, remembered_mounts
from headrace.origin.allowed import AllowedOrigins
from headrace.testing.virtual_loop import pass_time

PATH, KEY = "/d", "mounts/d"
OTHER, ONE = {"endpoint": "http://other:9000"}, {"endpoint": "http://one:9000"}
CALL_S = 0.1


class SlowRecords(EmbeddedRecords):
    """Records whose calls take as long before they reach the store as their answers do. failures: calls that fail."""

    failures = 0

    async def get(self, key: str) -> bytes | None:
        await self._send()
        value = await super().get(key)
        await pass_time(CALL_S)
        return value

    async def put(self, key: str, value: bytes, leased: bool = False) -> None:
        await self._send()
        await super().put(key, value, leased)
        await pass_time(CALL_S)

    async def create(self, key: str, value: bytes, leased: bool = False) -> bool:
        await self._send()
        is_new = key not in self.shared.mirror
        if is_new:
            self.shared.publish(key, value)
        await pass_time(CALL_S)
        return is_new

    async def _send(self) -> None:
        await pass_time(CALL_S)
        if self.failures:
            self.failures -= 1
            raise ClusterUnavailableError("etcd", why="it does not answer")


class MountsOfNode:
    """The shared mounts of a node, and its table. check_s: how long the check of an origin takes."""

    def __init__(
        self, shared: Followers, *, check_s: float = 0.0, allowed: AllowedOrigins | None = None
    ) -> None:
        self.table: dict[str, tuple[str, dict[str, str]]] = {}
        self.records = SlowRecords(shared)
        self._check_s = check_s
        self.mounts = SharedMounts(
            self.records,
            attach=self._attach,
            detach=self._detach,
            check=(lambda *_: None) if allowed is None else allowed.check,
        )

    async def _attach(self, path: str, url: str, options: dict[str, str]) -> None:
        if path in self.table:
            raise PathExistsError(path)
        self.table[path] = (url, options)

    async def _detach(self, path: str) -> None:
        if path not in self.table:
            raise PathNotFoundError(path)
        del self.table[path]

    async def _checked_attach(self, path: str, url: str, options: dict[str, str]) -> str:
        await pass_time(self._check_s)
        await self._attach(path, url, options)
        return ""

    async def add(self, url: str, options: dict[str, str] | None = None) -> str:
        return await self.mounts.add(PATH, url, options or {}, attach=self._checked_attach)

    async def remove(self) -> None:
        await self.mounts.remove(PATH)


async def two_nodes(*, check_s: float = 0.0) -> tuple[MountsOfNode, MountsOfNode]:
    shared = Followers()
    nodes = MountsOfNode(shared, check_s=check_s), MountsOfNode(shared)
    for node in nodes:
        await node.mounts.start({}, {})
    return nodes


async def stop(*nodes: MountsOfNode) -> None:
    for node in nodes:
        await node.mounts.stop()


@pytest.mark.parametrize("after_s", [0.0, 0.5, 9.9, 9.95, 10.05, 10.15])
async def test_two_nodes_add_a_mount_at_one_path(after_s: float) -> None:
    """The record of the other comes before, while, or after this node attaches its own. The first record wins."""
    node, other = await two_nodes(check_s=10.0)
    async with OwnedTasks(Exception) as tasks:
        adding = tasks.start(node.add("s3://a"))
        await pass_time(after_s)
        results = await asyncio.gather(adding, other.add("s3://b"), return_exceptions=True)
    await pass_time(5)
    winner = "s3://b" if after_s < 10 else "s3://a"
    assert node.table == other.table == {PATH: (winner, {})}
    refused, why = (results[0], UsageError) if after_s < 10 else (results[1], (UsageError, PathExistsError))
    assert isinstance(refused, why) and winner in str(refused)
    await other.remove()
    await pass_time(5)
    assert node.table == other.table == {}
    await stop(node, other)


async def test_a_mount_replaced_by_one_with_the_same_url_and_other_options() -> None:
    """Its removal was not seen, because the watch was broken. A mount of the configuration keeps its own."""
    shared = Followers()
    node, configured, late = MountsOfNode(shared), MountsOfNode(shared), MountsOfNode(shared)
    record = MountRecord("s3://a", {**ONE, "secret_access_key": "x"})
    for each in (node, configured, late):
        await each._attach(PATH, record.url, record.options)
    await node.mounts.start({}, {PATH: record})
    await configured.mounts.start({PATH: record}, {})
    await pass_time(1)
    assert node.table[PATH][1] == record.options  # its own record changed nothing
    shared.publish(KEY, _encode(MountRecord("s3://a", OTHER)))
    await pass_time(1)
    await late.mounts.start({}, {PATH: record})  # it was away
    await pass_time(1)
    assert node.table == late.table == {PATH: ("s3://a", OTHER)}
    assert configured.table == {PATH: (record.url, record.options)}
    await stop(node, configured, late)


async def test_a_remembered_mount_is_recorded_with_its_options_after_a_data_loss() -> None:
    kept = {
        "/d": {"url": "s3://a", **ONE, "by_operator": "true"},
        "/own": {"url": "s3://b", "configured": "true"},
    }
    attached = {"/d": "s3://a", "/own": "s3://b", "/new": "s3://c"}
    remembered = remembered_mounts(attached, kept, own={"/own"})
    assert remembered == {"/d": MountRecord("s3://a", ONE), "/new": MountRecord("s3://c")}
    shared = Followers()
    node = MountsOfNode(shared)
    await node.mounts.start({}, remembered)
    shared.publish(KEY, None)
    await pass_time(1)
    assert shared.mirror[KEY] == _encode(MountRecord("s3://a", ONE))
    await stop(node)


@pytest.mark.parametrize("after_s", [0.05, 0.15])
async def test_a_cancelled_caller_leaves_the_mounts_of_all_nodes_equal(after_s: float) -> None:
    """after_s: before and after the record is written."""
    node, other = await two_nodes()
    async with OwnedTasks() as tasks:
        adding = tasks.start(node.add("s3://a"))
        await pass_time(after_s)
        adding.cancel()
        await pass_time(5)
        assert node.table == other.table == {PATH: ("s3://a", {})}
        removing = tasks.start(node.remove())
        await pass_time(after_s)
        removing.cancel()
        await pass_time(5)
        assert node.table == other.table == {}
    await stop(node, other)


@pytest.mark.parametrize("is_waiting", [False, True])
async def test_a_caller_who_is_cancelled_ends_the_check(is_waiting: bool) -> None:
    """The origin may not answer, for example. is_waiting: for another command about that path."""
    shared = Followers()
    node = MountsOfNode(shared, check_s=60)
    await node.mounts.start({}, {})
    async with OwnedTasks() as tasks:
        adding = [tasks.start(node.add(f"s3://{n}")) for n in range(2 if is_waiting else 1)]
        await pass_time(1)
        for task in adding:
            task.cancel()
        await pass_time(120)
        assert node.table == {} and KEY not in shared.mirror
        tasks.start(node.add("s3://b"))
        await pass_time(61)
    assert node.table == {PATH: ("s3://b", {})}
    await stop(node)


@pytest.mark.expected_warnings("a mount of the cluster could not be attached path=/bad")
async def test_a_record_that_breaks_its_check_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    allowed = AllowedOrigins("s3://*", {"/own": MountConfig("s3://own")})
    node = MountsOfNode(Followers(), allowed=allowed)
    await node.mounts.start({}, {})
    with caplog.at_level(logging.WARNING):
        await node.records.put("mounts/bad", _encode(MountRecord("s3://a", {"endpoint": "http://["})))
        await node.records.put(KEY, _encode(MountRecord("s3://a")))
        await pass_time(1)
    assert node.table == {PATH: ("s3://a", {})}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    await stop(node)


@pytest.mark.expected_warnings("a mount of the cluster could not be attached path=/bad")
async def test_an_attach_that_fails_unexpectedly_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def check(url: str, _: object) -> None:
        if url == "s3://bad":
            raise ValueError(url)

    node = MountsOfNode(Followers())
    node.mounts._check = check
    await node.mounts.start({}, {})
    await node.records.put("mounts/bad", _encode(MountRecord("s3://bad")))
    await node.records.put(KEY, _encode(MountRecord("s3://a")))
    await pass_time(1)
    assert node.table == {PATH: ("s3://a", {})}
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    await stop(node)


async def test_a_lost_record_is_written_again_although_etcd_does_not_answer_at_first() -> None:
    shared = Followers()
    node = MountsOfNode(shared)
    await node.mounts.start({}, {})
    await node.add("s3://a")
    node.records.failures = 3
    shared.publish(KEY, None)
    await pass_time(10)
    assert shared.mirror[KEY] == _encode(MountRecord("s3://a"))
    await stop(node)


async def test_a_failed_record_leaves_the_mounts_as_they_were() -> None:
    node, other = await two_nodes()
    node.records.failures = 1
    with pytest.raises(ClusterUnavailableError):
        await node.add("s3://a")
    assert node.table == other.table == {}
    await node.add("s3://a")
    node.records.failures = 1
    with pytest.raises(ClusterUnavailableError):
        await node.remove()
    await pass_time(1)
    assert node.table == other.table == {PATH: ("s3://a", {})}
    with pytest.raises(PathExistsError):
        await node.add("s3://a")
    await stop(node, other)
