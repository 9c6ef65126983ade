"""Build the tree of names that a node serves, from its parts."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.namespace.changed_directories import ChangedDirectories
from headrace.namespace.changes import NameChanges
from headrace.namespace.freshness import Freshness
from headrace.namespace.listings import Listings, OthersNames
from headrace.namespace.mount_points import MountPoints
from headrace.namespace.mounts import MountTable
from headrace.namespace.name_checks import NameChecks
from headrace.namespace.owner_listing import OwnerListingClient, OwnerNames
from headrace.namespace.pending_rows import NamesChanged, PendingRows
from headrace.namespace.refresh_ahead import RefreshAhead
from headrace.namespace.refresh_queue import RefreshQueue
from headrace.namespace.resolver import NameResolver
from headrace.namespace.tree import NameTree
from headrace.policy.current import CurrentPolicy
from headrace.store.index import Index


@dataclass(frozen=True, slots=True)
class Namespace:
    """The parts of the tree. `refreshes` follows the pending names of other nodes, `changed_directories` what origins
    report. `refresh_ahead` hears which files are opened."""

    tree: NameTree
    listings: Listings
    resolver: NameResolver
    changes: NameChanges
    mount_points: MountPoints
    owner_names: OwnerNames
    refreshes: RefreshQueue
    freshness: Freshness
    checks: NameChecks
    changed_directories: ChangedDirectories
    refresh_ahead: RefreshAhead

    @classmethod
    def build(
        cls,
        index: Index,
        mounts: MountTable,
        *,
        timeout_s: float,
        on_changed: NamesChanged,
        policy: CurrentPolicy | None = None,
        shared: OwnerListingClient | None = None,
        others: OthersNames | None = None,
    ) -> Namespace:
        """Build the tree of an index. `on_changed`, `shared`, `others`: as of Listings. policy: None for none."""
        tree, pending = NameTree(index, mounts), PendingRows(index, mounts)
        changes = NameChanges(tree, pending)
        freshness = Freshness(tree, policy or CurrentPolicy())
        listings = Listings(
            *(tree, pending, changes, on_changed),
            freshness=freshness,
            timeout_s=timeout_s,
            shared=shared,
            others=others,
        )
        checks = NameChecks(
            *(tree, pending, changes, listings, on_changed), timeout_s=timeout_s, shared=shared
        )
        return cls(
            tree,
            listings,
            NameResolver(tree, pending, listings, on_changed, timeout_s=timeout_s, shared=shared),
            changes,
            MountPoints(tree, on_changed),
            OwnerNames(index, pending),
            RefreshQueue(listings.refresh_pending, tree.directories_below),
            freshness,
            checks,
            ChangedDirectories(tree, changes, listings, checks),
            RefreshAhead(tree, listings, freshness),
        )
