"""Drain a node: hand all that it owns to the other nodes of its cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from headrace.base.errors import HeadraceError, UsageError
from headrace.cluster.membership import Membership
from headrace.ring.view import NodeInfo
from headrace.wire.messages import JobState

log = logging.getLogger(__name__)

POLL_S = 0.25


class Handover(Protocol):
    """Hands the files of this node to their owners after a change of the ring."""

    @property
    def running(self) -> bool: ...

    @property
    def broke_off(self) -> bool: ...

    def check_all(self) -> None: ...

    def state(self, *, done: bool) -> JobState: ...


async def drain(me: str, membership: Membership, handover: Handover) -> AsyncIterator[JobState]:
    """Drain this node, and yield the states of its handover. At the end other nodes have everything that it owned,
    except for files that failed. Raise UsageError when no other node can take over, also if the last one leaves or
    drains meanwhile; then this node takes part again. Raise HeadraceError if the handover broke off, for a reason that
    is in the log; another drain begins it anew. me: the id of this node."""
    _check_others(me, membership)
    await membership.drain()
    try:
        while any(member.id == me for member in membership.current_view().ring.members):
            _check_others(me, membership)
            await asyncio.sleep(POLL_S)  # until this node's view shows it as draining
        if handover.broke_off:
            handover.check_all()
        while handover.running:
            yield handover.state(done=False)
            await asyncio.sleep(POLL_S)
        _check_others(me, membership)
    except UsageError:
        await _end_drain(membership)
        raise
    if handover.broke_off:
        raise HeadraceError(
            "node drain",
            why="the handover of its files broke off",
            hint="see the node's log, and drain it again",
        )
    yield handover.state(done=True)


async def _end_drain(membership: Membership) -> None:
    """Take part again: of two nodes that are drained at the same time, neither could take over."""
    try:
        await membership.end_drain()
    except HeadraceError as error:
        log.warning("this node still counts as draining error=%s", error)


def _check_others(me: str, membership: Membership) -> None:
    nodes: Iterable[NodeInfo] = membership.current_view().nodes.values()
    if all(node.draining or node.id == me for node in nodes):
        raise UsageError("node drain", why="the cluster has no other node that could take over")
