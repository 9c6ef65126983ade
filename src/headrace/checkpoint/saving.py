"""Define a save's interface to its caller: options, handle, result."""

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
    """Configure saves.

    budget_bytes: host memory for staging; None for twice the first state, at most half of the free memory. chunk_bytes:
    unit of comparison, reference and checksum. slot_bytes: unit of staging. threads: for hashing and writing.
    copy_threads: for staging. compress: `auto` decides by a sample whether compression is faster. full_share: share of
    changed bytes above which a save refers to no older pack. chain_max: a save is full if the rank's last checkpoint
    lies in so many packs, its own included. timeout_s: seconds that ranks wait for each other. retention: applied by
    rank 0 after each commit; None keeps every checkpoint.
    """

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
            raise UsageError(f"chunk_bytes={self.chunk_bytes}", why=f"it must be a multiple of {ALIGN_BYTES}")
        if self.slot_bytes <= 0 or self.slot_bytes % self.chunk_bytes:
            raise UsageError(f"slot_bytes={self.slot_bytes}", why="it must be a multiple of chunk_bytes")
        if self.compress not in ("never", "auto", "always"):
            raise UsageError(f"compress={self.compress!r}", why="it must be never, auto or always")
        if self.threads < 1 or self.copy_threads < 1 or self.chain_max < 1:
            raise UsageError(
                "options of a save", why="threads, copy_threads and chain_max must be at least 1"
            )


@dataclass(frozen=True, slots=True)
class SaveResult:
    """Report one rank's save.

    data_bytes: size of all leaves. written_bytes: size of new chunks, before compression. stored_bytes: size of the new
    pack. stopped_s: seconds for which the trainer was stopped. took_s: seconds until the commit.
    """

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
    """Follow a save in the background."""

    step: int
    stopped_s: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event, repr=False)
    _result: SaveResult | None = None
    _error: BaseException | None = None
    _is_error_raised: bool = False

    @property
    def done(self) -> bool:
        """Return whether the save has been committed or has failed."""
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> SaveResult:
        """Block until the checkpoint is committed: it survives a kill and a power loss, and `load` finds it.

        Raises the save's error. Raises DeadlineExceededError after timeout_s, while the save continues.
        """
        if not self._ended.wait(timeout_s):
            raise DeadlineExceededError(f"checkpoint of step {self.step}", why="it is still being saved")
        self.raise_error()
        assert self._result is not None
        return self._result

    def join(self) -> None:
        """Block until the save is committed or has failed. Raises nothing."""
        self._ended.wait()

    def raise_error(self) -> None:
        """Raise the save's error, if it failed."""
        if self._error is not None:
            self._is_error_raised = True
            raise self._error

    @property
    def has_unreported_error(self) -> bool:
        """Return whether the save failed and its error has not been raised yet."""
        return self._error is not None and not self._is_error_raised

    def finish(self, outcome: SaveResult | BaseException) -> None:
        """Set the outcome; the saver calls this."""
        if isinstance(outcome, BaseException):
            self._error = outcome
        else:
            self._result = outcome
        self._ended.set()
