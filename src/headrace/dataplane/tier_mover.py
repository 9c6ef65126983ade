"""Move cached files between the tiers of a node in the background.

One batch at a time: the choice and the commit run on the disk's threads, the copies in a thread with idle priority for
the disk. The copies yield to reads: they have a rate, take a small share of the time while programs read, and wait
while reads of the origin queue. `store/file_moves.py` has the steps; `store/tier_choice.py` decides which files move.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

from headrace.base.errors import HeadraceError, NoSpaceError
from headrace.base.idle_priority import take_idle_disk_priority
from headrace.base.model import FileId
from headrace.base.tasks import OwnedTasks
from headrace.dataplane.concurrency import Gate
from headrace.store.file_moves import FileMove, is_full
from headrace.store.staged_copy import CopyMismatchError
from headrace.store.store import Store

log = logging.getLogger(__name__)

PAUSE_S = 0.5
"""Seconds between two looks for files to move, while there are none."""
FAILED_PAUSE_S = 5.0
COPY_S = 1.0
"""Seconds of copies after which they are committed."""
READ_SHARE, IDLE_SHARE = 0.04, 0.5
"""Share of the time that copies take of a thread, and of a disk, while somebody reads or nobody does."""
READING_S = 2.0
"""Seconds after a use of a file for which somebody reads. Uses are reported about once a second."""
YIELD_S_MAX = 10.0
"""Most seconds that a batch waits for the origin's reads: under endless load, moves still go on slowly."""


class _StoppedError(Exception):
    """Report that the node stops."""


class MovePace:
    """Limit the copies, in their thread. is_read: whether somebody reads now."""

    def __init__(self, bytes_s: float, is_read: Callable[[], bool]) -> None:
        self._bytes_s = bytes_s
        self._is_read = is_read
        self._resumed_s = time.monotonic()
        self._stopped = threading.Event()

    def begin(self) -> float:
        """Begin to copy, and return the time: what passed before was no copying."""
        self._resumed_s = time.monotonic()
        return self._resumed_s

    def spend(self, count: int) -> None:
        """Wait as long as the copy of so many bytes demands. Raises _StoppedError."""
        worked_s = time.monotonic() - self._resumed_s
        share = READ_SHARE if self._is_read() else IDLE_SHARE
        pause_s = max(worked_s * (1 / share - 1), count / self._bytes_s - worked_s)
        if self._stopped.wait(max(0.0, pause_s)):
            raise _StoppedError
        self._resumed_s = time.monotonic()

    def stop(self) -> None:
        self._stopped.set()


class TierMover:
    """Runs the moves of a store, on the node's loop. bytes_s: most bytes that are copied in a second; 0: none. disk:
    the threads for short blocking work. gate: of the reads of origins."""

    def __init__(self, store: Store, disk: Executor, gate: Gate, *, bytes_s: float) -> None:
        self._store = store
        self._moves = store.moves
        self._disk = disk
        self._gate = gate
        self._is_on = bytes_s > 0 and store.space.tiered.is_tiered
        self._pace = MovePace(max(1.0, bytes_s), self._is_read)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tiers", initializer=take_idle_disk_priority)
        self._tasks = OwnedTasks()
        self._look_from: FileId | None = FileId(0)
        """The last file that was looked at for its place, in a walk over all; None: there is no walk."""
        self._walk = 0
        self._walk_lock = threading.Lock()
        self._turn = 0
        self._uses = (0.0, 0)
        self._failed = 0

    def start(self) -> None:
        if self._is_on:
            self._tasks.start(self._run())

    async def stop(self) -> None:
        self._pace.stop()
        await self._tasks.close()
        self._thread.shutdown()

    @property
    def is_walking(self) -> bool:
        """Return whether a walk over all files is in progress."""
        return self._look_from is not None

    def place_again(self) -> None:
        """Look at all files: the places where they may lie have changed."""
        with self._walk_lock:
            self._look_from = FileId(0)
            self._walk += 1

    def statistics(self) -> dict[str, int]:
        counts = self._moves.counts
        return {
            "files_sunk": counts.files_sunk,
            "files_risen": counts.files_risen,
            "files_replaced": counts.files_replaced,
            "files_dropped": counts.files_dropped,
            "files_failed": self._failed,
            "files_waiting": self._store.space.tiered.choice.waiting,
            "bytes_moved": counts.bytes_moved,
        }

    async def _run(self) -> None:
        while True:
            try:
                has_more = await self._round()
                await asyncio.sleep(0 if has_more else PAUSE_S)
            except _StoppedError:
                return
            except HeadraceError as error:
                log.warning("files can't be moved between the tiers error=%s", error)
                await asyncio.sleep(FAILED_PAUSE_S)
            except Exception:
                log.exception("files can't be moved between the tiers")  # and must go on
                await asyncio.sleep(FAILED_PAUSE_S)

    async def _round(self) -> bool:
        """Move a batch. Return whether there may be more."""
        loop = asyncio.get_running_loop()
        moves, has_more = await loop.run_in_executor(self._disk, self._choose)
        self._store.space.report_evicted()
        while moves:
            moves = await self._move_some(moves)
        return has_more

    async def _move_some(self, moves: list[FileMove]) -> list[FileMove]:
        """Copy files for about a second and commit them. Return the others."""
        loop = asyncio.get_running_loop()
        try:
            await self._yield_to_reads()
            copied, damaged, rest = await loop.run_in_executor(self._thread, self._copy, moves)
            moved = await loop.run_in_executor(self._disk, self._moves.commit, copied)
            for id in damaged:
                log.warning("a cached file does not match its checksums, it is not moved id=%x", id)
                await loop.run_in_executor(self._disk, self._store.verifier.verify, id)
        except BaseException:
            self._moves.abandon(moves)
            raise
        self._store.space.report_evicted()
        self._failed += len(moves) - len(rest) - moved
        if not moved:
            await asyncio.sleep(PAUSE_S)
        return rest

    def _choose(self) -> tuple[list[FileMove], bool]:
        """Return a batch: of misplaced files, of those that rise, and of those that sink in turn."""
        kinds = (self._choose_misplaced, self._moves.choose_rises, self._moves.choose_sinks)
        evicted_files = self._moves.evicted_files
        for _ in kinds:
            kind = kinds[self._turn % len(kinds)]
            self._turn += 1
            moves = kind()
            if moves:
                return moves, True
        has_evicted = self._moves.evicted_files > evicted_files
        return [], has_evicted or self.is_walking or self._store.space.tiered.choice.waiting > 0

    def _choose_misplaced(self) -> list[FileMove]:
        misplaced, moves = self._store.space.tiered.misplaced, list[FileMove]()
        while misplaced and not is_full(moves):
            moves += self._moves.choose_misplaced([misplaced.popleft()])
        start, walk = self._look_from, self._walk
        if moves or start is None:
            return moves
        batch = [cached.id for cached in self._store.index.cached_batch(start)]
        moves = self._moves.choose_misplaced(batch)
        end = moves[-1].cached.id if is_full(moves) else batch[-1] if batch else None
        with self._walk_lock:
            if self._walk == walk:  # else the policy changed meanwhile
                self._look_from = end
        return moves

    def _copy(self, moves: list[FileMove]) -> tuple[list[FileMove], list[FileId], list[FileMove]]:
        """Copy files, in the thread, until a second has passed. Return those that were copied, the ids of damaged
        ones, and the rest. What can't be copied is given up."""
        copied: list[FileMove] = []
        damaged: list[FileId] = []
        end_s = self._pace.begin() + COPY_S
        for number, move in enumerate(moves):
            if number and time.monotonic() > end_s:
                return copied, damaged, moves[number:]
            try:
                self._moves.copy(move, self._pace.spend)
                copied.append(move)
            except HeadraceError as error:
                self._moves.abandon([move])
                if isinstance(error, CopyMismatchError):
                    damaged.append(move.cached.id)
                elif isinstance(error, NoSpaceError):
                    log.warning("a tier has no space for a file error=%s", error)
                else:  # it was evicted just now
                    log.info("a file was not moved error=%s", error)
        return copied, damaged, []

    async def _yield_to_reads(self) -> None:
        """Wait while reads of origins queue."""
        try:
            async with asyncio.timeout(YIELD_S_MAX):
                while self._gate.in_flight and not self._gate.has_spare:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pass

    def _is_read(self) -> bool:
        """Return whether somebody reads now, as far as the node knows."""
        now_s, count = time.monotonic(), self._moves.use_count
        if count != self._uses[1]:
            self._uses = (now_s, count)
        return bool(self._gate.in_flight) or now_s - self._uses[0] < READING_S
