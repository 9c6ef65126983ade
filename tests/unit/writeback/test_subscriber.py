"""A node asks others for the version that a writer's file became at the origin, and asks again for pending names."""

from __future__ import annotations

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import PeerError
from headrace.base.model import Version
from headrace.base.tasks import OwnedTasks
from headrace.cluster.embedded import EmbeddedRecords
from headrace.overlay.pending_version import PendingVersion
from headrace.ring.view import NodeInfo, next_view
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until
from headrace.wire.peer_messages import ResolveVersion, VersionResolved
from headrace.writeback.coherence import subscriber
from headrace.writeback.coherence.dirty_scope import DirtyScope
from headrace.writeback.coherence.subscriber import DirtyNamesSubscriber
from tests.unit.writeback.publisher_fixture import Paging, PublisherFixture, elsewhere_of, view_of

pytestmark = pytest.mark.timeout(60)


class Resolving:
    """Peers that resolve versions. answers: what each node answers; an error is raised. silent: nodes whose calls
    failed lately. asked: nodes that got a request, in order."""

    def __init__(self, answers: dict[str, Version | PeerError | None], silent: str = "") -> None:
        self.answers = answers
        self.silent = silent
        self.asked: list[str] = []

    def usable(self, node: NodeInfo) -> bool:
        return node.id != self.silent

    async def resolve_version(
        self, node: NodeInfo, request: ResolveVersion, deadline: Deadline
    ) -> VersionResolved:
        self.asked.append(node.id)
        answer = self.answers[node.id]
        if isinstance(answer, PeerError):
            raise answer
        return VersionResolved(answer)


AWAY, AT_ORIGIN = PeerError("node", why="the test says so"), Version(1, 2, '"3"')


async def resolved(peers: Resolving) -> Version | PeerError | None:
    """Return what a node gets that asks the members among the writer n0 and its replicas n1, n2."""
    records = EmbeddedRecords()
    nodes = {id: NodeInfo(id, "", "", "", 1 << 30, "", 3) for id in ("n3", *peers.answers)}
    view = next_view(None, nodes, epoch=1)
    elsewhere = DirtyNamesSubscriber("n3", records, peers, view=lambda: view)  # type: ignore[arg-type]
    await elsewhere.start()
    await records.put("copies/n0", b'["n1","n2"]')
    try:
        return await elsewhere.resolve_version(b"/d/x", Version(1, 2, PendingVersion("n0", 5, 7).token))
    except PeerError as error:
        return error


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ({"n0": AT_ORIGIN, "n1": AWAY, "n2": AWAY}, ["n0"]),
        ({"n0": AWAY, "n1": AT_ORIGIN, "n2": None}, ["n0", "n1"]),
        ({"n0": None, "n1": AWAY, "n2": AT_ORIGIN}, ["n0", "n1", "n2"]),
        ({"n1": None, "n2": AT_ORIGIN}, ["n1", "n2"]),
        ({"n1": AWAY, "n2": AT_ORIGIN}, ["n1", "n2"]),
    ],
)
async def test_a_replica_resolves_a_version_that_it_persisted(
    answers: dict[str, Version | PeerError | None], asked: list[str]
) -> None:
    peers = Resolving(answers)
    assert await resolved(peers) == AT_ORIGIN
    assert peers.asked == asked


@pytest.mark.parametrize(
    "answers", [{"n0": None, "n1": AWAY, "n2": None}, {"n0": None}, {"n1": None, "n2": None}, {}]
)
async def test_a_version_is_lost_where_its_writer_says_so_or_left_and_no_replica_knows_it(
    answers: dict[str, Version | PeerError | None],
) -> None:
    assert await resolved(Resolving(answers)) is None


@pytest.mark.parametrize("silent", ["n0", "n1", ""])
async def test_a_version_is_not_lost_while_a_node_that_may_know_it_does_not_answer(silent: str) -> None:
    """A file without a base becomes a conflict copy."""
    answers: dict[str, Version | PeerError | None] = {"n0": AWAY, "n1": None, "n2": None}
    if silent == "n1":
        del answers["n0"]
    assert isinstance(await resolved(Resolving(answers, silent)), PeerError)


async def test_a_directory_is_refreshed_again_until_its_writer_answers() -> None:
    """The writer's notice of a change was delivered, and does not come again."""
    here = PublisherFixture()
    here.peers = peers = Paging(here)
    here.registry.start()
    here.write(b"/d/a")
    await here.registry.enter([b"/d/a"])
    elsewhere = elsewhere_of(here, "n1", "n0", "n1")
    await elsewhere.start()
    shown: list[list[bytes]] = []

    async def refresh() -> None:
        shown.append(sorted(await elsewhere.rows(b"/d")))

    async with OwnedTasks() as tasks:

        def on_changed(directory: bytes, below: bool) -> None:
            tasks.start(refresh())

        elsewhere.changed.add(on_changed)
        await refresh()
        here.write(b"/d/b")
        peers.pages_left = 0
        await refresh()
        with pytest.raises(PeerError):
            elsewhere.check_answered(b"/d")
        peers.is_usable = False
        await pass_time(3 * subscriber.RETRY_S)
        assert shown == [[b"a"], [b"a"]]
        peers.is_usable = True
        await until(lambda: len(shown) > 2)
        assert shown[2] == [b"a"]
        peers.pages_left = 100
        await until(lambda: shown[-1] == [b"a", b"b"])
        elsewhere.check_answered(b"/d")
        count = len(shown)
        await pass_time(3 * subscriber.RETRY_S)
        assert len(shown) == count
    await elsewhere.stop()
    await here.registry.stop()


async def test_nobody_waits_for_the_answer_of_a_writer_that_left_or_has_nothing_more() -> None:
    here = PublisherFixture()
    here.peers = peers = Paging(here)
    members = ["n0", "n1", "n2"]
    elsewhere = DirtyNamesSubscriber(
        "n1",
        here.records,
        peers,  # type: ignore[arg-type]
        view=lambda: view_of(*members),
    )
    await elsewhere.start()
    await here.records.put("copies/n0", b'["n2"]')
    await here.records.put("written/n0", DirtyScope.of({b"/d"}, set()).encode())
    peers.pages_left = 0
    assert await elsewhere.rows(b"/d") == {}
    with pytest.raises(PeerError):
        elsewhere.check_answered(b"/d")
    members.remove("n0")
    elsewhere.check_answered(b"/d")
    members.append("n0")
    await here.records.delete("written/n0")
    elsewhere.check_answered(b"/d")
    await pass_time(2 * subscriber.RETRY_S)
    assert not elsewhere._unanswered
    await elsewhere.stop()
