"""Define what the peers' server requires of the node, and call it on the node's loop, with a time limit for each
call."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from headrace.base.errors import DeadlineExceededError, HeadraceError
from headrace.base.model import ObjectMetadata
from headrace.base.tasks import OwnedTasks
from headrace.wire.peer_messages import (
    FailoverReport,
    Fetch,
    HandoverAnswer,
    InvalidateListing,
    ListingRequest,
    Names,
    OfferHandover,
    OriginChanged,
    PendingNamesAnswer,
    PendingNamesRequest,
    QueryFailover,
    ReplicaRequest,
    ReportCorruption,
    TrialAnswer,
    TryPolicy,
)

log = logging.getLogger(__name__)

OPEN_LIMIT_S = 30.0
"""Seconds for work that fetches nothing."""
WORK_LIMIT_S = 3600.0
"""Seconds for work that waits for an origin or another node. The peer has its own limit and disconnects, which
cancels the work here."""

Result = TypeVar("Result")


class OpenFileRange(Protocol):
    """Gives access to the requested bytes of one file."""

    async def wait(self, start: int, end: int) -> None:
        """Wait until start..end is in the cache file. Raise HeadraceError."""
        ...

    def ready(self, start: int, end: int) -> bool:
        """Return whether start..end can be sent now. Callable from any thread, but not while a wait is in progress."""
        ...

    @property
    def steady(self) -> bool:
        """Return False when the bytes may change while they are sent; they have no checksums then."""
        ...

    def fileno(self) -> int:
        """Return the descriptor of the cache file. Valid after ready or wait."""
        ...

    def checksum(self, block: int) -> int:
        """Return the xxh3 of a whole block that is ready."""
        ...

    def extras(self) -> ObjectMetadata | None:
        """Return the metadata of the object, or None when it is not known. Valid after ready or wait."""
        ...

    def close(self) -> None: ...


Opened = Sequence[OpenFileRange | HeadraceError]


class PeerService(Protocol):
    """Answers the requests of peers, on the node's loop. Each HeadraceError is sent to the peer as it is."""

    async def open_many(self, request: Fetch, *, peer: str) -> Sequence[OpenFileRange | HeadraceError]:
        """Return one range or error for each file, in order, without fetching anything. peer: the node that asks."""
        ...

    async def names(self, request: ListingRequest) -> Iterator[Names]: ...

    async def invalidate_listing(self, request: InvalidateListing | OriginChanged) -> None: ...

    async def take_over(self, request: OfferHandover, *, peer: str) -> HandoverAnswer: ...

    async def check_corruption(self, request: ReportCorruption) -> None: ...

    async def replicate(self, request: ReplicaRequest) -> None: ...

    async def report_failover(self, request: QueryFailover) -> FailoverReport: ...

    async def pending_names(self, request: PendingNamesRequest) -> PendingNamesAnswer: ...

    async def try_policy(self, request: TryPolicy) -> TrialAnswer: ...


class LoopBridge:
    """Calls the service from threads. It returns futures, so no thread waits."""

    def __init__(self, service: PeerService, loop: asyncio.AbstractEventLoop) -> None:
        self.service = service
        self._loop = loop
        self._opens = OwnedTasks(HeadraceError)

    def call(self, work: Coroutine[Any, Any, Result], task: str, limit_s: float) -> Future[Result]:
        """Run work on the loop. The future raises only HeadraceError, and cancelling it cancels the work."""
        limited = self._limited(work, task, limit_s)
        try:
            return asyncio.run_coroutine_threadsafe(limited, self._loop)
        except RuntimeError:  # the loop is closed: the node stops
            limited.close()
            work.close()
            cancelled: Future[Result] = Future()
            cancelled.cancel()
            return cancelled

    def open_many(self, request: Fetch, *, peer: str, keep: Callable[[Opened], None]) -> Future[Opened]:
        """Open files. keep: called on the loop with the opened files, so that they can be closed even when the peer
        disconnected meanwhile and the future was cancelled."""
        work = self.service.open_many(request, peer=peer)
        return self.call(self._open_and_keep(work, keep), "opening files for a peer", OPEN_LIMIT_S)

    def soon(self, call: Callable[[], None]) -> None:
        """Run a call on the loop, after the work that was started and cancelled before. Without a loop, run it at
        once."""
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            call()

    async def _open_and_keep(
        self, work: Coroutine[Any, Any, Opened], keep: Callable[[Opened], None]
    ) -> Opened:
        task = self._opens.start(work)
        try:
            opened = await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_close_result)
            raise
        keep(opened)
        return opened

    async def _limited(self, work: Coroutine[Any, Any, Result], task: str, limit_s: float) -> Result:
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                return await work
        except HeadraceError:
            raise
        except Exception as error:
            if limit.expired():
                raise DeadlineExceededError(task, why=f"not finished within {limit_s:g} s") from None
            log.exception("a request of a peer failed task=%s", task)
            raise HeadraceError(task, why=repr(error), hint="see the node's log") from error


def close_opened(opened: Opened) -> None:
    for file in opened:
        if not isinstance(file, HeadraceError):
            file.close()


def _close_result(task: asyncio.Task[Opened]) -> None:
    with contextlib.suppress(asyncio.CancelledError, HeadraceError):
        close_opened(task.result())
