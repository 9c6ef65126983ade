"""Keep the calls of all nodes to an origin within the budget of the policy.

In a cluster each node publishes what it needs and what it takes, as a leased record `rates/NODE`, and computes its own
part (`policy/rate_shares.py`). While etcd is away every node keeps to its part, and to an equal part of what no node
takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.base.clock import monotonic_s
from headrace.base.decoding import decode_json
from headrace.base.errors import HeadraceError
from headrace.base.tasks import OwnedTasks
from headrace.cluster.records import Records
from headrace.node.space_policy import NodeCapacity
from headrace.origin.factory import parse_origin
from headrace.origin.pace import BudgetRates, OriginPaces
from headrace.policy.current import CurrentPolicy
from headrace.policy.document import ORIGINS_MAX, OriginBudget
from headrace.policy.rate_shares import LEAST_FACTOR, NodeBudget, NodeRate, OverloadFactor, with_silent

log = logging.getLogger(__name__)

PREFIX = "rates"
KINDS = ("requests", "bytes")
EXCHANGE_S = 0.5
STEADY_SHARE = 0.02
"""Changes of a rate that are too small to publish."""
NODES_ASSUMED = 16
"""Nodes that a starting node divides a limit by, until it knows how many there are."""
RECORD_BYTES_MAX = 1 << 18
Amount = Annotated[float, Meta(ge=0, le=1e15)]


class PublishedRate(msgspec.Struct, frozen=True):
    """The demand of a node on a budget, and the rate that it takes, a second. factor: the share of the budget that the
    origin bears."""

    demand: Amount
    rate: Amount
    factor: Annotated[float, Meta(ge=LEAST_FACTOR, le=1)] = 1.0


class PublishedRates(msgspec.Struct, frozen=True):
    """The record of a node: its rates by "requests URL" and "bytes URL"."""

    rates: Annotated[dict[str, PublishedRate], Meta(max_length=2 * ORIGINS_MAX)] = {}


def decode_rates(raw: bytes) -> dict[str, NodeRate]:
    """Decode the record of another node. Raises msgspec.DecodeError."""
    if len(raw) > RECORD_BYTES_MAX:
        raise msgspec.ValidationError(f"a record of {len(raw)} bytes: {RECORD_BYTES_MAX} are allowed")
    record = decode_json(raw, PublishedRates)
    if not all(math.isfinite(rate.demand + rate.rate) for rate in record.rates.values()):
        raise msgspec.ValidationError("a rate is not finite")
    return {name: NodeRate(rate.demand, rate.rate, rate.factor) for name, rate in record.rates.items()}


class _Part:
    """This node's part of one limit."""

    def __init__(self, node: str, limit: float, rate: float) -> None:
        self.limit = limit
        self.budget = NodeBudget(node, rate)
        self._asked = self._demand = 0.0
        self._asked_s = monotonic_s()
        self._is_scaled = False

    def scale(self, limit: float) -> None:
        """Follow a change of the limit. The calls so far were held back by the limit before, and so is the demand."""
        self.budget.scale(limit / self.limit)
        self._demand *= limit / self.limit
        self._is_scaled = True
        self.limit = limit

    def demand(self, asked: float, debt: float, now_s: float) -> float:
        """Return what the node needs a second. asked: the sum of all calls so far. debt: what waits for the next
        exchange. An exchange that comes early tells nothing new."""
        passed_s = now_s - self._asked_s
        if passed_s >= EXCHANGE_S / 2:
            if not self._is_scaled:
                self._demand = (asked - self._asked) / passed_s + debt / EXCHANGE_S
            self._asked, self._asked_s, self._is_scaled = asked, now_s, False
        return self._demand


class OriginBudgets:
    """Divides the budgets with one task. capacity: knows how many nodes there are. node: the id of this node. records:
    of the cluster; None without one."""

    def __init__(
        self,
        policy: CurrentPolicy,
        paces: OriginPaces,
        capacity: NodeCapacity,
        node: str,
        records: Records | None,
    ) -> None:
        self._policy = policy
        self._capacity = capacity
        self._paces = paces
        self._node = node
        self._records = records
        self._others: dict[str, dict[str, NodeRate]] = {}
        self._rates: dict[str, BudgetRates] = {}
        self._parts: dict[str, _Part] = {}
        self._overloads: dict[str, OverloadFactor] = {}
        self._published: dict[str, NodeRate] = {}
        self._is_heard = True
        """True if the others can know the rates that were computed last."""
        self._wake = asyncio.Event()
        self._tasks = OwnedTasks()
        self._apply()
        policy.changed.add(lambda _: self._apply())

    def start(self, joined: asyncio.Event | None) -> None:
        """Divide the budgets. joined: set when this node has joined its cluster; None without one."""
        self._tasks.start(self._run(joined))

    async def stop(self) -> None:
        await self._tasks.close()

    def status(self) -> list[dict[str, object]]:
        """Return the budgets, and what this node may use and did use of each."""
        now_s = monotonic_s()
        return [
            {
                "url": url,
                "factor": round(self._least_factor(url, now_s), 3),
                "requests_s": self._rate_of("requests", url),
                "bytes_s": self._rate_of("bytes", url),
                "requests": rates.asked_requests,
                "bytes": rates.asked_bytes,
            }
            for url, rates in self._rates.items()
        ]

    def _rate_of(self, kind: str, url: str) -> float | None:
        part = self._parts.get(f"{kind} {url}")
        return None if part is None else round(part.budget.rate, 1)

    def _apply(self) -> None:
        """Put the budgets of the policy in force. In a cluster a node begins with an equal part of a new limit, and
        keeps its part of one that changes. What was saved or is owed stays: a policy gives no burst."""
        nodes = self._nodes()
        budgets = self._budgets()
        for url in self._rates.keys() - budgets.keys():
            self._rates.pop(url).limit(None, None)
            del self._overloads[url]
            for kind in KINDS:
                self._parts.pop(f"{kind} {url}", None)
        for url, budget in budgets.items():
            if url not in self._rates:
                self._rates[url] = BudgetRates(None, None)
                self._rates[url].overloaded.add(partial(self._note_overload, url))
                self._overloads[url] = OverloadFactor()
            limits = (budget.requests_s, budget.bytes_s)
            self._rates[url].limit(
                *(
                    self._part(f"{kind} {url}", limit, nodes)
                    for kind, limit in zip(KINDS, limits, strict=True)
                )
            )
        self._paces.apply(self._rates)

    def _nodes(self) -> int:
        return 1 if self._records is None else self._capacity.members or NODES_ASSUMED

    def _budgets(self) -> dict[str, OriginBudget]:
        budgets = {}
        for budget in self._policy.resolver.document.origins.values():
            try:
                budgets[parse_origin(budget.url)] = budget
            except HeadraceError as error:  # another release may have set it, or a node that has its driver
                log.warning("a budget of the policy is for no origin error=%s", error)
        return budgets

    def _part(self, name: str, limit: float | None, nodes: int) -> float | None:
        """Return this node's part of a limit, which may have changed; None without one."""
        if limit is None:
            self._parts.pop(name, None)
            return None
        part = self._parts.setdefault(name, _Part(self._node, limit, limit / nodes))
        if part.limit != limit:
            part.scale(limit)
        return part.budget.rate

    def _note_overload(self, url: str) -> None:
        if self._overloads[url].record_overload(monotonic_s()):
            log.warning("the origin is overloaded, all nodes slow down url=%s", url)
            self._wake.set()

    def _least_factor(self, url: str, now_s: float) -> float:
        """Return the share of a budget that the origin bears, by what all nodes say."""
        names = (f"requests {url}", f"bytes {url}")
        others = [known[name].factor for known in self._others.values() for name in names if name in known]
        return min([self._overloads[url].factor(now_s), *others])

    async def _run(self, joined: asyncio.Event | None) -> None:
        if joined is not None:
            await joined.wait()
        if self._records is not None:
            await self._records.follow(f"{PREFIX}/", self._on_record)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(
                    EXCHANGE_S
                ):  # wait_for of Python 3.11 may lose the end of the node
                    await self._wake.wait()
            self._wake.clear()
            try:
                if self._parts or self._published or not self._is_heard:
                    await self._exchange()
            except HeadraceError as error:
                log.info("rates can't be exchanged, all nodes keep theirs error=%s", error)

    def _on_record(self, key: str, value: bytes | None) -> None:
        node = key.removeprefix(f"{PREFIX}/")
        if node == self._node:
            return
        if not value:
            self._others.pop(node, None)
            return
        before = self._others.get(node, {})
        try:
            rates = self._others[node] = decode_rates(value)
        except msgspec.DecodeError as error:
            log.warning("the rates of a node are invalid node=%s error=%s", node, error)
            return
        if any(name not in before or rate.factor < before[name].factor for name, rate in rates.items()):
            self._wake.set()

    async def _exchange(self) -> None:
        now_s = monotonic_s()
        own: dict[str, NodeRate] = {}
        for url, rates in self._rates.items():
            for kind, bucket, asked in (
                ("requests", rates.requests, rates.asked_requests),
                ("bytes", rates.bytes, rates.asked_bytes),
            ):
                name = f"{kind} {url}"
                part = self._parts.get(name)
                if part is None or bucket is None:
                    continue
                heard = {node: known[name] for node, known in self._others.items() if name in known}
                others = with_silent(heard, part.limit, self._nodes())
                is_alone = self._records is None  # nobody else needs what it leaves
                demand = part.limit if is_alone else part.demand(asked, bucket.debt(now_s), now_s)
                factor = self._overloads[url].factor(now_s)
                own[name] = part.budget.exchange(
                    part.limit, others, demand=demand, factor=factor, is_heard=self._is_heard
                )
                equal = part.limit * self._least_factor(url, now_s) / (1 + len(others))
                bucket.set_rate(part.budget.rate, now_s, soon_per_s=equal)
        if self._records is not None and (not self._is_heard or _differs(own, self._published)):
            await self._publish(self._records, own)

    async def _publish(self, records: Records, own: dict[str, NodeRate]) -> None:
        self._is_heard = False
        rates = {name: PublishedRate(rate.demand, rate.rate, rate.factor) for name, rate in own.items()}
        record = msgspec.json.encode(PublishedRates(rates))
        await records.put(f"{PREFIX}/{self._node}", record, leased=True)
        self._published, self._is_heard = own, True


def _differs(rates: dict[str, NodeRate], published: dict[str, NodeRate]) -> bool:
    """Return whether others must hear of these rates."""
    if rates.keys() != published.keys():
        return True
    return any(
        abs(rate.rate - published[name].rate) > STEADY_SHARE * published[name].rate
        or abs(rate.demand - published[name].demand) > STEADY_SHARE * max(rate.rate, published[name].demand)
        or abs(rate.factor - published[name].factor) > STEADY_SHARE
        or (rate.factor == 1.0) != (published[name].factor == 1.0)
        for name, rate in rates.items()
    )
