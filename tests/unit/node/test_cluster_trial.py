"""A policy is tried on all nodes: their parts are summed, faults of any count, and those that are silent are named."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import DeadlineExceededError, PeerError
from headrace.node.cluster_trial import ClusterTrial, OtherTrials
from headrace.policy.document import PolicyFaultsError, parse_policy
from headrace.policy.limits import TRIAL_LIMIT_S
from headrace.ring.view import ClusterView, NodeInfo, next_view
from headrace.testing.virtual_loop import pass_time
from headrace.wire import peer_frame
from headrace.wire.frame import HEADER_BYTES, encode
from headrace.wire.peer_messages import PeerWelcome, PinnedTenant, TrialAnswer, TrialRow, TryPolicy
from headrace.wire.policy_messages import PolicyTry

POLICY = """
[[rule]]
match = ["/hot/**"]
ttl = "2d"
tier = ["hdd"]
[tenant.vision]
paths = ["/hot/**"]
limit = "1MiB"
"""


class TrialOfNode:
    """A node that answers as it is told. hangs: it never does. never_ends: it answers pings only."""

    def __init__(self, answer: TrialAnswer, *, hangs: bool = False, never_ends: bool = False) -> None:
        self.result = answer
        self.hangs = hangs
        self.never_ends = never_ends
        self.asked: list[TryPolicy] = []

    async def answer(self, request: TryPolicy) -> TrialAnswer:
        self.asked.append(request)
        if self.never_ends:
            await asyncio.Event().wait()
        return self.result


class TrialPeers:
    """The other nodes of a cluster, by their ids."""

    def __init__(self, nodes: dict[str, TrialOfNode]) -> None:
        self.nodes = nodes

    async def ping(self, node: NodeInfo, deadline: Deadline) -> PeerWelcome:
        if self.nodes[node.id].hangs:
            await pass_time(2)
            raise PeerError(f"node {node.id}", why="it does not answer within 2 s")
        return PeerWelcome(4, node.id, "", 1)

    async def try_policy(self, node: NodeInfo, request: TryPolicy, deadline: Deadline) -> TrialAnswer:
        return await self.nodes[node.id].answer(request)


def row(files: int, path: bytes, copies: int = 0) -> TrialRow:
    return TrialRow("ttl", "-", "2d", files, files * 10, copies, path)


def trial_of(**nodes: TrialOfNode) -> ClusterTrial:
    """Return the trial of node a."""
    infos = {id: NodeInfo(id, "", "", "", 1 << 30, "", 4) for id in nodes}
    view: ClusterView = next_view(None, infos, epoch=1)
    others: Any = TrialPeers(nodes)
    own: Any = nodes["a"]
    return ClusterTrial(own, OtherTrials("a", others, lambda: view))


def hdd(*rows: TrialRow, pinned: tuple[PinnedTenant, ...] = ()) -> TrialAnswer:
    return TrialAnswer(["hdd"], list(pinned), list(rows))


async def test_parts_of_all_nodes_are_summed() -> None:
    nodes = {
        "a": TrialOfNode(hdd(row(1, b"/hot/\xff", 2))),
        "b": TrialOfNode(hdd(row(4, b"/hot/b", -1))),
        "c": TrialOfNode(hdd()),
    }
    outcomes, unanswered = await trial_of(**nodes).outcomes(POLICY, parse_policy(POLICY), limit_s=25)
    (outcome,) = outcomes
    assert (outcome.files, outcome.bytes, outcome.copies, outcome.example) == (5, 50, 1, "/hot/\\xff")
    assert unanswered == {}
    assert all(node.asked == [TryPolicy(POLICY, limit_s=22)] for node in nodes.values())


async def test_nodes_that_hang_are_named_and_delay_for_two_seconds() -> None:
    nodes = {"a": TrialOfNode(hdd(row(1, b"/hot/a"))), "b": TrialOfNode(hdd(), hangs=True)}
    task = asyncio.ensure_future(trial_of(**nodes).outcomes(POLICY, parse_policy(POLICY), limit_s=25))
    await pass_time(2.1)
    assert task.done()
    outcomes, unanswered = task.result()
    assert outcomes[0].files == 1
    assert unanswered.keys() == {"b"} and "it does not answer" in unanswered["b"]


@pytest.mark.parametrize("silent", ["a", "b"])
async def test_a_node_that_never_answers_is_named_in_time(silent: str) -> None:
    """a: the node that asks."""
    nodes = {id: TrialOfNode(hdd(row(1, b"/hot/a")), never_ends=id == silent) for id in ("a", "b", "c")}
    began_s = monotonic_s()
    outcomes, unanswered = await trial_of(**nodes).outcomes(
        POLICY, parse_policy(POLICY), limit_s=TRIAL_LIMIT_S
    )
    assert outcomes[0].files == 2
    assert unanswered == {silent: "it did not answer within 25 s"}
    assert monotonic_s() - began_s <= 25.01
    began_s = monotonic_s()
    unanswered = await trial_of(**nodes).check(POLICY, parse_policy(POLICY))
    assert unanswered == {silent: "it did not answer within 15 s"}
    assert monotonic_s() - began_s <= 15.01


async def test_many_nodes_that_never_answer_cost_the_time_of_one() -> None:
    nodes = {f"n{number}": TrialOfNode(hdd(), never_ends=True) for number in range(100)}
    nodes["a"] = TrialOfNode(hdd())
    began_s = monotonic_s()
    unanswered = await trial_of(**nodes).check(POLICY, parse_policy(POLICY))
    assert unanswered.keys() == nodes.keys() - {"a"}
    assert monotonic_s() - began_s <= 15.01


async def test_a_trial_without_any_answer_is_an_error() -> None:
    nodes = {id: TrialOfNode(hdd(), never_ends=True) for id in ("a", "b")}
    with pytest.raises(DeadlineExceededError, match="it did not answer within 25 s"):
        await trial_of(**nodes).outcomes(POLICY, parse_policy(POLICY), limit_s=TRIAL_LIMIT_S)
    alone: Any = nodes["a"]
    assert await ClusterTrial(alone, None).check(POLICY, parse_policy(POLICY)) == {
        "this node": "it did not answer within 15 s"
    }


@pytest.mark.parametrize("limit_s", [0, -1, 601, 1 << 70, float("nan"), float("inf"), "25"])
def test_limits_beyond_the_bounds_are_refused(limit_s: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"type": "TryPolicy", "text": "", "limit_s": limit_s}, TryPolicy)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"type": "PolicyTry", "text": "", "limit_s": limit_s}, PolicyTry)


async def test_a_limit_below_what_is_pinned_on_any_node_is_refused() -> None:
    pinned = hdd(pinned=(PinnedTenant("vision", 1 << 20, 2 << 20), PinnedTenant("unknown", 1, 2)))
    nodes = {"a": TrialOfNode(hdd()), "b": TrialOfNode(pinned)}
    with pytest.raises(PolicyFaultsError) as error:
        await trial_of(**nodes).check(POLICY, parse_policy(POLICY))
    (fault,) = error.value.faults
    assert str(fault) == "line 6: limit: 1.00 MiB on node b, where 2.00 MiB are pinned"
    assert nodes["b"].asked == [TryPolicy(POLICY, outcomes=False, limit_s=12)]


async def test_a_tier_must_be_on_one_node_only() -> None:
    nvme = TrialAnswer(["nvme"])
    nodes = {"a": TrialOfNode(nvme), "b": TrialOfNode(hdd())}
    assert await trial_of(**nodes).check(POLICY, parse_policy(POLICY)) == {}
    nodes = {"a": TrialOfNode(nvme), "b": TrialOfNode(nvme)}
    with pytest.raises(PolicyFaultsError, match="tier: no volume of any node is of hdd, they have nvme"):
        await trial_of(**nodes).check(POLICY, parse_policy(POLICY))
    nodes["b"].hangs = True  # it may have one
    assert (await trial_of(**nodes).check(POLICY, parse_policy(POLICY))).keys() == {"b"}


@pytest.mark.parametrize(
    "answer",
    [
        TrialAnswer(["x" * 301]),
        TrialAnswer(["nvme"] * 17),
        hdd(*[row(1, b"/a")] * 1001),
        hdd(pinned=(PinnedTenant("t", -1, 0),)),
        hdd(msgspec.structs.replace(row(1, b"/a"), files=1 << 63)),
    ],
)
def test_answers_beyond_the_bounds_are_refused(answer: TrialAnswer) -> None:
    with pytest.raises(Exception, match="answer"):
        peer_frame.decode_answer(bytes(encode(answer))[HEADER_BYTES:])


@pytest.mark.parametrize("path", [b"", b"/a/../b", b"a"])
def test_examples_that_are_no_paths_are_refused(path: bytes) -> None:
    raw = {"type": "TrialAnswer", "tiers": [], "rows": [["ttl", "-", "1d", 1, 1, 0, path]]}
    with pytest.raises(Exception, match="answer"):
        peer_frame.decode_answer(msgspec.msgpack.encode(raw))
