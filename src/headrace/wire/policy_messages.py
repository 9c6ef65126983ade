"""Define the messages about policies, as `messages.py` defines all others."""

from __future__ import annotations

from typing import Annotated

import msgspec

from headrace.base.namespace_path import PATH_BYTES_MAX
from headrace.policy.limits import POLICY_AUTHOR_MAX, POLICY_TEXT_MAX, TRIAL_LIMIT_S, TRIAL_LIMIT_S_MAX
from headrace.wire.message import Message


class PolicySet(Message, frozen=True):
    """Put a policy in force on all nodes. base: the version that it was made from; None: any. → PolicyShown or Failure,
    which lists all faults."""

    text: Annotated[str, msgspec.Meta(max_length=POLICY_TEXT_MAX)]
    author: Annotated[str, msgspec.Meta(max_length=POLICY_AUTHOR_MAX)] = ""
    base: int | None = None


class PolicyAsk(Message, frozen=True):
    """Return a version of the policy; 0: the one in force. → PolicyShown."""

    number: int = 0


class PolicyRollBack(Message, frozen=True):
    """Put an earlier version of the policy in force again; 0: the one before. → PolicyShown."""

    number: int = 0
    author: Annotated[str, msgspec.Meta(max_length=POLICY_AUTHOR_MAX)] = ""


class PolicyExplain(Message, frozen=True):
    """Say what the policy means for a path, which need not exist. → PolicyExplained."""

    path: Annotated[bytes, msgspec.Meta(max_length=PATH_BYTES_MAX)]


class PolicyTry(Message, frozen=True):
    """Say what a policy would change, and change nothing. limit_s: seconds for all nodes together. → PolicyTried."""

    text: Annotated[str, msgspec.Meta(max_length=POLICY_TEXT_MAX)]
    limit_s: Annotated[int, msgspec.Meta(ge=1, le=TRIAL_LIMIT_S_MAX)] = TRIAL_LIMIT_S


class PolicyAdvise(Message, frozen=True):
    """Say what another size of the cache or another policy would do. → PolicyAdvised."""


class PolicyVersionRow(msgspec.Struct, frozen=True):
    """A version of the policy that is kept. author: as its command was told. set_at_s: seconds since 1970."""

    number: int
    author: str
    set_at_s: float


class PolicyShown(Message, frozen=True):
    """A version of the policy, and all that are kept, the one in force last. number: 0 where none was set. unanswered:
    nodes that did not check it before it was set, and why. warnings: what the version in force asks for in vain."""

    number: int
    text: str
    versions: list[PolicyVersionRow]
    unanswered: dict[str, str] = msgspec.field(default_factory=dict)
    warnings: list[str] = msgspec.field(default_factory=list)


class PolicyDecision(msgspec.Struct, frozen=True):
    """An effect on a path. rule: the number of the rule that decided it, from 1, and line, where it is written; 0: no
    rule did. source: "rule", "tenant", "configuration" or "default"."""

    effect: str
    value: str
    source: str
    rule: int = 0
    line: int = 0


class PolicyExplained(Message, frozen=True):
    decisions: list[PolicyDecision]


class PolicyOutcome(msgspec.Struct, frozen=True):
    """A change that a policy makes for cached files. A file that several nodes have cached counts for each. effect:
    "move" for files that lie in a tier where they may not. example: the path of one of them. copies: made, or as a
    negative number, dropped."""

    effect: str
    before: str
    after: str
    files: int
    bytes: int
    example: str
    copies: int = 0


class PolicyTried(Message, frozen=True):
    """The changes on all nodes together. unanswered: nodes that are not part of the sums, and why. warnings: as in
    PolicyShown, of the policy that was tried."""

    outcomes: list[PolicyOutcome]
    unanswered: dict[str, str] = msgspec.field(default_factory=dict)
    warnings: list[str] = msgspec.field(default_factory=list)


class PolicyOutlook(msgspec.Struct, frozen=True):
    """Says what a tenant reads, and what an LRU cache would hit. name: "" for the whole cache. capacity_bytes: of the
    caches of all nodes, or the tenant's due. unique_bytes: of all files that were read, an estimate. hits: shares of
    the reads by multiples of the capacity; empty after too few reads."""

    name: str
    reads: int
    capacity_bytes: int
    unique_bytes: int
    hits: dict[str, float]


class PolicyAdvice(msgspec.Struct, frozen=True):
    """A sentence of advice. subject: "cache", "rule N", "tenant NAME" or the path of a data set."""

    subject: str
    text: str


class PolicyAdvised(Message, frozen=True):
    outlooks: list[PolicyOutlook]
    advice: list[PolicyAdvice]
