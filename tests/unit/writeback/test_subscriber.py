"""Which nodes a node asks for the version that another one's file became at the origin."""

from __future__ import annotations

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import PeerError
from headrace.base.model import Version
from headrace.cluster.embedded import EmbeddedRecords
from headrace.overlay.pending_version import PendingVersion
from headrace.ring.view import NodeInfo, next_view
from headrace.wire.peer_messages import ResolveVersion, VersionResolved
from headrace.writeback.coherence.subscriber import DirtyNamesSubscriber

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
