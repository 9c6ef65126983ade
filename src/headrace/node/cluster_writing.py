"""Building what writes on a node of a cluster: replicas, pending names and directory leases beside write-back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.config.schema import Config
from headrace.dataplane.changes import ChangeTracker
from headrace.dataplane.directory_lease import DirectoryLeases
from headrace.dataplane.durability import Durability, LocalDurability
from headrace.dataplane.failback import Failback
from headrace.dataplane.observers import WriteObserver
from headrace.dataplane.pending_names import OwnVersions, PendingNames, PendingNamesObserver, PublishedFlags
from headrace.dataplane.placement import ReplicaSetRecords
from headrace.dataplane.publisher import DirtyNamesPublisher
from headrace.dataplane.replicated import ReplicaObserver, ReplicatedDurability
from headrace.dataplane.replicator import Replicator
from headrace.dataplane.snapshots import Snapshots
from headrace.dataplane.writeback import WriteBack
from headrace.namespace.tree import Namespace
from headrace.node.cluster_link import ClusterLink
from headrace.node.invalidation import InvalidationObserver
from headrace.node.writing import (
    CacheOfLayer,
    WriteBackSettings,
    WriteState,
    build_write_back,
    open_own_layer,
)
from headrace.overlay.lease_marks import DirectoryFlags


@dataclass(frozen=True, slots=True)
class ClusterWriting:
    """Write-back of a node of a cluster, and what other nodes ask of it. replicator: None where no mode promises
    replicas."""

    write_back: WriteBack
    failback: Failback
    replicator: Replicator | None
    publisher: DirtyNamesPublisher
    leases: DirectoryLeases
    own: OwnVersions


def build_in_cluster(
    config: Config, link: ClusterLink, namespace: Namespace, cache: CacheOfLayer, sessions: WriteObserver
) -> ClusterWriting | None:
    """None where nothing can be written."""
    layer = open_own_layer(config)
    if layer is None:
        return None
    me, records, peers = link.info.id, link.records, link.peers
    failback = Failback(me, peers, layer.journal, view=link.view)
    state = WriteState.of(namespace, layer, ask_others=failback.ask, settle=link.settle)
    names = PendingNames(layer, state.planner, state.dirty)
    flags = DirectoryFlags(layer.upper.marks_path)
    published = PublishedFlags(layer.upper, flags)
    publisher = DirtyNamesPublisher(
        me,
        link.info.instance,
        records,
        peers,
        view=link.view,
        look=names.means,
        is_clean=names.is_clean,
        unmark=published.clear,
    )
    pending = PendingNamesObserver(layer, publisher, published)
    leases = DirectoryLeases(
        me,
        records,
        peers,
        layer.upper,
        flags,
        view=link.view,
        look=_look_at(link, namespace),
        tell=pending.publish_all_of,
    )
    replicator = _replicator(link, state)
    observers: list[WriteObserver] = [InvalidationObserver(link.announcer), pending, leases, sessions]
    if replicator is not None:
        observers.insert(0, ReplicaObserver(layer.upper, layer.modes, replicator))
    settings = WriteBackSettings.of(config)

    def durability(changes: ChangeTracker) -> Durability:
        if replicator is None:
            return LocalDurability(layer.modes)
        return ReplicatedDurability(
            layer.upper, layer.modes, replicator, note=lambda paths: changes.note(paths, changes.delay_s)
        )

    write_back = build_write_back(state, settings, observers, cache=cache, durability=durability)
    own = OwnVersions(layer.upper, layer.journal, write_back.persist)
    return ClusterWriting(write_back, failback, replicator, publisher, leases, own)


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
        at=state.layer.upper.at,
        take=snapshots.of,
        names=snapshots.names,
    )


def _look_at(link: ClusterLink, namespace: Namespace) -> Callable[[bytes], Awaitable[None]]:
    async def look(folder: bytes) -> None:
        """Make this node's view of a directory as new as the other nodes and the origin are."""
        await link.elsewhere.catch_up()
        await namespace.refresh_for_names(folder)

    return look
