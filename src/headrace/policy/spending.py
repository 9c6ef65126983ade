"""Account for what the nodes read from origins in a month, and slow background work as the budget runs out."""

from __future__ import annotations

import calendar
import time
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from headrace.base.decoding import decode_json
from headrace.policy.document import ORIGINS_MAX

GIB = 1 << 30
SLOW_FROM = 0.8
"""Share of a month's budget from which on background work is slowed."""
RECORD_BYTES_MAX = 1 << 18


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

    month: Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}$")]
    bytes: Annotated[dict[str, Annotated[int, Meta(ge=0, le=1 << 60)]], Meta(max_length=ORIGINS_MAX)] = {}


def decode_spending(raw: bytes) -> Spending:
    """Decode the record of a node. Raises msgspec.DecodeError."""
    if len(raw) > RECORD_BYTES_MAX:
        raise msgspec.ValidationError(f"a record of {len(raw)} bytes: {RECORD_BYTES_MAX} are allowed")
    return decode_json(raw, Spending)


def encode_spending(spending: Spending) -> bytes:
    return msgspec.json.encode(spending)


def background_rate(budget_bytes: float, spent_bytes: float, left_s: float) -> float | None:
    """Return the bytes a second that background work of all nodes may read, so that the rest of a budget lasts to the
    end of the month. None: no limit. 0: the budget is spent. left_s: seconds until that end."""
    if spent_bytes < SLOW_FROM * budget_bytes:
        return None
    return max(0.0, budget_bytes - spent_bytes) / max(left_s, 1.0)
