"""Folders that changed, for nodes that can't be told at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection

import pytest

from headrace.ring.view import ClusterView, NodeInfo, next_view
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until
from headrace.writeback.coherence.invalidation import DIRECTORIES_MAX, RETRY_S, InvalidationBroadcaster

pytestmark = pytest.mark.timeout(60)


def view_of(*ids: str) -> ClusterView:
    nodes = {id: NodeInfo(id, "", "", "", 1 << 30, "", 3) for id in ids}
    return next_view(None, nodes, epoch=1)


class Others:
    """n1 and n2. deaf: which of them can't be told. heard: what each was told, in order."""

    def __init__(self) -> None:
        self.deaf: set[str] = set()
        self.heard: dict[str, list[tuple[bytes, bool, bool]]] = {"n1": [], "n2": []}
        self.tried = 0
        self.view = view_of("n0", "n1", "n2")
        self.announcer = InvalidationBroadcaster(self.forget, lambda: self.view)

    async def forget(
        self, path: bytes, *, relist: bool, below: bool = True, only: Collection[str] | None = None
    ) -> list[tuple[str, str]]:
        await asyncio.sleep(0)
        self.tried += 1
        asked = [id for id in self.heard if id in self.view.nodes and (only is None or id in only)]
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


async def test_of_very_many_folders_it_says_what_they_have_in_common(others: Others) -> None:
    others.deaf = {"n2"}
    for number in range(DIRECTORIES_MAX + 1):
        await others.announcer.announce({b"/d/%d" % number})
    others.deaf = set()
    await until(lambda: others.heard["n2"])
    assert others.heard["n2"][0] == (b"/d", False, True)
