"""What a save can be told, and what it tells: options, the handle, the report."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Literal

from headrace.base.errors import DeadlineExceededError, UsageError
from headrace.checkpoint.plan import MIB
from headrace.checkpoint.retention import Retention
from headrace.checkpoint.storage import ALIGN_BYTES

Compress = Literal["never", "auto", "always"]


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """budget_bytes: host memory for staging; None: twice the first state, half of what is free at most.
    chunk_bytes: what is compared, referred to and checked as one. slot_bytes: what is staged as one.
    threads: that hash and write; copy_threads: that stage. compress: auto asks a sample whether it pays.
    full_share: of changed bytes, above which a save refers to no older pack. chain_max: packs of older saves that a
    checkpoint of one rank may refer to. timeout_s: how long ranks wait for each other.
    retention: applied by rank 0 after each commit; None: every checkpoint stays."""

    budget_bytes: int | None = None
    chunk_bytes: int = 8 * MIB
    slot_bytes: int = 64 * MIB
    threads: int = 2
    copy_threads: int = 2
    compress: Compress = "never"
    full_share: float = 0.6
    chain_max: int = 8
    timeout_s: float = 600.0
    retention: Retention | None = None

    def __post_init__(self) -> None:
        if self.chunk_bytes <= 0 or self.chunk_bytes % ALIGN_BYTES:
            raise UsageError(f"chunk_bytes={self.chunk_bytes}", why=f"not a multiple of {ALIGN_BYTES}")
        if self.slot_bytes <= 0 or self.slot_bytes % self.chunk_bytes:
            raise UsageError(f"slot_bytes={self.slot_bytes}", why="not a multiple of chunk_bytes")
        if self.compress not in ("never", "auto", "always"):
            raise UsageError(f"compress={self.compress!r}", why="it is never, auto or always")
        if self.threads < 1 or self.copy_threads < 1 or self.chain_max < 1:
            raise UsageError("options of a save", why="threads, copy_threads and chain_max are at least 1")


@dataclass(frozen=True, slots=True)
class SaveResult:
    """Of one rank. data_bytes: of all its leaves; written_bytes: of chunks that were new, before compression;
    stored_bytes: of its new pack. stopped_s: how long the trainer was stopped; took_s: until the commit."""

    step: int
    save: str
    full: bool
    data_bytes: int
    written_bytes: int
    stored_bytes: int
    stopped_s: float
    took_s: float


@dataclass
class SaveHandle:
    """A save under way. Committed when `wait` returns."""

    step: int
    stopped_s: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event, repr=False)
    _saved: SaveResult | None = None
    _error: BaseException | None = None
    _told: bool = False

    @property
    def done(self) -> bool:
        """Committed or failed."""
        return self._over.is_set()

    def wait(self, timeout_s: float | None = None) -> SaveResult:
        """Blocks until the checkpoint is committed: it survives a kill and a power loss, and is what `load` finds.

        Raises what the save failed with; DeadlineExceededError when timeout_s is up, the save goes on.
        """
        if not self._over.wait(timeout_s):
            raise DeadlineExceededError(f"checkpoint of step {self.step}", why="it is still being saved")
        self.raise_error()
        assert self._saved is not None
        return self._saved

    def settle(self) -> None:
        """Blocks until it is committed or has failed, and raises nothing."""
        self._over.wait()

    def raise_error(self) -> None:
        """What it failed with, if it did."""
        if self._error is not None:
            self._told = True
            raise self._error

    @property
    def error_untold(self) -> bool:
        """It failed, and nobody has heard of it yet."""
        return self._error is not None and not self._told

    def finish(self, outcome: SaveResult | BaseException) -> None:
        """For the saver."""
        if isinstance(outcome, BaseException):
            self._error = outcome
        else:
            self._saved = outcome
        self._over.set()
