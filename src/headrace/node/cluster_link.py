"""Connect this node with its cluster: its identity, the other members, its peer server and client."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace import __version__
from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, UsageError
from headrace.base.model import Version
from headrace.base.namespace_path import check_node_id
from headrace.cluster.cluster import access_of, parse_cluster
from headrace.cluster.etcd import EtcdRecords
from headrace.cluster.kept_records import KeptRecords
from headrace.cluster.last_view import LastView
from headrace.cluster.membership import Membership
from headrace.config.schema import Config
from headrace.dataplane.cluster_source import ClusterSourceFactory, PendingFiles
from headrace.dataplane.concurrency import Gate, Window
from headrace.dataplane.peer_reader import PeerReader
from headrace.dataplane.peer_service import NodePeerService
from headrace.entry.peer.server import PeerServer
from headrace.http.address import is_loopback
from headrace.identity.mutual import MutualTls, TlsFiles
from headrace.identity.names import NODE
from headrace.identity.seals import Seals
from headrace.namespace.owner_listing import OwnerListingClient
from headrace.overlay.pending_version import PendingVersion
from headrace.overlay.upper import Upper
from headrace.peer.client import PeerClient
from headrace.ring.view import ClusterView, NodeInfo, alone
from headrace.wire.peer_messages import PEER_PROTOCOL, PeerWelcome
from headrace.writeback.coherence.invalidation import InvalidationBroadcaster
from headrace.writeback.coherence.subscriber import DirtyNamesSubscriber
from headrace.writeback.replication.dirty_files import DirtyFiles
from headrace.writeback.replication.replica_host import ReplicaHost

log = logging.getLogger(__name__)

PORT = 7412
PEER_READS_MAX = 256
"""Reads at once from all peers. The peers' servers and the network limit them in practice; the gate limits the
bytes."""
PING_LIMIT_S = 2.0
FORGET_LIMIT_S = 10.0
LISTING_LIMIT_FACTOR = 10
KEEP_THREADS = 8


class ClusterLink:
    """Holds this node's connections to its cluster, and what it shares with the other nodes.

    capacity_bytes: of this node's cache. keeper: the replicas of other nodes' dirty files. files: the dirty files of
    this node and the replicas, for readers on other nodes. elsewhere: the pending names of the other nodes.
    """

    def __init__(self, config: Config, *, capacity_bytes: int) -> None:
        self._config = config
        self.endpoints, self.name = parse_cluster(config.cluster)
        self._host, self._port = listen_address(config, self.endpoints[0])
        self._tls = node_tls(config, self.name)
        self.info = NodeInfo(
            id=node_id_of(config, self._tls),
            instance=secrets.token_hex(8),
            address=f"{self._host}:{self._port}",
            zone=config.zone,
            capacity_bytes=capacity_bytes,
            version=__version__,
            protocol=PEER_PROTOCOL,
            api=api_url(config, self._host),
        )
        self.peers = PeerClient(self.info.id, self.name, tls=self._tls)
        cache_folder = config.cache[0].folder
        self.records = EtcdRecords(
            self.endpoints,
            prefix=f"/headrace/{self.name}/",
            lease_s=config.lease_s,
            access=access_of(config),
            seals=Seals(self._tls) if self._tls is not None else None,
            kept=KeptRecords(os.path.join(cache_folder, "records.db")),
        )
        self._on_view: Callable[[ClusterView], None] = lambda _: None
        self._alone = alone(self.info)
        members_path = os.path.join(cache_folder, "members.json")
        self.membership = Membership(
            self.records,
            self.info,
            last=LastView(members_path, cluster=config.cluster, node=self.info.id),
            on_view=self._on_new_view,
            is_alive=self._is_alive,
        )
        self._server: PeerServer | None = None
        self.threads = ThreadPoolExecutor(KEEP_THREADS, thread_name_prefix="keep")
        self.keeper = ReplicaHost(
            self.info.id,
            config.copies_folder,
            self.peers,
            self.threads,
            view=self.view,
            is_durable=config.durable_puts,
        )
        self.files = DirtyFiles(
            self.info.id,
            self.threads,
            locate=Upper(config.upper_folder).at,
            folder_of=self.keeper.folder_of,
        )
        self.elsewhere = DirtyNamesSubscriber(
            self.info.id,
            self.records,
            self.peers,
            view=self.view,
            mirrored=self.files.mirrored,
        )
        self.announcer = InvalidationBroadcaster(self.forget, self.view)

    def view(self) -> ClusterView:
        """Return the last known view; before the first one, a view of this node alone."""
        return self.membership.view or self._alone

    def sources(self, gate: Gate) -> ClusterSourceFactory:
        config = self._config
        window = Window(maximum=PEER_READS_MAX, start=PEER_READS_MAX)
        return ClusterSourceFactory(
            gate,
            timeout_s=config.origin_timeout_s,
            reader=PeerReader(
                self.info.id,
                self.peers,
                Gate(window, bytes_max=config.fill_bytes_max),
                view=self.view,
                replicas=config.replicas,
                timeout_s=config.origin_timeout_s,
                small_bytes_max=config.small_file_bytes_max,
            ),
            pending=PendingFiles(self.elsewhere.sources, self.files.read, self.settle),
        )

    async def settle(self, path: bytes, version: Version) -> Version | None:
        """Return the version at the origin that a pending version became, as DirtyNamesSubscriber.settle does; this
        node may itself have persisted it in the writer's place."""
        pending = PendingVersion.parse(version.token)
        persisted = None if pending is None else self.keeper.taken(path, pending)
        return persisted if persisted is not None else await self.elsewhere.settle(path, version)

    def names(self) -> OwnerListingClient:
        return OwnerListingClient(
            self.info.id,
            self.peers,
            view=self.view,
            replicas=self._config.replicas,
            timeout_s=self._config.origin_timeout_s * LISTING_LIMIT_FACTOR,
        )

    def owns(self, path: bytes, segment: int, replicas: int) -> bool:
        """Return whether this node is among the owners of a segment."""
        owners = self.view().owners(path, segment, replicas=replicas)
        return any(owner.id == self.info.id for owner in owners)

    async def start(self, service: NodePeerService, on_view: Callable[[ClusterView], None]) -> None:
        """Serve peers and join the cluster, as Membership.start does. on_view: called with each new view, on the loop.
        Raise NodeIdTakenError, ClusterUnavailableError or UsageError."""
        self._on_view = on_view
        self._server = PeerServer(
            self._welcome, self.name, service, loop=asyncio.get_running_loop(), tls=self._tls
        )
        self._server.start(self._host, self._port)
        await self.membership.start()

    async def stop(self) -> None:
        await self.membership.stop()
        if self._server is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._server.stop)
        self.peers.close()
        self.threads.shutdown(wait=False)

    async def forget(
        self, path: bytes, *, relist: bool, below: bool = True, only: Collection[str] | None = None
    ) -> list[tuple[str, str]]:
        """Invalidate a listing on all other nodes, or on those with these ids. Return the ids of nodes that failed,
        and why."""

        async def notify(node: NodeInfo) -> tuple[str, str] | None:
            try:
                deadline = Deadline.after(FORGET_LIMIT_S)
                await self.peers.forget(node, path, relist=relist, below=below, deadline=deadline)
            except HeadraceError as error:
                return node.id, str(error)
            return None

        others = [
            node
            for node in self.view().nodes.values()
            if node.id != self.info.id and (only is None or node.id in only)
        ]
        return [failure for failure in await asyncio.gather(*map(notify, others)) if failure is not None]

    def status(self) -> dict[str, Any]:
        view = self.view()
        return {
            "name": self.name,
            "node": self.info.id,
            "address": self.info.address,
            "replicas": self._config.replicas,
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

    def _welcome(self) -> PeerWelcome:
        return PeerWelcome(
            protocol=PEER_PROTOCOL, node=self.info.id, instance=self.info.instance, epoch=self.view().epoch
        )

    def _on_new_view(self, view: ClusterView) -> None:
        log.info(
            "the members of the cluster changed epoch=%d nodes=%s", view.epoch, ",".join(sorted(view.nodes))
        )
        self._on_view(view)

    async def _is_alive(self, node: NodeInfo) -> bool:
        try:
            welcome = await self.peers.ping_any(node.address, Deadline.after(PING_LIMIT_S), node=node.id)
        except HeadraceError:
            return False
        return bool(welcome.instance == node.instance)


def node_tls(config: Config, cluster: str) -> MutualTls | None:
    """Return the node's TLS, or None without certificates. Raise UsageError."""
    if not config.tls_certificate:
        return None
    files = TlsFiles(config.tls_certificate, config.tls_key, config.tls_authority)
    tls = MutualTls(files, form=config.tls_identity, cluster=cluster)
    if tls.own.role != NODE:
        raise UsageError(
            f"setting tls_certificate = {files.certificate}", why=f"it names {tls.own}, which is no node"
        )
    return tls


def node_id_of(config: Config, tls: MutualTls | None) -> str:
    """Return the node's id, on which certificate, setting, record and messages agree. Raise UsageError."""
    if tls is None:
        node_id = config.node_id or socket.gethostname()
        try:
            check_node_id(node_id)
        except ValueError as error:
            raise UsageError(
                f"node id {node_id[:80]!r}", why=str(error), hint="set another node_id"
            ) from None
        return node_id
    if config.node_id not in ("", tls.own.name):
        raise UsageError(
            f"setting node_id = {config.node_id!r}",
            why=f"the certificate {tls.files.certificate} names {tls.own}",
            hint="remove node_id, or issue a certificate for it",
        )
    return tls.own.name


def listen_address(config: Config, endpoint: str) -> tuple[str, int]:
    """Return host and port where peers reach this node. Raise UsageError for an invalid address, and for one beyond
    loopback without TLS."""
    host, _, port_text = config.listen.rpartition(":")
    if config.listen and (not port_text.isdigit() or int(port_text) > 65535):
        raise UsageError(
            f"setting listen = {config.listen!r}", why="it is not HOST:PORT", hint="for example 10.0.0.5:7412"
        )
    port = int(port_text) if config.listen else PORT
    host = host.strip("[]")
    if host in ("", "0.0.0.0", "::"):
        host = _address_towards(endpoint)
    if not (config.tls_certificate or config.peers_insecure or is_loopback(host, "listen")):
        raise UsageError(
            f"peers at {host}:{port}",
            why="other hosts reach this address, and without TLS anybody could read and change the cache",
            hint="set tls_certificate, tls_key and tls_authority, or peers_insecure = true on a private network",
        )
    return host, port


def api_url(config: Config, host: str) -> str:
    """Return the URL of the REST API for other hosts, or "" without one. host: where peers reach this node."""
    rest_host, _, port = config.rest_address.rpartition(":")
    if not rest_host or port == "0":
        return ""
    if rest_host.strip("[]") in ("0.0.0.0", "::"):
        rest_host = f"[{host}]" if ":" in host else host
    return f"{'https' if config.tls_certificate else 'http'}://{rest_host}:{port}"


def _address_towards(endpoint: str) -> str:
    """Return this host's address on the route to etcd. Nothing is sent: a datagram socket only looks the route up."""
    host, _, port = endpoint.rpartition(":")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UsageError(
            "no address for peers",
            why=f"{endpoint}: {error.strerror or error}",
            hint="set listen = HOST:PORT",
        ) from error
