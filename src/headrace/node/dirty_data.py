"""Build the parts that share unpersisted files with other nodes: replicas, pending names, invalidations."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from headrace.base.model import Version
from headrace.cluster.etcd import EtcdRecords
from headrace.config.schema import Config
from headrace.overlay.pending_version import PendingVersion
from headrace.overlay.upper import Upper
from headrace.peer.client import PeerClient
from headrace.ring.view import ClusterView
from headrace.writeback.coherence.invalidation import InvalidationBroadcaster, PeerListings
from headrace.writeback.coherence.subscriber import DirtyNamesSubscriber
from headrace.writeback.replication.dirty_files import DirtyFiles
from headrace.writeback.replication.replica_host import ReplicaHost

KEEP_THREADS = 8


@dataclass(frozen=True, slots=True)
class DirtyData:
    """Hold the dirty files of the cluster, as this node knows them.

    replica_host: the replicas of other nodes' dirty files. files: the dirty files of this node and the replicas, for
    readers on other nodes. elsewhere: the pending names of other nodes. listings: invalidates other nodes' listings
    once; announcer: repeats that until each node has answered. threads: do the disk work of replica_host and files.
    """

    replica_host: ReplicaHost
    files: DirtyFiles
    elsewhere: DirtyNamesSubscriber
    listings: PeerListings
    announcer: InvalidationBroadcaster
    threads: ThreadPoolExecutor

    async def resolve_version(self, path: bytes, version: Version) -> Version | None:
        """Return the origin's version of a pending version, as DirtyNamesSubscriber.resolve_version does. This node may
        have persisted it itself in a failover, or may have to do so."""
        pending = PendingVersion.parse(version.token)
        persisted = None if pending is None else self.replica_host.persisted_version(path, pending)
        if persisted is None:
            persisted = await self.elsewhere.resolve_version(path, version)
        if persisted is None and pending is not None and not self.elsewhere.is_member(pending.writer):
            return self.replica_host.resolve_version(path, pending)
        return persisted


def build_dirty_data(
    config: Config, me: str, records: EtcdRecords, peers: PeerClient, *, view: Callable[[], ClusterView]
) -> DirtyData:
    threads = ThreadPoolExecutor(KEEP_THREADS, thread_name_prefix="keep")
    replica_host = ReplicaHost(
        me, config.copies_folder, peers, threads, view=view, is_durable=config.durable_puts
    )
    files = DirtyFiles(me, threads, locate=Upper(config.upper_folder).at, folder_of=replica_host.folder_of)
    elsewhere = DirtyNamesSubscriber(me, records, peers, view=view, replica_entries=files.replica_entries)
    listings = PeerListings(me, peers, view=view)
    announcer = InvalidationBroadcaster(listings.invalidate, view)
    return DirtyData(replica_host, files, elsewhere, listings, announcer, threads)
