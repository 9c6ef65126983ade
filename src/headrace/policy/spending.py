"""Account for what the nodes read from origins in a month, and slow background work as the budget runs out."""

from __future__ import annotations

import calendar
import time
from collections.abc import Container, Mapping
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from headrace.base.decoding import decode_json
from headrace.policy.document import ORIGINS_MAX

GIB = 1 << 30
SLOW_FROM = 0.8
"""Share of a month's budget from which on background work is slowed."""
RECORD_BYTES_MAX = 1 << 18
MONTH_PATTERN = r"^[0-9]{4}-[0-9]{2}$"
DEPARTED_MONTHS = 3
DEPARTED_MAX = 500
"""Nodes that left and are still named: if they come back, nothing is counted twice."""
DEPARTED_BYTES_MAX = 1 << 17
"""Bytes of the names of a month. etcd accepts records of 1.5 MB."""
REST_BYTES_MAX = 1 << 17
"""Bytes of the URLs of a sum."""
DEPARTED_RECORD_BYTES_MAX = 1 << 20
NODE_ID_MAX = 300
BYTES_MAX = 1 << 60


class Month(NamedTuple):
    """Names a calendar month in UTC, such as 2026-11. ends_s: seconds since 1970."""

    name: str
    ends_s: float


def month_of(now_s: float) -> Month:
    """Return the month of a time, in seconds since 1970."""
    date = time.gmtime(now_s)
    year, month = (date.tm_year + 1, 1) if date.tm_mon == 12 else (date.tm_year, date.tm_mon + 1)
    return Month(f"{date.tm_year:04}-{date.tm_mon:02}", float(calendar.timegm((year, month, 1, 0, 0, 0))))


class Spending(msgspec.Struct, frozen=True):
    """The record of a node: the bytes that it read in a month from the origins that have a price, by their URLs."""

    month: Annotated[str, Meta(pattern=MONTH_PATTERN)]
    bytes: Annotated[dict[str, Annotated[int, Meta(ge=0, le=BYTES_MAX)]], Meta(max_length=ORIGINS_MAX)] = {}


def decode_spending(raw: bytes) -> Spending:
    """Decode the record of a node. Raises msgspec.DecodeError."""
    if len(raw) > RECORD_BYTES_MAX:
        raise msgspec.ValidationError(f"a record of {len(raw)} bytes: {RECORD_BYTES_MAX} are allowed")
    return decode_json(raw, Spending)


def encode_spending(spending: Spending) -> bytes:
    return msgspec.json.encode(spending)


Amounts = Annotated[dict[str, Annotated[int, Meta(ge=0, le=BYTES_MAX)]], Meta(max_length=ORIGINS_MAX)]
"""Bytes by the URLs of origins."""


class DepartedMonth(msgspec.Struct, frozen=True):
    """Holds what nodes read in a month before they left. nodes: by their ids, those that left last at the end. rest:
    the sum of those that are not named any more."""

    nodes: Annotated[
        dict[Annotated[str, Meta(max_length=NODE_ID_MAX)], Amounts], Meta(max_length=DEPARTED_MAX)
    ] = {}
    rest: Amounts = {}

    def bytes_of(self, url: str, live: Container[str]) -> int:
        """Return what they read of an origin. live: nodes that came back: they count what they read themselves."""
        named = sum(amounts.get(url, 0) for id, amounts in self.nodes.items() if id not in live)
        return named + self.rest.get(url, 0)

    def with_node(self, id: str, amounts: Mapping[str, int]) -> DepartedMonth:
        """Return it with another node. One that left before keeps the larger amount of each origin. Whatever a record
        says, the new one can be decoded."""
        nodes = dict(self.nodes)
        nodes[id] = _largest(larger(nodes.pop(id, {}), amounts))
        rest = self.rest
        while len(nodes) > DEPARTED_MAX or _size_bytes(nodes) > DEPARTED_BYTES_MAX:
            rest = added(rest, nodes.pop(next(iter(nodes))))
        return DepartedMonth(nodes, rest)


class Departed(msgspec.Struct, frozen=True):
    """The record of what the nodes read that left the cluster, by months: the last ones, for clocks that are wrong."""

    months: Annotated[
        dict[Annotated[str, Meta(pattern=MONTH_PATTERN)], DepartedMonth], Meta(max_length=DEPARTED_MONTHS)
    ] = {}

    def with_record(self, id: str, spending: Spending, present: str) -> Departed:
        """Return it with the record of a node that left. Of too many months, those after the present one go first: they
        are of clocks that are wrong, and the budget counts in this one."""
        months = dict(self.months)
        months[spending.month] = months.get(spending.month, DepartedMonth()).with_node(id, spending.bytes)
        names = sorted(months, key=lambda name: (name <= present, name))[-DEPARTED_MONTHS:]
        return Departed({name: months[name] for name in sorted(names)})

    def bytes_of(self, month: str, url: str, live: Container[str]) -> int:
        return self.months[month].bytes_of(url, live) if month in self.months else 0

    def of_node(self, month: str, id: str) -> Mapping[str, int]:
        """Return what a node had read when it left, by origins."""
        return self.months[month].nodes.get(id, {}) if month in self.months else {}


def decode_departed(raw: bytes) -> Departed:
    """Decode the record of the nodes that left. Raises msgspec.DecodeError."""
    if len(raw) > DEPARTED_RECORD_BYTES_MAX:
        raise msgspec.ValidationError(
            f"a record of {len(raw)} bytes: {DEPARTED_RECORD_BYTES_MAX} are allowed"
        )
    return decode_json(raw, Departed)


def larger(amounts: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    """Return the larger amount of each origin."""
    return {url: max(amounts.get(url, 0), others.get(url, 0)) for url in [*amounts, *others]}


def added(amounts: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    """Return the sums, of as many origins as a record may have: those with the largest sums."""
    sums = {url: min(BYTES_MAX, amounts.get(url, 0) + others.get(url, 0)) for url in [*amounts, *others]}
    kept = _largest(sums)
    while _size_bytes(kept) > REST_BYTES_MAX:
        del kept[max(kept, key=len)]
    return kept


def _largest(amounts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(amounts.items(), key=lambda item: -item[1])[:ORIGINS_MAX])


def _size_bytes(amounts: Mapping[str, Mapping[str, int]] | Mapping[str, int]) -> int:
    return len(msgspec.json.encode(amounts))


def background_rate(budget_bytes: float, spent_bytes: float, left_s: float) -> float | None:
    """Return the bytes a second that background work of all nodes may read, so that the rest of a budget lasts to the
    end of the month. None: no limit. 0: the budget is spent. left_s: seconds until that end."""
    if spent_bytes < SLOW_FROM * budget_bytes:
        return None
    return max(0.0, budget_bytes - spent_bytes) / max(left_s, 1.0)
