"""Build the write side of a node in a cluster: write-back with replicas, pending names and directory leases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.config.schema import Config
from headrace.namespace.listings import Listings
from headrace.namespace.namespace import Namespace
from headrace.node.cluster_link import ClusterLink
from headrace.node.writing import (
    CacheOfLayer,
    WriteBackSettings,
    WriteState,
    build_write_back,
    open_own_layer,
)
from headrace.overlay.lease_marks import DirectoryFlags
from headrace.writeback.changes import ChangeTracker
from headrace.writeback.coherence.directory_claims import DirectoryClaims
from headrace.writeback.coherence.directory_lease import DirectoryLeases
from headrace.writeback.coherence.invalidation import InvalidationObserver
from headrace.writeback.coherence.pending_names import (
    OwnVersions,
    PendingNames,
    PendingNamesObserver,
    PublishedFlags,
)
from headrace.writeback.coherence.publisher import DirtyNamesPublisher
from headrace.writeback.durability import Durability, LocalDurability
from headrace.writeback.observers import WriteObserver
from headrace.writeback.replication.failback import Failback
from headrace.writeback.replication.placement import ReplicaSetRecords
from headrace.writeback.replication.replicated import ReplicaObserver, ReplicatedDurability
from headrace.writeback.replication.replicator import Replicator
from headrace.writeback.replication.snapshots import Snapshots
from headrace.writeback.writeback import WriteBack


@dataclass(frozen=True, slots=True)
class ClusterWriting:
    """Holds the write side of a node in a cluster, with the parts that answer other nodes. replicator: None where no
    mode promises replicas."""

    write_back: WriteBack
    failback: Failback
    replicator: Replicator | None
    publisher: DirtyNamesPublisher
    leases: DirectoryLeases
    claims: DirectoryClaims
    own: OwnVersions


def build_in_cluster(
    config: Config, link: ClusterLink, namespace: Namespace, cache: CacheOfLayer, sessions: WriteObserver
) -> ClusterWriting | None:
    """Build the write side; return None where nothing can be written. Raises StoreError."""
    layer = open_own_layer(config)
    if layer is None:
        return None
    me, records, peers = link.info.id, link.records, link.peers
    failback = Failback(me, peers, layer.journal, view=link.view)
    state = WriteState.of(
        namespace, layer, query_replicas=failback.ask, resolve_version=link.dirty.resolve_version
    )
    names = PendingNames(layer, state.planner, state.dirty)
    flags = DirectoryFlags(layer.upper.marks_path)
    published = PublishedFlags(layer.upper, flags)
    publisher = DirtyNamesPublisher(
        me,
        link.info.instance,
        records,
        peers,
        view=link.view,
        entry_of=names.means,
        is_clean=names.is_clean,
        unmark=published.clear,
    )
    pending = PendingNamesObserver(layer, publisher, published, mounts=namespace.tree.mounts)
    leases = DirectoryLeases(
        me,
        records,
        peers,
        layer.upper,
        flags,
        view=link.view,
        refresh=_refresher(link, namespace.listings),
        publish=pending.publish_all_of,
    )
    replicator = _replicator(link, state)
    claims = DirectoryClaims(me, records, layer.modes)
    observers: list[WriteObserver] = [
        *(InvalidationObserver(link.dirty.announcer), pending, leases, claims, sessions)
    ]
    if replicator is not None:
        observers.insert(0, ReplicaObserver(layer.upper, layer.modes, replicator))
    settings = WriteBackSettings.of(config)

    def durability(changes: ChangeTracker) -> Durability:
        if replicator is None:
            return LocalDurability(layer.modes)
        return ReplicatedDurability(
            layer.upper, layer.modes, replicator, note=lambda paths: changes.note(paths, changes.delay_s)
        )

    write_back = build_write_back(
        state, settings, observers, cache=cache, durability=durability, trouble_at=claims.trouble_at
    )
    own = OwnVersions(layer.upper, layer.journal, write_back.persist)
    return ClusterWriting(write_back, failback, replicator, publisher, leases, claims, own)


def _replicator(link: ClusterLink, state: WriteState) -> Replicator | None:
    modes = state.layer.modes
    if modes.copies_max < 2:
        return None
    snapshots = Snapshots(state.layer, state.preconditions, state.planner)
    return Replicator(
        link.info.id,
        link.peers,
        view=link.view,
        records=ReplicaSetRecords(link.records),
        count=modes.copies_max,
        locate=state.layer.upper.at,
        take=snapshots.of,
        names=snapshots.names,
    )


def _refresher(link: ClusterLink, listings: Listings) -> Callable[[bytes], Awaitable[None]]:
    async def look(directory: bytes) -> None:
        """Make this node's listing of a directory as new as those of the other nodes and of the origin. Raises
        PeerError if a member may have names there and does not answer."""
        await link.dirty.elsewhere.catch_up()
        await listings.refresh_for_names(directory)
        link.dirty.elsewhere.check_answered(directory)

    return look
