"""What the peers' door asks of the rooms below it, and how: on the node's loop, each call with a limit in time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from headrace.base.errors import DeadlineExceededError, HeadraceError
from headrace.base.model import ObjectMetadata
from headrace.wire.messages import Done
from headrace.wire.peer_messages import (
    DirtyNamesChanged,
    FailoverReport,
    FileRange,
    HandoverAnswer,
    InvalidateListing,
    ListPending,
    ListShared,
    LookupShared,
    Names,
    OfferHandover,
    PendingNamesPage,
    QueryFailover,
    RecallLease,
    Replicate,
    ReplicateAhead,
    ReportCorruption,
    ResolveVersion,
    VersionResolved,
)

log = logging.getLogger(__name__)

OPEN_LIMIT_S = 30.0
"""Of what fetches nothing."""
WORK_LIMIT_S = 3600.0
"""Of what asks an origin or another node. The asker has a limit of its own and hangs up, which ends it here, too."""

Result = TypeVar("Result")


class OpenFileRange(Protocol):
    """The bytes that were asked for of one file."""

    async def wait(self, start: int, end: int) -> None:
        """start..end is in the cache file on return. HeadraceError."""
        ...

    def ready(self, start: int, end: int) -> bool:
        """Whether start..end can be sent now. Any thread; not while somebody waits."""
        ...

    @property
    def steady(self) -> bool:
        """False: the bytes may change while they are sent, and have no checksums yet."""
        ...

    def fileno(self) -> int:
        """Of the cache file, after ready or wait."""
        ...

    def checksum(self, block: int) -> int:
        """xxh3 of a whole block that is ready."""
        ...

    def extras(self) -> ObjectMetadata | None:
        """What is known of the file beside its bytes, after ready or wait."""
        ...

    def close(self) -> None: ...


Opened = Sequence[OpenFileRange | HeadraceError]


class PeerService(Protocol):
    """Called on the node's loop. Raises HeadraceError, which the asker gets as it is."""

    async def open_many(
        self, wanted: list[FileRange], *, cached_only: bool, epoch: int
    ) -> Sequence[OpenFileRange | HeadraceError]:
        """One for each, in order. Quick: fetches nothing."""
        ...

    async def names(self, request: ListShared | LookupShared) -> list[Names]: ...

    async def forget(self, request: InvalidateListing) -> None: ...

    async def take(self, request: OfferHandover) -> HandoverAnswer: ...

    async def doubt(self, request: ReportCorruption) -> None: ...

    async def keep(self, request: Replicate | ReplicateAhead) -> None: ...

    async def give_back(self, request: QueryFailover) -> FailoverReport: ...

    async def written(
        self, request: ListPending | DirtyNamesChanged | ResolveVersion | RecallLease
    ) -> PendingNamesPage | VersionResolved | Done: ...


class LoopBridge:
    """The desk, for threads. What comes back are futures: nobody waits in a thread."""

    def __init__(self, desk: PeerService, loop: asyncio.AbstractEventLoop) -> None:
        self.desk = desk
        self._loop = loop

    def call(self, work: Coroutine[Any, Any, Result], what: str, limit_s: float) -> Future[Result]:
        """The future raises HeadraceError only; cancelling it cancels the work."""
        limited = self._limited(work, what, limit_s)
        try:
            return asyncio.run_coroutine_threadsafe(limited, self._loop)
        except RuntimeError:  # the loop is closed: the node is going
            limited.close()
            work.close()
            gone: Future[Result] = Future()
            gone.cancel()
            return gone

    def open_many(
        self, wanted: list[FileRange], *, cached_only: bool, epoch: int, keep: Callable[[Opened], None]
    ) -> Future[Opened]:
        """keep: told on the loop of what was opened, so that it can be closed although the asker left meanwhile and the
        future was cancelled."""
        work = self.desk.open_many(wanted, cached_only=cached_only, epoch=epoch)
        return self.call(self._whole(work, keep), "opening files for a peer", OPEN_LIMIT_S)

    def soon(self, call: Callable[[], None]) -> None:
        """On the loop, after what was asked and cancelled before; here and now when the loop is gone."""
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            call()

    async def _whole(self, work: Coroutine[Any, Any, Opened], keep: Callable[[Opened], None]) -> Opened:
        task = asyncio.ensure_future(work)
        try:
            opened = await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_close_result)
            raise
        keep(opened)
        return opened

    async def _limited(self, work: Coroutine[Any, Any, Result], what: str, limit_s: float) -> Result:
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                return await work
        except HeadraceError:
            raise
        except Exception as error:
            if limit.expired():
                raise DeadlineExceededError(what, why=f"not done within {limit_s:g} s") from None
            log.exception("peer's request failed what=%s", what)
            raise HeadraceError(what, why=repr(error), hint="see the node's log") from error


def close_opened(opened: Opened) -> None:
    for piece in opened:
        if not isinstance(piece, HeadraceError):
            piece.close()


def _close_result(task: asyncio.Task[Opened]) -> None:
    with contextlib.suppress(asyncio.CancelledError, HeadraceError):
        close_opened(task.result())
