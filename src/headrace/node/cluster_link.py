"""Connect this node with its cluster: the other members, the records in etcd, and the client of the peers."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError
from headrace.base.listeners import Listeners
from headrace.cluster.cluster import access_of, parse_cluster
from headrace.cluster.etcd import EtcdRecords
from headrace.cluster.kept_records import KeptRecords
from headrace.cluster.last_view import LastView
from headrace.cluster.membership import Membership
from headrace.config.schema import Config
from headrace.identity.seals import Seals
from headrace.node.copies import CopyRules
from headrace.node.dirty_data import DirtyData, build_dirty_data
from headrace.node.member import Member
from headrace.peer.client import PeerClient
from headrace.policy.current import CurrentPolicy
from headrace.ring.view import ClusterView, NodeInfo
from headrace.wire.peer_messages import PEER_PROTOCOL, PeerWelcome

log = logging.getLogger(__name__)

PING_LIMIT_S = 2.0


class ClusterLink:
    """Hold this node's connections to its cluster, and the data that it shares with other nodes.

    on_view: called with each new view, on the loop. dirty: the files that a node wrote and has not persisted. copies:
    the number of nodes that own each segment.
    """

    def __init__(
        self,
        member: Member,
        records: EtcdRecords,
        peers: PeerClient,
        *,
        membership: Membership,
        on_view: Listeners[[ClusterView]],
        dirty: DirtyData,
        copies: CopyRules,
    ) -> None:
        self.member = member
        self.info = member.info
        self.records = records
        self.peers = peers
        self.membership = membership
        self.view = membership.current_view
        self.on_view = on_view
        self.dirty = dirty
        self.copies = copies

    def owns(self, path: bytes, segment: int) -> bool:
        """Return whether this node is among the owners of a segment."""
        owners = self.copies.ownership.owners(self.view(), path, segment)
        return any(owner.id == self.info.id for owner in owners)

    def is_primary(self, path: bytes) -> bool:
        """Return whether this node is the primary owner of a file's first segment."""
        return [owner.id for owner in self.view().owners(path)] == [self.info.id]

    def welcome(self) -> PeerWelcome:
        """Return the description of this node for a peer that connects."""
        return PeerWelcome(
            protocol=PEER_PROTOCOL, node=self.info.id, instance=self.info.instance, epoch=self.view().epoch
        )

    async def stop(self) -> None:
        """Leave the cluster and close the connections to other nodes."""
        await self.membership.stop()
        self.peers.close()
        self.dirty.threads.shutdown(wait=False)

    def status(self) -> dict[str, Any]:
        view = self.view()
        return {
            "name": self.member.cluster,
            "node": self.info.id,
            "address": self.info.address,
            "replicas": self.copies.configured,
            "epoch": view.epoch,
            "members": [
                {
                    "id": node.id,
                    "address": node.address,
                    "zone": node.zone,
                    "capacity_bytes": node.capacity_bytes,
                    "version": node.version,
                    "draining": node.draining,
                    "api": node.api,
                }
                for node in sorted(view.nodes.values(), key=lambda node: node.id)
            ],
            "membership": self.membership.status(),
            "peers": self.peers.table.statistics(),
        }


def build_link(config: Config, policy: CurrentPolicy, *, capacity_bytes: int) -> ClusterLink:
    """Build the link to the configured cluster; nothing is sent yet. capacity_bytes: of this node's cache. Raise
    UsageError."""
    endpoints, name = parse_cluster(config.cluster)
    member = Member.of(config, name, endpoints[0], capacity_bytes=capacity_bytes)
    peers = PeerClient(member.info.id, name, tls=member.tls)
    cache_folder = config.cache[0].folder
    records = EtcdRecords(
        endpoints,
        prefix=f"/headrace/{name}/",
        lease_s=config.lease_s,
        access=access_of(config),
        seals=Seals(member.tls) if member.tls is not None else None,
        kept=KeptRecords(os.path.join(cache_folder, "records.db")),
    )
    on_view: Listeners[[ClusterView]] = Listeners()
    on_view.add(_log_members)
    on_view.add(peers.on_view)
    members_path = os.path.join(cache_folder, "members.json")
    membership = Membership(
        records,
        member.info,
        last=LastView(members_path, cluster=config.cluster, node=member.info.id),
        on_view=on_view,
        is_alive=_is_alive_by(peers),
    )
    dirty = build_dirty_data(config, member.info.id, records, peers, view=membership.current_view)
    return ClusterLink(
        *(member, records, peers),
        membership=membership,
        on_view=on_view,
        dirty=dirty,
        copies=CopyRules(policy, config.replicas),
    )


def _log_members(view: ClusterView) -> None:
    log.info("the members of the cluster changed epoch=%d nodes=%s", view.epoch, ",".join(sorted(view.nodes)))


def _is_alive_by(peers: PeerClient) -> Callable[[NodeInfo], Awaitable[bool]]:
    async def is_alive(node: NodeInfo) -> bool:
        try:
            welcome = await peers.ping_any(node.address, Deadline.after(PING_LIMIT_S), node=node.id)
        except HeadraceError:
            return False
        return bool(welcome.instance == node.instance)

    return is_alive
