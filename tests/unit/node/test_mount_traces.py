"""A mount of another cluster that leads back to itself is refused, however long the way is."""

from __future__ import annotations

import random

import pytest

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import OriginUnavailableError, UsageError
from headrace.namespace.mounts import Mount, MountTable
from headrace.node.mount_traces import (
    AGAIN_S,
    BRANCHES_MAX,
    LIMIT_S,
    PASSED_ON_MAX,
    MountTraces,
)
from headrace.origin.memory import MemoryOrigin
from headrace.testing.virtual_loop import pass_time
from headrace.wire.trace_messages import HOPS_MAX, TraceMount


class TracedCluster:
    """A cluster of one node, with mounts of others."""

    def __init__(self) -> None:
        self.mounts = MountTable()
        self.traces = MountTraces(self.mounts, None)
        self.is_away = False
        self.asked = 0
        self.mounts.add(Mount("/", "memory://", MemoryOrigin(), 60.0))

    def far(self, path: str = "") -> TracedPath:
        """Return the origin of a mount elsewhere that is a path of this cluster."""
        return TracedPath(self, path)

    def attach(self, path: str, far: TracedPath) -> None:
        self.mounts.add(Mount(path, far.url, MemoryOrigin(), 60.0))
        self.traces.add(path, far)  # type: ignore[arg-type]

    async def check(self, path: str, far: TracedPath) -> None:
        await self.traces.check(path, far)  # type: ignore[arg-type]


class TracedPath:
    def __init__(self, cluster: TracedCluster, path: str) -> None:
        self.url = "headrace://node:1" + path
        self._cluster = cluster
        self._path = path

    async def leads_back(
        self, below: str, *, instance: str, mount: str, hops: int, deadline: Deadline
    ) -> bool:
        self._cluster.asked += 1
        if self._cluster.is_away:
            raise OriginUnavailableError(self.url, why="the test says so")
        request = TraceMount((self._path + below or "/").encode(), instance, mount.encode(), hops)
        answer = await self._cluster.traces._answer(request)
        return answer.leads_back

    def close(self) -> None: ...


REFUSED = "leads back to /data itself"


async def test_a_mount_of_its_own_cluster_is_refused() -> None:
    cluster = TracedCluster()
    for path in ("", "/data", "/data/x"):
        with pytest.raises(UsageError, match=REFUSED):
            await cluster.check("/data", cluster.far(path))
    await cluster.check("/data", cluster.far("/other"))
    await cluster.check("/data", cluster.far("/datas"))


@pytest.mark.parametrize("between", [1, 2, HOPS_MAX - 1])
async def test_a_circle_over_others_is_refused(between: int) -> None:
    first = TracedCluster()
    behind = first.far("/data/sub")
    for _ in range(between):
        cluster = TracedCluster()
        cluster.attach("/m", behind)
        behind = cluster.far("/m/x")
    with pytest.raises(UsageError, match=REFUSED):
        await first.check("/data", behind)
    await first.check("/elsewhere", behind)


async def test_a_mount_below_the_path_counts() -> None:
    first, second = TracedCluster(), TracedCluster()
    second.attach("/a/b", first.far("/data"))
    for path in ("", "/a", "/a/b", "/a/b/c"):
        with pytest.raises(UsageError, match=REFUSED):
            await first.check("/data", second.far(path))
    await first.check("/data", second.far("/c"))
    await first.check("/data", second.far("/a/bc"))


async def test_a_nearer_mount_answers_for_a_path() -> None:
    first, second = TracedCluster(), TracedCluster()
    second.attach("/a", first.far("/data"))
    second.mounts.add(Mount("/a/local", "memory://x", MemoryOrigin(), 60.0))
    await first.check("/data", second.far("/a/local"))


async def test_a_circle_that_is_there_already_ends() -> None:
    """Two nodes that started at the same time may have made one."""
    second, third = TracedCluster(), TracedCluster()
    second.attach("/m", third.far("/m"))
    third.attach("/m", second.far("/m"))
    with pytest.raises(UsageError, match=f"over more than {HOPS_MAX} clusters"):
        await TracedCluster().check("/data", second.far("/m"))
    assert second.asked + third.asked == HOPS_MAX + 1


async def test_a_cluster_that_does_not_say_is_believed() -> None:
    first, second, third = TracedCluster(), TracedCluster(), TracedCluster()
    second.attach("/m", third.far())
    third.is_away = True
    await first.check("/data", second.far())
    second.is_away = True
    await first.check("/data", second.far())


async def test_a_question_has_a_bounded_cost() -> None:
    second, third = TracedCluster(), TracedCluster()
    for number in range(100):
        second.attach(f"/m{number}", third.far(f"/{number}"))
    await TracedCluster().check("/data", second.far())
    assert third.asked == BRANCHES_MAX


async def test_a_flood_of_questions_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters that mount each other more than once would multiply the questions of one caller."""
    second, third = TracedCluster(), TracedCluster()
    for number in range(4):
        second.attach(f"/m/{number}", third.far("/m"))
        third.attach(f"/m/{number}", second.far("/m"))
    await TracedCluster().check("/data", second.far("/m"))
    assert second.asked + third.asked <= 1 + 2 * 4 * PASSED_ON_MAX
    now_s = monotonic_s() + LIMIT_S
    monkeypatch.setattr("headrace.node.mount_traces.monotonic_s", lambda: now_s)
    second.asked = third.asked = 0
    with pytest.raises(UsageError, match="leads back"):
        await third.check("/m/3", second.far("/m/3"))
    assert second.asked >= 1


async def test_a_mount_that_is_gone_leads_nowhere() -> None:
    first, second = TracedCluster(), TracedCluster()
    second.attach("/m", first.far("/data"))
    second.mounts.remove("/m")
    second.traces.remove("/m")
    await first.check("/data", second.far("/m"))
    await second.traces.stop()


async def _mount_of_a_loop() -> tuple[TracedCluster, TracedCluster, list[str]]:
    """Return two clusters that mount each other, as after a start of both, and what the first one detaches."""
    first, second = TracedCluster(), TracedCluster()
    second.attach("/far", first.far("/data"))
    first.is_away = True  # it does not serve yet
    far = second.far("/far")
    await first.check("/data/loop", far)
    first.attach("/data/loop", far)
    first.attach("/other", TracedCluster().far())
    detached: list[str] = []

    async def detach(path: str) -> None:
        detached.append(path)
        first.traces.remove(path)

    first.traces.start(detach)
    return first, second, detached


@pytest.mark.expected_warnings("a mount was detached")
async def test_a_mount_that_led_nowhere_at_the_start_is_detached_when_it_leads_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, _, detached = await _mount_of_a_loop()
    await pass_time(sum(AGAIN_S) / 2)
    assert detached == []
    first.is_away = False
    await pass_time(sum(AGAIN_S))
    assert detached == ["/data/loop"]
    assert caplog.text.count("a mount was detached") == 1
    assert "leads back to /data/loop itself" in caplog.text
    await first.traces.stop()


async def test_a_mount_stays_when_another_cluster_detaches_its_own_at_that_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random, "random", lambda: 1.0)
    first, second, detached = await _mount_of_a_loop()
    first.is_away = False
    await pass_time(AGAIN_S[0] + 0.5)
    second.traces.remove("/far")
    await pass_time(2 * sum(AGAIN_S))
    assert detached == []
    await first.traces.stop()


async def test_an_older_mount_stays_when_a_newer_one_makes_the_circle() -> None:
    first, _, detached = await _mount_of_a_loop()
    await pass_time(2 * sum(AGAIN_S))
    first.is_away = False
    await pass_time(3600)
    assert detached == []
    await first.traces.stop()
