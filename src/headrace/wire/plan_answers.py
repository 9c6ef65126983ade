"""Define the answers to messages about plans, as `messages.py` defines all others."""

from __future__ import annotations

import msgspec

from headrace.plan.estimates import PlanEstimate
from headrace.wire.message import Message


class PlanStarted(Message, frozen=True):
    """known: the node has the names of this data set, so they need not be sent."""

    known: bool


class PlanNoted(Message, frozen=True):
    """used: the node knows a file of the data set in a mount. Otherwise the loader need not report often."""

    used: bool


class PlanRow(msgspec.Struct, frozen=True):
    """The state of one stream. samples: of the epoch. needed_bytes_s: what its deadlines ask of the cache.
    fetched_bytes_s: of all streams of the node. ahead_samples, ahead_s: how far all that comes next is in the cache.
    hits, misses: samples of this epoch whose file was in the cache when they were taken, or not. state: "planned",
    "learning" (the files are not known yet), or "unreliable" (the files turned out to be others).

    A data set that is read without a plan has a row, too. job is its path, and position counts the files that were
    opened in this epoch. issued, right and wrong count its predictions, and model says which one predicts. Its state is
    "predicted", or "observed" while no model predicts.

    estimates: of all plans of the node together; the first one is of its present cache and bandwidth."""

    stream: str
    job: str
    rank: int
    world: int
    state: str
    epoch: int
    position: int
    samples: int
    step_s: float
    needed_bytes_s: float
    fetched_bytes_s: float
    ahead_samples: int
    ahead_s: float
    hits: int
    misses: int
    model: str = ""
    issued: int = 0
    right: int = 0
    wrong: int = 0
    estimates: list[PlanEstimate] = []


class PlanRows(Message, frozen=True):
    rows: list[PlanRow]
