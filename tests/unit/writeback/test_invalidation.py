"""Folders that changed, for nodes that can't be told at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection

import pytest

from headrace.ring.view import ClusterView, NodeInfo, next_view
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until
from headrace.writeback.coherence import invalidation
from headrace.writeback.coherence.invalidation import DIRECTORIES_MAX, RETRY_S, InvalidationBroadcaster

pytestmark = pytest.mark.timeout(60)


def view_of(*ids: str) -> ClusterView:
    nodes = {id: NodeInfo(id, "", "", "", 1 << 30, "", 3) for id in ids}
    return next_view(None, nodes, epoch=1)


class Others:
    """n1 and n2. deaf: which of them can't be told. heard: what each was told, in order. asked: who was to be told."""

    def __init__(self) -> None:
        self.deaf: set[str] = set()
        self.heard: dict[str, list[tuple[bytes, bool, bool]]] = {"n1": [], "n2": []}
        self.asked: list[str] = []
        self.tried = 0
        self.view = view_of("n0", "n1", "n2")
        self.announcer = InvalidationBroadcaster(self.forget, lambda: self.view)

    async def forget(
        self, path: bytes, *, relist: bool, below: bool = True, only: Collection[str] | None = None
    ) -> list[tuple[str, str]]:
        await asyncio.sleep(0)
        self.tried += 1
        asked = [id for id in self.heard if id in self.view.nodes and (only is None or id in only)]
        self.asked += asked
        for id in set(asked) - self.deaf:
            self.heard[id].append((path, relist, below))
        return [(id, "the test says so") for id in asked if id in self.deaf]

    async def tried_again(self) -> None:
        """Twice more, at least."""
        wanted = self.tried + 4
        await until(lambda: self.tried >= wanted)


@pytest.fixture
async def others() -> AsyncIterator[Others]:
    others = Others()
    yield others
    await others.announcer.stop()


async def test_who_can_not_be_told_is_told_later(others: Others) -> None:
    others.deaf = {"n2"}
    await others.announcer.announce({b"/d"})
    await others.announcer.announce({b"/e"})
    assert [path for path, relist, _ in others.heard["n1"] if relist] == [b"/d", b"/e"]
    await others.tried_again()
    assert others.heard["n2"] == []
    others.deaf = set()
    await until(lambda: len(others.heard["n2"]) >= 4)
    assert others.heard["n2"] == [
        (path, relist, False) for path in (b"/d", b"/e") for relist in (False, True)
    ]
    tried = others.tried
    await pass_time(10 * RETRY_S)
    assert others.tried == tried and not others.announcer._tasks
    assert len(others.heard["n1"]) == 4, "once is enough"


async def test_who_is_out_of_the_cluster_is_not_told_any_more(others: Others) -> None:
    others.deaf = {"n2"}
    await others.announcer.announce({b"/d"})
    await others.tried_again()
    others.view = view_of("n0", "n1")
    await until(lambda: not others.announcer._tasks)
    assert not others.announcer._pending


@pytest.mark.parametrize("is_long", [False, True])
async def test_who_comes_back_is_told_what_it_missed(others: Others, is_long: bool) -> None:
    """It was cut off from the cluster's records, or hung, and its listings seem to be fresh."""
    others.announcer.on_view()
    others.deaf = {"n2"}
    await others.announcer.announce({b"/d"})
    await others.tried_again()  # by now a task waits to do so once more
    others.view = view_of("n0", "n1")
    others.announcer.on_view()
    await until(lambda: not others.announcer._tasks)
    await others.announcer.announce({b"/e"})
    others.deaf = set()
    if is_long:
        await pass_time(invalidation.AWAY_S_MAX + 1)
        await others.announcer.announce({b"/f"})
        assert not others.announcer._pending
    assert others.heard["n2"] == []
    others.view = view_of("n0", "n1", "n2")
    others.announcer.on_view()
    await until(lambda: not others.announcer._tasks)
    missed = [] if is_long else [b"/d", b"/e"]
    assert others.heard["n2"] == [(path, relist, False) for path in missed for relist in (False, True)]
    assert not others.announcer._pending


async def test_of_very_many_folders_it_says_what_they_have_in_common(others: Others) -> None:
    others.deaf = {"n2"}
    for number in range(DIRECTORIES_MAX + 1):
        await others.announcer.announce({b"/d/%d" % number})
    others.deaf = set()
    await until(lambda: others.heard["n2"])
    assert others.heard["n2"][0] == (b"/d", False, True)


async def test_who_can_not_be_told_is_waited_for_once(others: Others) -> None:
    """A silent node costs the time limit of a request each time, and a close may wait for all of it."""
    directories = {b"/d/%d" % number for number in range(5)}
    others.deaf = {"n2"}
    await others.announcer.announce(directories)
    assert others.asked.count("n2") == 1 and others.asked.count("n1") == 10
    others.deaf = set()
    await until(lambda: len(others.heard["n2"]) >= 10)
    assert {path for path, relist, _ in others.heard["n2"] if relist} == directories


async def test_what_fails_while_an_earlier_notice_is_on_its_way_is_repeated(
    others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory has changed since, and the node may have listed it before."""
    is_on_its_way, go_on = asyncio.Event(), asyncio.Event()

    async def send(
        path: bytes, *, relist: bool, below: bool = True, only: Collection[str] | None = None
    ) -> list[tuple[str, str]]:
        if relist and only is not None and "n1" not in only and not is_on_its_way.is_set():
            is_on_its_way.set()
            await go_on.wait()
        return await others.forget(path, relist=relist, below=below, only=only)

    others.deaf = {"n2"}
    await others.announcer.announce({b"/d"})
    monkeypatch.setattr(others.announcer, "_send", send)
    others.deaf = set()
    await is_on_its_way.wait()
    others.deaf = {"n2"}
    await others.announcer.announce({b"/d"})
    others.deaf = set()
    go_on.set()
    await until(lambda: len(others.heard["n2"]) >= 4)
    assert others.heard["n2"] == 2 * [(b"/d", False, False), (b"/d", True, False)]
