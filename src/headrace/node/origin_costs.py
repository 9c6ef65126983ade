"""Count what is read from origins, and for whom; slow background work when the budget of a month runs out.

In a cluster a budget is that of all nodes: `cluster_spending.py` has what the others read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from headrace.base.clock import monotonic_s, wall_s
from headrace.base.errors import HeadraceError, OriginBudgetSpentError
from headrace.base.kept_file import KeptFile
from headrace.base.printable import printable
from headrace.base.tasks import OwnedTasks
from headrace.base.token_bucket import TokenBucket, wait_for_turn
from headrace.dataplane.intent import PEERS
from headrace.dataplane.read_queue import NO_TENANT, ReadClass
from headrace.namespace.mounts import Mount
from headrace.node.cluster_spending import ClusterSpending, canonical
from headrace.node.space_policy import NodeCapacity
from headrace.origin.factory import parse_origin
from headrace.origin.pace import budget_above
from headrace.policy.current import CurrentPolicy
from headrace.policy.document import ORIGINS_MAX, OriginBudget
from headrace.policy.spending import (
    BYTES_MAX,
    GIB,
    Month,
    Spending,
    background_rate,
    decode_spending,
    encode_spending,
    larger,
    month_of,
)

log = logging.getLogger(__name__)

EXCHANGE_S = 5.0
JOBS_MAX = 256
"""Jobs with an account of their own. The rest of them shares one."""
JOB_NAME_MAX = 200
MONTHS_KEPT = 3
OTHER_JOBS = "other jobs"
SCRUB = "scrub"
UNLIMITED_JOBS = (PEERS, SCRUB)
"""Background work that goes on when the budget is spent: other nodes have budgets of their own, and a damaged file is
fetched again in any case."""


@dataclass(slots=True)
class _Account:
    """Sums of one mount, tenant or job since the node started. opened_bytes: the sizes of the files that programs
    opened, cached or not; an estimate."""

    requests: int = 0
    bytes: int = 0
    cost: float = 0.0
    opened_bytes: float = 0.0
    opened_cost: float = 0.0

    def charge(self, size_bytes: int, price_gib: float) -> None:
        self.requests += 1
        self.bytes += size_bytes
        self.cost += size_bytes / GIB * price_gib

    def note_opened(self, size_bytes: float, price_gib: float) -> None:
        self.opened_bytes += size_bytes
        self.opened_cost += size_bytes / GIB * price_gib

    def status(self) -> dict[str, object]:
        return {
            "requests": self.requests,
            "bytes": self.bytes,
            "cost": round(self.cost, 4),
            "opened_bytes": round(self.opened_bytes),
            "saved_bytes": round(max(0.0, self.opened_bytes - self.bytes)),
            "saved_cost": round(max(0.0, self.opened_cost - self.cost), 4),
        }


class _PricedOrigin:
    """An origin with a price, and what background work may read of it. url: canonical. bucket: None while that is
    unlimited."""

    def __init__(self, url: str, budget: OriginBudget) -> None:
        self.url = url
        self.budget = budget
        self.bucket: TokenBucket | None = None
        self.is_spent = False

    @property
    def state(self) -> str:
        if self.is_spent:
            return "stopped"
        return "free" if self.bucket is None else "slowed"

    def follow(self, budget: OriginBudget) -> None:
        """Take the price and the budget of another policy."""
        self.budget = budget

    def limit(self, rate: float | None, now_s: float) -> None:
        """Limit background work to a rate of this node; 0 stops it."""
        self.is_spent = rate == 0
        if not rate:
            if self.bucket is not None:
                self.bucket.lift()  # those that wait look again
            self.bucket = None
        elif self.bucket is None:
            self.bucket = TokenBucket(rate, now_s)
        else:
            self.bucket.set_rate(rate, now_s)


class OriginCosts:
    """Accounts of a node. capacity: knows how many nodes there are. cluster: what its other nodes spend; None without
    one. wall_s: returns the seconds since 1970. Belongs to the node's loop."""

    def __init__(
        self,
        policy: CurrentPolicy,
        capacity: NodeCapacity,
        file: KeptFile,
        *,
        cluster: ClusterSpending | None,
        wall_s: Callable[[], float] = wall_s,
    ) -> None:
        self._policy = policy
        self._capacity = capacity
        self._file = file
        self._cluster = cluster
        self._wall_s = wall_s
        self._month = month_of(wall_s())
        self._own: dict[str, int] = {}  # by the canonical URLs of budgets
        self._remembered: dict[str, int] = {}  # of it, what the file had at the start
        self._past: dict[str, dict[str, int]] = {}  # what it spent in other months, by their names
        self._kept: Spending | None = None
        self._is_file_read = False
        self._mounts: dict[str, _Account] = {}
        self._tenants: dict[str, _Account] = {}
        self._jobs: dict[str, _Account] = {}
        self._classes: dict[tuple[str, int], ReadClass] = {}
        self._origins: dict[str, _PricedOrigin] = {}
        self._by_url: dict[str, _PricedOrigin | None] = {}
        self._tasks = OwnedTasks()
        self._apply()
        policy.changed.add(lambda _: self._apply())

    async def start(self, joined: asyncio.Event | None) -> None:
        """Read what this node spent in this month before it started, and begin to exchange it. joined: set when this
        node has joined its cluster; None without one."""
        try:
            raw = await asyncio.to_thread(self._file.read)
            kept = None if raw is None else decode_spending(raw)
        except (OSError, msgspec.DecodeError) as error:
            log.error("what was spent in this month can't be read, it counts from now on error=%s", error)
            kept = None
        if kept is not None and kept.month == self._month.name:
            self._remembered = canonical(kept.bytes)
            for url, size_bytes in self._remembered.items():
                self._own[url] = self._own.get(url, 0) + size_bytes
            self._kept = kept
        self._is_file_read = True
        self._limit()
        if self._cluster is not None:
            self._tasks.start(self._follow(self._cluster, joined))
        self._tasks.start(self._run())

    async def stop(self) -> None:
        await self._tasks.close()
        if self._is_file_read:  # otherwise the file has more: the node stops before it has started
            await self._keep()

    # ------------------------------------------------------------ ReadAccounts

    def class_of(self, path: bytes) -> ReadClass:
        effects = self._policy.of(path)
        if not effects.tenant and effects.priority is NO_TENANT.priority:
            return NO_TENANT
        key = (effects.tenant, int(effects.priority))
        if key not in self._classes:
            tenant = self._policy.resolver.document.tenants.get(effects.tenant)
            share = 1.0 if tenant is None else tenant.share
            self._classes[key] = ReadClass(effects.tenant, share, effects.priority)
        return self._classes[key]

    def charge(self, mount: Mount, path: bytes, size_bytes: int, job: str) -> None:
        priced = self._priced(mount.url)
        price = 0.0 if priced is None else priced.budget.egress_per_gib
        if priced is not None:
            self._own[priced.url] = self._own.get(priced.url, 0) + size_bytes
        self._mounts.setdefault(mount.path, _Account()).charge(size_bytes, price)
        tenant = self._policy.of(path).tenant
        if tenant:
            self._tenants.setdefault(tenant, _Account()).charge(size_bytes, price)
        self._account_of_job(job).charge(size_bytes, price)

    def _account_of_job(self, job: str) -> _Account:
        """Return the account of a job. Its name has paths, and text of other processes."""
        account = self._jobs.get(job)
        if account is None:
            name = printable(job)[:JOB_NAME_MAX]
            if name not in self._jobs and len(self._jobs) >= JOBS_MAX:
                name = OTHER_JOBS
            account = self._jobs.setdefault(name, _Account())
        return account

    async def admit(self, mount: Mount, size_bytes: int, job: str) -> None:
        """Wait until background work may read so much. Raise OriginBudgetSpentError when nothing is left."""
        while (bucket := self._background_bucket(mount, job)) is not None:
            await wait_for_turn([bucket.reserve(size_bytes, monotonic_s())])
            if not bucket.is_lifted:
                return

    def _background_bucket(self, mount: Mount, job: str) -> TokenBucket | None:
        """Return the bucket of background work at an origin; None for no limit. Raise OriginBudgetSpentError."""
        priced = self._priced(mount.url)
        if priced is None or job in UNLIMITED_JOBS:
            return None
        if priced.is_spent:
            budget = priced.budget
            raise OriginBudgetSpentError(
                budget.url,
                why=f"budget_month of the policy, {budget.budget_month:g}, is spent: background work waits for the "
                "next month",
            )
        return priced.bucket

    def has_debt(self, mount: Mount) -> bool:
        """Return whether background work at an origin would wait now."""
        priced = self._priced(mount.url)
        return priced is not None and priced.bucket is not None and priced.bucket.debt(monotonic_s()) > 0

    # ------------------------------------------------------------ what programs open

    def note_opened(self, mount: Mount, tenant: str, size_bytes: float) -> None:
        """Count the size of files that programs opened."""
        priced = self._priced(mount.url)
        price = 0.0 if priced is None else priced.budget.egress_per_gib
        self._mounts.setdefault(mount.path, _Account()).note_opened(size_bytes, price)
        if tenant:
            self._tenants.setdefault(tenant, _Account()).note_opened(size_bytes, price)

    # ------------------------------------------------------------ status

    def status(self) -> dict[str, object]:
        """Return the accounts since the start, and those of this month's budgets."""
        return {
            "month": self._month.name,
            "origins": {url: self._origin_status(origin) for url, origin in self._origins.items()},
            "mounts": {path: account.status() for path, account in self._mounts.items()},
            "tenants": {name: account.status() for name, account in self._tenants.items()},
            "jobs": {
                name: {"requests": account.requests, "bytes": account.bytes, "cost": round(account.cost, 4)}
                for name, account in self._jobs.items()
            },
        }

    def _origin_status(self, origin: _PricedOrigin) -> dict[str, object]:
        price, own_bytes = origin.budget.egress_per_gib, self._own.get(origin.url, 0)
        all_bytes = self._month_bytes(origin.url)
        return {
            "bytes": own_bytes,
            "cost": round(own_bytes / GIB * price, 4),
            "cluster_bytes": all_bytes,
            "cluster_cost": round(all_bytes / GIB * price, 4),
            "budget_month": origin.budget.budget_month,
            "background": origin.state,
        }

    # ------------------------------------------------------------ the month

    def _apply(self) -> None:
        """Follow the prices and budgets of the policy."""
        before, self._origins = self._origins, {}
        for budget in self._policy.resolver.document.origins.values():
            try:
                url = parse_origin(budget.url)
            except HeadraceError:  # told by OriginBudgets
                continue
            if budget.egress_per_gib:
                origin = self._origins.get(url) or before.pop(url, None) or _PricedOrigin(url, budget)
                origin.follow(budget)
                self._origins[url] = origin
        for origin in before.values():
            origin.limit(None, monotonic_s())
        self._by_url.clear()
        self._classes.clear()
        self._limit()

    def _priced(self, url: str) -> _PricedOrigin | None:
        if url not in self._by_url:
            above = budget_above(url, self._origins)
            self._by_url[url] = None if above is None else self._origins[above]
        return self._by_url[url]

    def _month_bytes(self, url: str) -> int:
        others = 0 if self._cluster is None else self._cluster.month_bytes(self._month.name, url)
        return self._own.get(url, 0) + others

    def _limit(self) -> None:
        """Limit background work by what is left of each budget."""
        now_s, left_s = monotonic_s(), self._month.ends_s - self._wall_s()
        for url, origin in self._origins.items():
            budget, state = origin.budget, origin.state
            rate = None
            if budget.budget_month is not None:
                budget_bytes = budget.budget_month / budget.egress_per_gib * GIB
                rate = background_rate(budget_bytes, self._month_bytes(url), left_s)
            origin.limit(rate if rate is None else rate / max(1, self._capacity.members or 1), now_s)
            if origin.state != state:
                log.warning(
                    "background work at an origin is limited by budget_month url=%s state=%s spent=%.2f of=%g",
                    *(url, origin.state),
                    self._month_bytes(url) / GIB * budget.egress_per_gib,
                    budget.budget_month or 0.0,
                )

    async def _follow(self, cluster: ClusterSpending, joined: asyncio.Event | None) -> None:
        """Learn what other nodes spend, and what the cluster knows of this one. Until then this node counts alone."""
        await cluster.follow(joined)
        while not await self._recalled(cluster):  # noqa: ASYNC110 - the records have no event for this
            await asyncio.sleep(EXCHANGE_S)
        cluster.may_publish()

    async def _recalled(self, cluster: ClusterSpending) -> bool:
        """Add what the cluster knows beyond the file of this node, which may be that of a new disk."""
        month = self._month.name
        try:
            recorded = await cluster.own(month)
        except HeadraceError as error:
            log.info("what this node spent in this month can't be read yet error=%s", error)
            return False
        if month == self._month.name:
            for url, size_bytes in recorded.items():
                forgotten = max(0, size_bytes - self._remembered.get(url, 0))
                self._own[url] = self._own.get(url, 0) + forgotten
            self._remembered = larger(self._remembered, recorded)
        return month == self._month.name

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EXCHANGE_S)
            self._turn_month(month_of(self._wall_s()))
            self._limit()
            await self._keep()
            if self._cluster is not None:
                await self._cluster.publish(self._spending())
                await self._cluster.fold_departed(self._month.name)

    def _turn_month(self, month: Month) -> None:
        """Begin a month if it is another one. Those before stay known, for a clock that was set wrong for a while."""
        if month.name == self._month.name:
            return
        self._past[self._month.name] = self._own
        while len(self._past) > MONTHS_KEPT:
            del self._past[next(iter(self._past))]
        self._month, self._own = month, self._past.pop(month.name, {})
        self._remembered = {}

    def _spending(self) -> Spending:
        """Return what this node spent: at origins that have a price now, and at others as far as a record goes."""
        urls = sorted(self._own, key=lambda url: (url not in self._origins, -self._own[url]))[:ORIGINS_MAX]
        return Spending(self._month.name, {url: min(BYTES_MAX, self._own[url]) for url in sorted(urls)})

    async def _keep(self) -> None:
        spending = self._spending()
        if spending == self._kept or not (spending.bytes or self._kept):
            return
        try:
            await asyncio.to_thread(self._file.write, encode_spending(spending))
            self._kept = spending
        except OSError as error:
            log.warning("what was spent in this month can't be kept error=%s", error)
