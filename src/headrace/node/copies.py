"""Keep as many copies of each file in the cluster as the policy wants, or else the setting `replicas`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headrace.base.listeners import Listeners
from headrace.base.model import FileId
from headrace.dataplane.fresh_copies import FreshCopies
from headrace.dataplane.rebalance import Rebalance
from headrace.node.hot_copies import HotCopies, HotTable
from headrace.policy.current import CurrentPolicy
from headrace.policy.effects import AUTO_REPLICAS
from headrace.policy.resolve import PolicyResolver
from headrace.ring.ownership import Ownership
from headrace.ring.view import SEGMENT_BYTES, ClusterView
from headrace.store.store import Store

CopiesOf = Callable[[bytes], int]


class CopyRules:
    """Says how many copies of a path the policy wants. configured: where no rule does."""

    def __init__(self, policy: CurrentPolicy, configured: int) -> None:
        self.configured = configured
        self.hot = HotTable()
        self.changed: Listeners[[CopiesOf]] = Listeners()
        """Called after a change, with the numbers of before."""
        self.ownership = Ownership(self.of, self.hot.of)
        self._policy = policy
        self._is_ruled = bool(_rules(policy.resolver))
        policy.changed.add(self._apply)

    @property
    def is_wanted(self) -> bool:
        """Return whether any path may have more than one copy."""
        return self._is_ruled or self.configured > 1

    @property
    def is_automatic(self) -> bool:
        """Return whether a rule lets the reads decide."""
        rules = self._policy.resolver.document.rules
        return self._is_ruled and any(rule.effects.get("replicas") == AUTO_REPLICAS for rule in rules)

    def follows_reads(self, path: bytes) -> bool:
        """Return whether the reads of a path decide how many copies it has."""
        return self._is_ruled and self._policy.of(path).replicas == AUTO_REPLICAS

    def of(self, path: bytes) -> int:
        """Return the number of owners that the ring gives to a path."""
        return _copies(self._policy.resolver, path, self.configured) if self._is_ruled else self.configured

    def _apply(self, before: PolicyResolver) -> None:
        self._is_ruled = bool(_rules(self._policy.resolver))
        if _rules(before) != _rules(self._policy.resolver):
            self.changed(lambda path: _copies(before, path, self.configured))


def _rules(policy: PolicyResolver) -> list[tuple[tuple[str, ...], object]]:
    """Return the rules about copies: their patterns, and the numbers that they want."""
    return [
        (rule.patterns.texts, rule.effects["replicas"])
        for rule in policy.document.rules
        if "replicas" in rule.effects
    ]


def _copies(policy: PolicyResolver, path: bytes, configured: int) -> int:
    return policy.of(path).replicas or configured


@dataclass(frozen=True, slots=True)
class CopyKeeper:
    """Makes and drops the copies of a node's files. rebalance: after changes of the members and the policy. fresh:
    of files that were fetched. hot: of files that are read often."""

    rebalance: Rebalance
    fresh: FreshCopies
    hot: HotCopies

    def note_fetched(self, ids: Iterable[FileId]) -> None:
        self.fresh.note(ids)

    def statistics(self) -> dict[str, int]:
        return {
            **self.fresh.statistics(),
            **self.hot.statistics(),
            "copies_dropped": self.rebalance.copies_dropped,
            "bytes_dropped": self.rebalance.copy_bytes_dropped,
        }

    async def stop(self) -> None:
        await self.hot.stop()
        await self.fresh.stop()
        await self.rebalance.stop()


class OwnedFiles:
    """The files of a node, as `HotCopies` sees them. me: the node."""

    def __init__(
        self,
        me: str,
        rules: CopyRules,
        store: Store,
        fresh: FreshCopies,
        *,
        view: Callable[[], ClusterView],
    ) -> None:
        self._me = me
        self._rules = rules
        self._store = store
        self._fresh = fresh
        self._view = view

    def is_primary(self, path: bytes, segment: int) -> bool:
        owners = self._view().owners(path, segment)
        return bool(owners) and owners[0].id == self._me

    def is_automatic(self, path: bytes) -> bool:
        return self._rules.follows_reads(path)

    def give(self, ids: list[FileId]) -> None:
        self._fresh.note(ids)

    def borrow(self, id: FileId) -> None:
        path, cached = self._store.index.path_of(id), self._store.index.cached(id)
        if path is None or cached is None:
            return
        for start in range(0, max(1, cached.size_bytes), SEGMENT_BYTES):
            owners = self._rules.ownership.owners(self._view(), path, start // SEGMENT_BYTES)
            if any(owner.id == self._me for owner in owners):
                return
        self._store.set_borrowed(id, borrowed=True)
