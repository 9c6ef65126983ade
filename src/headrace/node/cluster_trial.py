"""Try a policy on all nodes of a cluster: what it would change, and what forbids it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.base.deadline import Deadline
from headrace.base.errors import DeadlineExceededError, HeadraceError
from headrace.base.printable import printable
from headrace.base.sizes import show_size
from headrace.base.tasks import OwnedTasks
from headrace.node.policies import Policies
from headrace.node.policy_trial import ClusterCopies, PolicyTrial
from headrace.policy.document import PolicyDocument, PolicyFault, PolicyFaultsError
from headrace.store.store import Store
from headrace.wire.peer_messages import PinnedTenant, TrialAnswer, TrialRow, TryPolicy
from headrace.wire.policy_messages import PolicyOutcome

if TYPE_CHECKING:  # a node without a cluster does not load them
    from headrace.node.cluster_link import ClusterLink
    from headrace.peer.client import PeerClient
    from headrace.ring.view import ClusterView, NodeInfo

PING_LIMIT_S = 2.0
"""Seconds in which a node must show that it is alive: one that hangs is named instead of waited for."""
CHECK_LIMIT_S = 15.0
"""Seconds for the check on all nodes before a policy is set. Writing its record to etcd comes on top, and many clients
of the REST API wait for 30."""
ANSWER_MARGIN_S = 3.0
"""Seconds of a limit that are left for the ping before a walk, and for the answer after it."""
REASON_MAX = 300
ALONE = "this node"


@dataclass(frozen=True, slots=True)
class TrialPart:
    """Holds the answers of nodes, by their ids. unanswered: why the others did not."""

    answers: dict[str, TrialAnswer] = field(default_factory=dict)
    unanswered: dict[str, str] = field(default_factory=dict)


class OtherTrials:
    """Asks the other nodes of a cluster. me: the id of this node."""

    def __init__(self, me: str, peers: PeerClient, view: Callable[[], ClusterView]) -> None:
        self.me = me
        self._peers = peers
        self._view = view

    def ask(self, request: TryPolicy, deadline: Deadline) -> dict[str, Awaitable[TrialAnswer]]:
        """Return the answers of all of them, by their ids. They raise HeadraceErrors; a node that hangs is known
        within two seconds."""
        nodes = [node for node in self._view().nodes.values() if node.id != self.me]
        return {node.id: self._answer_of(node, request, deadline) for node in nodes}

    async def _answer_of(self, node: NodeInfo, request: TryPolicy, deadline: Deadline) -> TrialAnswer:
        await self._peers.ping(node, Deadline.after(min(PING_LIMIT_S, deadline.left_s())))
        return await self._peers.try_policy(node, request, deadline)


class ClusterTrial:
    """Says what a policy would change on all nodes. own: the trial of this node. others: None without a cluster."""

    def __init__(self, own: PolicyTrial, others: OtherTrials | None) -> None:
        self.own = own
        self._others = others

    async def check(self, text: str, document: PolicyDocument) -> dict[str, str]:
        """Raise PolicyFaultsError for tiers that no node has, and for limits below what is pinned on a node. Return the
        nodes that did not answer within CHECK_LIMIT_S, and why."""
        part = await self._ask(text, document, CHECK_LIMIT_S, outcomes=False)
        return part.unanswered

    async def outcomes(
        self, text: str, document: PolicyDocument, *, limit_s: float
    ) -> tuple[list[PolicyOutcome], dict[str, str]]:
        """Return the changes on all nodes together, by effect, and the nodes that did not answer within the limit.
        Raises as `check`, and DeadlineExceededError if no node did."""
        part = await self._ask(text, document, limit_s, outcomes=True)
        if not part.answers:
            raise DeadlineExceededError("the trial of a policy", why="; ".join(part.unanswered.values()))
        return summed(part.answers), part.unanswered

    async def _ask(self, text: str, document: PolicyDocument, limit_s: float, *, outcomes: bool) -> TrialPart:
        """Ask all nodes at once. One that fails, or does not answer within the limit, is named."""
        deadline = Deadline.after(limit_s)
        request = TryPolicy(text, outcomes, max(1, int(limit_s - ANSWER_MARGIN_S)))
        others = {} if self._others is None else self._others.ask(request, deadline)
        me = ALONE if self._others is None else self._others.me
        part = await _gathered({me: self.own.answer(request), **others}, deadline)
        faults = _pinned_above_limits(document, part.answers)
        if not part.unanswered:  # one that does not answer may have the tier
            faults += _without_a_place(document, part.answers)
        if faults:
            raise PolicyFaultsError(faults)
        return part


async def _gathered(works: Mapping[str, Awaitable[TrialAnswer]], deadline: Deadline) -> TrialPart:
    """Return the answers that are there at the deadline, and why the others are not."""
    limit_s = deadline.left_s()
    part = TrialPart()
    async with OwnedTasks(HeadraceError) as tasks:
        started = {id: tasks.start(work) for id, work in works.items()}
        await asyncio.wait(started.values(), timeout=limit_s)
        for id, task in started.items():
            if not task.done():
                part.unanswered[id] = f"it did not answer within {limit_s:.0f} s"
            elif isinstance(error := task.exception(), HeadraceError):
                part.unanswered[id] = printable(str(error))[:REASON_MAX]
            else:
                part.answers[id] = task.result()
    return part


def summed(answers: Mapping[str, TrialAnswer]) -> list[PolicyOutcome]:
    """Return the sums of the changes of all nodes, by effect and values."""
    sums: dict[tuple[str, str, str], TrialRow] = {}
    for answer in answers.values():
        for row in answer.rows:
            change = (row.effect, row.before, row.after)
            before = sums.get(change)
            sums[change] = row if before is None else _added(before, row)
    return [
        PolicyOutcome(
            *change,
            row.files,
            row.size_bytes,
            printable(row.example.decode(errors="surrogateescape")),
            row.copies,
        )
        for change, row in sorted(sums.items())
    ]


def _added(row: TrialRow, other: TrialRow) -> TrialRow:
    return TrialRow(
        *(row.effect, row.before, row.after),
        row.files + other.files,
        row.size_bytes + other.size_bytes,
        row.copies + other.copies,
        row.example,
    )


def _pinned_above_limits(document: PolicyDocument, answers: Mapping[str, TrialAnswer]) -> list[PolicyFault]:
    """Return a fault for each tenant of which more is pinned on a node than its limit there."""
    faults = []
    for node, answer in answers.items():
        for pinned in answer.pinned:
            if pinned.name in document.tenants:
                faults.append(PolicyFault(document.tenants[pinned.name].line, _pinned_text(node, pinned)))
    return faults


def _pinned_text(node: str, pinned: PinnedTenant) -> str:
    where = ALONE if node == ALONE else f"node {node}"
    return f"limit: {show_size(pinned.limit_bytes)} on {where}, where {show_size(pinned.pinned_bytes)} are pinned"


def _without_a_place(document: PolicyDocument, answers: Mapping[str, TrialAnswer]) -> list[PolicyFault]:
    """Return a fault for each rule that names only tiers that no volume of any node has."""
    present = dict.fromkeys(tier for answer in answers.values() for tier in answer.tiers)
    nodes = "this node is" if len(answers) == 1 else "any node is"
    have = "it has" if len(answers) == 1 else "they have"
    return [
        PolicyFault(
            rule.line,
            f"tier: no volume of {nodes} of {' or '.join(tiers)}, {have} {printable(' and '.join(present))}",
        )
        for rule in document.rules
        if (tiers := rule.effects.get("tiers")) and not set(tiers) & present.keys()
    ]


def build_trial(store: Store, policies: Policies, replicas: int, link: ClusterLink | None) -> ClusterTrial:
    """Build the trial of a node. replicas: copies without a rule. link: None without a cluster."""
    parts = (store, policies.current, policies.capacity)
    if link is None:
        return ClusterTrial(PolicyTrial(*parts, ClusterCopies()), None)
    copies = ClusterCopies(replicas, lambda: policies.capacity.members or 1, link.is_primary)
    return ClusterTrial(PolicyTrial(*parts, copies), OtherTrials(link.info.id, link.peers, link.view))
