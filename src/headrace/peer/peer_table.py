"""Keep a record of each peer: its idle connections, its breaker, its counts and latencies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Any

from headrace.base.errors import PeerError
from headrace.peer.connection_pool import IDLE_S_MAX, Peer
from headrace.peer.latency import Latencies
from headrace.ring.view import NodeInfo

SWEEP_S = 15.0
FORGET_S = 600.0
"""Seconds for which the record of a node that left the cluster is kept: most nodes that leave come back soon."""


class PeerTable:
    """The peers that requests were sent to. Used on one event loop."""

    def __init__(self) -> None:
        self.latencies = Latencies()
        self._peers: dict[str, Peer] = {}
        self._absent_since_s: dict[str, float] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self.is_closed = False

    def peer(self, node: NodeInfo) -> Peer:
        """Return the record of a node. A node that restarted gets a new one, with a closed breaker. Raise PeerError
        when the table is closed."""
        if self.is_closed:
            raise PeerError(f"node {node.id} at {node.address}", why="this node stops")
        old_peer = self._peers.get(node.id)
        if old_peer is not None and (old_peer.instance, old_peer.address) == (node.instance, node.address):
            return old_peer
        peer = Peer(node.id, node.address, node.instance)
        if old_peer is not None:
            old_peer.forget()
            self.latencies.forget(node.id)
            peer.requests, peer.errors = old_peer.requests, old_peer.errors
            peer.bytes_received, peer.files_received = old_peer.bytes_received, old_peer.files_received
        self._peers[node.id] = peer
        return peer

    def forget_absent(self, members: Collection[str], *, now_s: float) -> list[str]:
        """Forget the nodes that have been out of the cluster for FORGET_S, and return their ids. members: the nodes
        that are in it; call this when they change."""
        absent = [id for id in self._peers if id not in members]
        self._absent_since_s = {id: self._absent_since_s.get(id, now_s) for id in absent}
        gone = [id for id, since_s in self._absent_since_s.items() if now_s - since_s >= FORGET_S]
        for id in gone:
            del self._absent_since_s[id]
            self._peers.pop(id).forget()
            self.latencies.forget(id)
        return gone

    def statistics(self) -> dict[str, Any]:
        """Return the statistics by node. Latencies are in seconds over the last minute, None without a sample."""
        now = time.monotonic()
        return {
            peer.id: {
                "address": peer.address,
                "requests": peer.requests,
                "files": peer.files_received,
                "bytes": peer.bytes_received,
                "errors": peer.errors,
                "trouble": peer.last_error,
                "latency_s_p50": self.latencies.over_all(peer.id, share=0.5, now_s=now),
                "latency_s_p99": self.latencies.over_all(peer.id, share=0.99, now_s=now),
                "breaker": peer.breaker.state(now),
                "slow": self.latencies.is_slow(peer.id, now_s=now),
                "links_idle": len(peer.idle),
            }
            for peer in self._peers.values()
        }

    def sweep_later(self) -> None:
        """Close connections that stay idle for long."""
        if self._sweep is None and not self.is_closed:
            self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep_idle)

    def close(self) -> None:
        self.is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for peer in self._peers.values():
            peer.close_idle()

    def _sweep_idle(self) -> None:
        self._sweep = None
        for peer in self._peers.values():
            peer.close_idle(time.monotonic() - IDLE_S_MAX)
        if any(peer.idle for peer in self._peers.values()):
            self.sweep_later()
