"""The write, from the upper layer to the origin. Open this first.

A session writes into the upper layer (`overlay/upper.py`), where it is safe from the death of any process, and tells
the node which paths it touched (`changed`). The node keeps the set of paths that may be dirty, looks at each when it
has been quiet for a moment (`_work_of`), and settles them in rounds (`_settle`): folders and files first, what was
removed after them, so that a file that was renamed is never missing at the origin. `dataplane/removal.py` does each
single one. What no session tells of (it was killed, or wrote through a mapping) is found by looking over the layer, at
the start and now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import stat
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass

from headrace.base.beneath import SafePath
from headrace.base.errors import DeadlineExceededError, HeadraceError
from headrace.base.keyed_lock import KeyedLock
from headrace.base.model import Entry, Version
from headrace.base.write_modes import WriteMode, WriteModes
from headrace.dataplane.action import SyncAction, WriteBackCounts, action_for, by_depth, size_of
from headrace.dataplane.conflicts import ConflictCopies
from headrace.dataplane.demotion import Demoter
from headrace.dataplane.dirty_set import DirtySet
from headrace.dataplane.origin_changes import OriginChangeReconciler
from headrace.dataplane.pending_names import PendingNames
from headrace.dataplane.placement import ReplicaSetRecords
from headrace.dataplane.preconditions import Preconditions
from headrace.dataplane.removal import RemovalPropagator
from headrace.dataplane.replicator import Replicator
from headrace.dataplane.scrub_written import WrittenFilesOfScrub
from headrace.dataplane.snapshots import Snapshots
from headrace.dataplane.upload import Uploader
from headrace.dataplane.upper_quota import UpperQuota
from headrace.dataplane.write_ahead import WriteAhead
from headrace.namespace.tree import Namespace
from headrace.overlay.dirty_throttle import DirtyThrottle
from headrace.overlay.sync_journal import JournalRecord, SyncJournal
from headrace.overlay.upper import Upper, split
from headrace.peer.client import PeerClient
from headrace.ring.view import ClusterView
from headrace.store.store import Store

log = logging.getLogger(__name__)

TOGETHER_MAX = 64
"""Puts and removals at one time."""
ROUND_PATHS_MAX = 4096
LOOK_OVER_S = 30.0
LOOK_OVER_SHARE = 20
"""How many times as long as it took the next look is away, at least: of a million names it takes seconds."""
BYTES_S_MIN = 4 << 20
"""How slow an upload may be before it counts as hanging."""
AGAIN_S, LATER_S = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class WriteBackSettings:
    """delay_s: how long a path is quiet before it is persisted. timeout_s: of a request to an origin. layer_bytes_max:
    what the layer may take before clean files leave it, and what may wait before writers are slowed down."""

    delay_s: float
    timeout_s: float
    layer_bytes_max: int


class WriteBack:
    """on_written: told paths whose meaning changed, and by which session (0: by the node). announce: tells other nodes
    of folders that changed at their origin."""

    def __init__(
        self,
        namespace: Namespace,
        upper: Upper,
        known: SyncJournal,
        modes: WriteModes,
        threads: Executor,
        settings: WriteBackSettings,
        *,
        on_written: Callable[[list[bytes], int], None],
        announce: Callable[[set[bytes]], Awaitable[None]],
    ) -> None:
        self._announce = announce
        self._namespace = namespace
        self._upper = upper
        self._known = known
        self._modes = modes
        self._threads = threads
        self._settings = settings
        self._on_written = on_written
        self._turns = KeyedLock()
        self._believed = Preconditions(namespace, upper, known, ask_others=lambda: self.ask_others())
        self._write_ahead = WriteAhead(known.sync, threads)
        self._aside = ConflictCopies(namespace, upper, known, on_written=self._changed_here)
        self._puts = Uploader(
            *(namespace, upper, known, self._believed, threads),
            limit_s=lambda size: settings.timeout_s + size / BYTES_S_MIN,
            aside=self._aside,
            write_ahead=self._write_ahead,
        )
        self._persist = RemovalPropagator(
            *(namespace, upper, known, self._believed, self._turns, self._write_ahead),
            aside=self._aside,
            limit_s=settings.timeout_s,
            on_written=self._changed_here,
        )
        self._superseded = OriginChangeReconciler(
            *(namespace, upper, known),
            limit_s=settings.timeout_s,
            on_written=lambda paths: self._on_written(paths, 0),
        )
        self._leaving = Demoter(upper, known, namespace, threads, on_left=self._left)
        self._letting_go: asyncio.Task[None] | None = None
        self._dirty = DirtySet()
        self._wake = asyncio.Event()
        self._gate = asyncio.Semaphore(TOGETHER_MAX)
        self._task: asyncio.Task[None] | None = None
        self._suspects = False
        self._tops = {b"/", *modes.tops()}
        self._clearing = asyncio.Lock()
        self._gone_due_s = math.inf
        """When a round looks at what was put aside, though nothing else is dirty."""
        self._room = UpperQuota(settings.layer_bytes_max, DirtyThrottle(upper.pressure_path))
        self._snapshots = Snapshots(upper, modes, self._believed, threads, is_persisted=self._is_persisted)
        self._following: set[asyncio.Task[None]] = set()
        self.copies: Replicator | None = None
        self.told = PendingNames(
            upper,
            known,
            modes,
            needs=lambda path, found: self._work_of(path, upper.at(path), found, known.get(path)),
            is_dirty=lambda path: path in self._dirty,
            persist=self.persist,
        )
        self.ask_others: Callable[[], Awaitable[None]] = _nobody
        """What they persisted in this node's place is known on return."""
        self.counts = WriteBackCounts()

    def move_into(self, store: Store, owns: Callable[[bytes], bool]) -> None:
        """Clean files that leave the layer become cache files of the store, which is on its disk."""
        self._leaving.into(store, owns)
        self._room.measure_by(store)

    def for_scrub(self) -> WrittenFilesOfScrub:
        return WrittenFilesOfScrub(self._known, self._upper.at, drop=self._leaving.drop_damaged)

    async def into_cache(self, path: bytes, entry: Entry) -> bool:
        """Whether the cache has the file on return, because it was clean here as that version, and was moved."""
        return await self._leaving.bring(path, entry)

    def keep_copies(
        self, me: str, peers: PeerClient, view: Callable[[], ClusterView], records: ReplicaSetRecords
    ) -> Replicator:
        """On other nodes, from `start` on."""
        self.copies = Replicator(
            me,
            peers,
            view=view,
            records=records,
            count=self._modes.copies_max,
            at=self._upper.at,
            take=self._snapshots.of,
            names=self._snapshots.names,
        )
        return self.copies

    def settle_by(self, settle: Callable[[bytes, Version], Awaitable[Version | None]]) -> None:
        """By which it is known what the origin has of a file that another node wrote."""
        self._believed.settle_elsewhere = settle

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """What an earlier node left unfinished is known on return, and is being worked on."""
        for top in self._modes.tops():
            self._upper.at(top).make_folders(0o755)
        await self._clear_work()
        self._namespace.in_flight.append(self._known.unsure)
        await self._superseded.expect(await self.look_over())
        self._task = asyncio.ensure_future(self._run())
        if self.copies is not None:
            self.copies.on_view()
        self.told.start(self._dirty)

    async def stop(self) -> None:
        """What is under way is broken off; it is begun anew by the next node."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for task in self._following:
            task.cancel()
        await self.told.stop()
        if self._letting_go is not None:
            self._letting_go.cancel()
            await asyncio.gather(self._letting_go, return_exceptions=True)
        if self.copies is not None:
            self.copies.stop()
        self._room.close()
        unsure = self._namespace.in_flight
        unsure[:] = [one for one in unsure if one is not self._known.unsure]
        await self._write_ahead.stop()
        self._known.close()
        self._upper.close()

    async def _clear_work(self) -> None:
        """A session that died may have left a folder half on its way to another name, or to where what is put aside
        lies."""
        moved = await self._in_thread(self._upper.clear_work)
        if moved:
            self._changed_here(moved)
        if self._put_aside():
            self._gone_due_s = 0.0

    def _hide(self, rows: list[JournalRecord]) -> None:
        """What these are of is to be removed at the origin, if it is there."""
        with self._upper.lock:
            hidden = [self._upper.hide_missing(row.path, None, directory=row.is_directory) for row in rows]
        self._changed_here([path for path in hidden if path is not None])

    # ------------------------------------------------------------ what is dirty

    def changed(self, paths: Iterable[bytes], source: int) -> None:
        """A session wrote these."""
        told = list(paths)
        self._note(told, self._settings.delay_s)
        self._copy(told)
        self.told.tell(told)
        self._on_written(told, source)

    def writing(self, path: bytes) -> None:
        """A session has the file open and writes, or will."""
        if self.copies is not None and self._modes.copies(path) > 1:
            task = asyncio.ensure_future(self.copies.follow(path, self._modes.copies(path)))
            self._following.add(task)
            task.add_done_callback(self._following.discard)

    def names_changed(self, paths: Iterable[bytes]) -> None:
        """A listing says something else of these than the index did."""
        if self._superseded.suspect(paths):
            self._suspects = True
            self._wake.set()

    def _changed_here(self, paths: list[bytes]) -> None:
        self._note(paths, 0.0)
        self.told.tell(paths)
        self._on_written(paths, 0)

    def _note(self, paths: Iterable[bytes], delay_s: float) -> None:
        now_s = time.monotonic()
        for path in paths:
            if self._modes.of(path) in (WriteMode.BACK, WriteMode.THROUGH):
                one = self._dirty.add(path, now_s, delay_s=delay_s)
                self._dirty.resize(one, size_of(self._upper.at(path)))
                one.due_s = min(now_s + delay_s, max(one.due_s, one.since_s + 10 * delay_s))
                self._wake.set()

    async def look_over(self) -> list[tuple[JournalRecord, os.stat_result]]:
        """Finds whatever is dirty. Reads all names of the layer, in a thread. → what is clean."""
        self._known.forget_old_removals()
        self._hide(self._persist.unheard())
        rows = {row.path: row for row in self._known.all()}
        found: list[tuple[bytes, int]]
        clean: list[tuple[JournalRecord, os.stat_result]]
        found, clean, self._room.used_bytes = await self._in_thread(self._look_over, rows)
        now_s = time.monotonic()
        for path, size in found:
            self._dirty.add(path, now_s, size, delay_s=self._settings.delay_s)
        if found:
            self._wake.set()
        self._let_go(clean)
        return clean

    def _look_over(
        self, rows: dict[bytes, JournalRecord]
    ) -> tuple[list[tuple[bytes, int]], list[tuple[JournalRecord, os.stat_result]], int]:
        """What is dirty: (path, bytes); what is clean; bytes of all."""
        found: list[tuple[bytes, int]] = []
        clean: list[tuple[JournalRecord, os.stat_result]] = []
        total = 0
        for path, seen in self._upper.walk():
            total += seen.st_blocks * 512
            if self._modes.of(path) not in (WriteMode.BACK, WriteMode.THROUGH):
                continue
            row = rows.get(path)
            if self._work_of(path, self._upper.at(path), seen, row) is not None:
                found.append((path, seen.st_size))
            elif row is not None and stat.S_ISREG(seen.st_mode):
                clean.append((row, seen))
        return found, clean, total

    def _let_go(self, clean: list[tuple[JournalRecord, os.stat_result]]) -> None:
        """Clean files leave the layer when it takes more than its share; what is persisted doesn't wait for that."""
        surplus = self._room.surplus_bytes
        if surplus > 0 and (self._letting_go is None or self._letting_go.done()):
            self._letting_go = asyncio.ensure_future(self._leave(clean, surplus))

    async def _leave(self, clean: list[tuple[JournalRecord, os.stat_result]], surplus: int) -> None:
        try:
            await self._leaving.leave(clean, surplus)
        except Exception:
            log.exception("clean files could not leave the layer")  # at the next look again

    def _left(self, path: bytes, freed: int) -> None:
        self._room.left(freed)
        self.counts.let_go += 1
        self._on_written([path], 0)

    def _work_of(
        self, path: bytes, at: SafePath, found: os.stat_result, row: JournalRecord | None
    ) -> SyncAction | None:
        """What a path needs; None: nothing."""
        return action_for(path, at, found, row, is_top=path in self._tops)

    # ------------------------------------------------------------ copies

    async def secure(self, path: bytes) -> None:
        """What is at a path, and below it, has what its mode promises on return: the origin, or so many nodes. Where
        there are not so many, the origin has it instead. HeadraceError: neither."""
        copies = self._modes.copies(path)
        await self.told.enter(path)
        if self._modes.of(path) is WriteMode.BACK and copies < 2:
            return
        if self.copies is None or copies < 2:
            await self.persist(path)
            return
        below = [one for one, _ in self._upper.walk(path)] or [path]
        self._note(below, self._settings.delay_s)
        try:
            await asyncio.gather(*(self.copies.secure(one, copies) for one in below))
        except HeadraceError as error:
            log.warning("no copy, so the origin has it first path=%s error=%s", os.fsdecode(path), error)
            await self.persist(path)

    def _copy(self, paths: Iterable[bytes]) -> None:
        """These changed here, or at the origin: the holders of their copies are told."""
        if self.copies is not None:
            below = [one for path in paths for one, _ in self._upper.walk(path)]
            self.copies.note([one for one in {*paths, *below} if self._modes.copies(one) > 1])

    def _is_persisted(self, path: bytes, at: SafePath, found: os.stat_result) -> bool:
        if not stat.S_ISREG(found.st_mode):
            return False
        return self._work_of(path, at, found, self._known.get(path)) is None

    # ------------------------------------------------------------ persisting

    async def persist(self, path: bytes) -> None:
        """What was written at and below a path is at the origin on return. The HeadraceError of the first path that
        could not be persisted; it stays dirty."""
        await self._note_below(path)
        begun_s, renamed = time.monotonic(), self._aside.count
        while True:
            mine = self._dirty.below(path, since_s=begun_s)
            if not mine and not self._put_aside():
                if self._aside.count == renamed:
                    return
                # what got another name is to be there, too
                begun_s, renamed = time.monotonic(), self._aside.count
                continue
            errors = await self._settle([*self._aside.in_the_way(path), *mine])
            if errors:
                raise errors[0]
            if self._dirty.below(path, since_s=begun_s):
                await asyncio.sleep(AGAIN_S)

    async def remember(self) -> None:
        """That all is persisted which is, is known after a power loss, too. StoreError."""
        await self._write_ahead.flush()

    def soon(self, path: bytes) -> None:
        """What is known to be dirty at and below a path is persisted without waiting for quiet."""
        self._dirty.hasten(path)
        self._wake.set()

    async def _note_below(self, path: bytes) -> None:
        self._hide(self._persist.unheard())
        rows = {path: self._known.get(path), **self._known.below(path)}

        def dirty() -> list[tuple[bytes, int]]:
            found = []
            for one, seen in self._upper.walk(path):
                if self._modes.of(one) in (WriteMode.BACK, WriteMode.THROUGH) and self._work_of(
                    one, self._upper.at(one), seen, rows.get(one)
                ):
                    found.append((one, seen.st_size))
            return found

        now_s = time.monotonic()
        is_folder = self._upper.at(path).is_folder()
        for one, size in await self._in_thread(dirty) if is_folder else dirty():
            self._dirty.add(one, now_s, size)

    async def _run(self) -> None:
        looked_s, pause_s, full_due_s = time.monotonic(), LOOK_OVER_S, 0.0
        while True:
            self._wake.clear()
            now_s = time.monotonic()
            due = self._dirty.due(now_s, ROUND_PATHS_MAX)
            try:
                if self._suspects:
                    self._suspects = False
                    await self._superseded.look()
                if due or now_s >= self._gone_due_s:
                    await self._settle(due)
                elif now_s - looked_s > pause_s or (self._room.disk_is_full() and now_s >= full_due_s):
                    await self._clear_work()
                    await self.look_over()
                    looked_s = time.monotonic()
                    pause_s = max(LOOK_OVER_S, LOOK_OVER_SHARE * (looked_s - now_s))
                    full_due_s = looked_s + max(LATER_S, LOOK_OVER_SHARE * (looked_s - now_s))
                    await self._superseded.look()
            except Exception:
                log.exception("persisting failed")  # the next round must come
                await asyncio.sleep(1.0)
            self._room.slow_writers(self.waiting(b"/")[1])
            if self._known.wants_checkpoint:
                try:
                    await self._in_thread(self._known.checkpoint)
                except HeadraceError as error:
                    log.warning("table not emptied of its log error=%s", error)
            await self._sleep()

    async def _sleep(self) -> None:
        next_s = min(self._gone_due_s, self._dirty.next_due_s() or math.inf)
        wait_s = min(LATER_S if self._room.disk_is_full() else LOOK_OVER_S, next_s - time.monotonic())
        if wait_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.02, wait_s)):
                    await self._wake.wait()

    async def _settle(self, paths: list[bytes]) -> list[HeadraceError]:
        """One round. What was removed waits for what was put: a file that was renamed is at its new name first."""
        self._hide(self._persist.unheard())
        works = self._works_of(paths)
        changed = self._folders_of(works)
        try:
            return await self._do(works)
        finally:
            if works:
                self._copy(works)
                await self._announce(changed)
                self.told.tell(works, below=False)
                self._suspects = self._suspects or self._superseded.waits
                self._write_ahead.flush_soon()

    def _folders_of(self, paths: Iterable[bytes]) -> set[bytes]:
        """Whose listings change: those of the paths; and, where the origin has no such folder yet (a mode's, which
        nobody made), the one above it."""
        folders = {split(path)[0] for path in paths}
        for folder in list(folders):
            while folder != b"/" and self._namespace.entry_at(folder) is None:
                folder = split(folder)[0]
                folders.add(folder)
        return folders

    async def _do(self, works: dict[bytes, SyncAction]) -> list[HeadraceError]:
        errors = await self._clear_gone()
        errors += await self._each([p for p, work in works.items() if work is SyncAction.CLEAR], self._clear)
        for level in by_depth(path for path, work in works.items() if work is SyncAction.MAKE):
            errors += await self._each(level, self._make_directory)
        errors += await self._each([p for p, work in works.items() if work is SyncAction.PUT], self._put)
        removed = [path for path, work in works.items() if work is SyncAction.REMOVE]
        if errors:
            self._later(removed)
            return errors
        gone: list[bytes] = []
        errors += await self._each(removed, lambda path: self._remove(path, gone))
        errors += await self._unhide(gone)
        folders = by_depth(path for path, work in works.items() if work is SyncAction.REMOVE_DIRECTORY)
        for level in reversed(folders):
            errors += await self._each(level, self._remove_directory)
        return errors

    def _works_of(self, paths: Iterable[bytes]) -> dict[bytes, SyncAction]:
        """What each path needs now; those that need nothing are clean. A folder that came from elsewhere brings all
        that is in it."""
        works: dict[bytes, SyncAction] = {}
        for path in paths:
            one = self._dirty.get(path)
            if one is None or path in works:  # of a folder that came before
                continue
            at = self._upper.at(path)
            found = at.seen()
            if found is None:
                if path not in self._turns:  # else a put of it is under way, and sees to it
                    self._gone(path)
                continue
            work = self._work_of(path, at, found, self._known.get(path))
            if work is None:
                self._dirty.drop(path)
            else:
                works[path] = work
                self._dirty.resize(one, found.st_size if work is SyncAction.PUT else 0)
            if work in (SyncAction.CLEAR, SyncAction.MAKE, SyncAction.REMOVE_DIRECTORY):
                self._note_children(path, works)
        return works

    def _gone(self, path: bytes) -> None:
        """Nothing is at the path any more, and nothing hides it."""
        self._dirty.drop(path)
        self._hide(self._persist.went(path))

    def _note_children(self, top: bytes, works: dict[bytes, SyncAction]) -> None:
        now_s, rows = time.monotonic(), self._known.below(top)
        for path, found in self._upper.walk(top):
            if path == top or path in works:
                continue
            work = self._work_of(path, self._upper.at(path), found, rows.get(path))
            if work is not None:
                one = self._dirty.add(path, now_s)
                self._dirty.resize(one, found.st_size if work is SyncAction.PUT else 0)
                works[path] = work

    async def _each(
        self, paths: list[bytes], work: Callable[[bytes], Awaitable[None]]
    ) -> list[HeadraceError]:
        """So many at one time as there may be."""
        errors: list[HeadraceError] = []
        left = iter(paths)

        async def some() -> None:
            for path in left:
                error = await self._one(path, work)
                if error is not None:
                    errors.append(error)

        await asyncio.gather(*(some() for _ in paths[:TOGETHER_MAX]))
        return errors

    async def _one(self, path: bytes, work: Callable[[bytes], Awaitable[None]]) -> HeadraceError | None:
        """One path at a time, however many rounds want it."""
        async with self._gate, self._turns.at(path):
            try:
                one = self._dirty.get(path)
                if one is not None:
                    noted = one.noted
                    await work(path)
                    if one.noted != noted and self._needs_work(path):  # it became something else meanwhile
                        self._note([path], self._settings.delay_s)
                return None
            except HeadraceError as error:
                self._failed(path, error)
                return error
            except OSError as error:  # the layer changed under us: looked at again
                log.info("not persisted, again path=%s error=%s", os.fsdecode(path), error)
                self._later([path])
                return DeadlineExceededError(os.fsdecode(path), why=str(error))

    def _needs_work(self, path: bytes) -> bool:
        at = self._upper.at(path)
        found = at.seen()
        return found is None or self._work_of(path, at, found, self._known.get(path)) is not None

    def _failed(self, path: bytes, error: HeadraceError) -> None:
        one = self._dirty.get(path)
        self.counts.failures += 1
        if one is None:
            return
        one.failed(str(error))
        say = log.warning if one.attempts in (1, 5) else log.info
        say("not persisted, again later path=%s error=%s", os.fsdecode(path), error)

    def _later(self, paths: Iterable[bytes]) -> None:
        self._dirty.postpone(paths, LATER_S)

    async def _make_directory(self, path: bytes) -> None:
        changed = await self._persist.make_directory(path)
        self._dirty.drop(path)
        self._note(changed, 0.0)

    async def _put(self, path: bytes) -> None:
        before = self._dirty[path]
        await self._persist.unmake(path)
        done = await self._puts.put(path)
        if done is not None:
            self.counts.files_persisted += 1
            self.counts.bytes_persisted += done.size_bytes
        self._dirty.drop(path, only=before)
        if done is not None:
            self._note(done.changed, self._settings.delay_s)

    async def _clear_gone(self) -> list[HeadraceError]:
        """Removed directories in whose place a file is now: where the origin has real folders, they are in its way."""
        async with self._clearing:
            self._gone_due_s = math.inf
            try:
                await self._persist.remove_gone(self._put_aside())
            except HeadraceError as error:
                log.info("removed folders are still at the origin error=%s", error)
                self._gone_due_s = time.monotonic() + LATER_S
                self._wake.set()
                return [error]
        return []

    def _put_aside(self) -> list[tuple[SafePath, bytes]]:
        """What is to be removed at the origin: nothing of mode `local`, whose settings may be others some day."""
        aside = self._upper.put_aside()
        return [one for one in aside if self._modes.of(one[1]) in (WriteMode.BACK, WriteMode.THROUGH)]

    async def _clear(self, path: bytes) -> None:
        await self._persist.clear(path)
        await self._make_directory(path)  # nothing for what is no directory

    async def _remove(self, path: bytes, gone: list[bytes]) -> None:
        one = self._dirty[path]
        if await self._persist.remove(path, self._upper.at(path)):
            self.counts.removed += 1
            gone.append(path)
        else:
            self._dirty.drop(path, only=one)

    async def _unhide(self, gone: list[bytes]) -> list[HeadraceError]:
        """Listings that began before the removal may bring the names back; one that begins now does not, and then the
        whiteouts can go."""
        errors: list[HeadraceError] = []
        stale: set[bytes] = set()
        for directory in {split(path)[0] for path in gone}:
            try:
                await self._namespace.refresh_path(directory)
            except HeadraceError as error:
                log.info("listing failed path=%s error=%s", os.fsdecode(directory), error)
                stale.add(directory)
                errors.append(error)
        for path in gone:
            if split(path)[0] not in stale and self._persist.drop_whiteout(path):
                self._dirty.drop(path)
                if self._upper.at(path).exists():  # it came back meanwhile, perhaps as it was
                    self._note([path], 0.0)
            else:
                self._later([path])
        return errors

    async def _remove_directory(self, path: bytes) -> None:
        if await self._persist.remove_directory(path):
            self._dirty.drop(path)
        else:
            self._later([path])

    # ------------------------------------------------------------ telling

    def waiting(self, path: bytes) -> tuple[int, int]:
        """Names and bytes at and below a path that are not yet persisted."""
        return self._dirty.waiting(path)

    def failing(self, path: bytes) -> list[tuple[str, str]]:
        """Those of them that failed: (path, reason)."""
        return self._dirty.failing(path)

    def forget_conflicts(self) -> None:
        self._known.forget_conflicts([one.path for one in self._known.conflicts()])

    @property
    def known(self) -> SyncJournal:
        return self._known

    @property
    def has_written(self) -> bool:
        """Whether the layer has anything."""
        return bool(self._upper.at(b"/").names())

    @property
    def upper_bytes(self) -> int:
        """What the layer takes of the disk, when it was last looked over."""
        return self._room.used_bytes

    def status(self) -> dict[str, object]:
        """What is not yet persisted: how many names, how many bytes, how old."""
        return {
            "mode": self._modes.text(),
            **self._dirty.status(),
            "upper_bytes": self._room.used_bytes,
            "let_go": self.counts.let_go,
            "slowed_s": self._room.pause_s,
            **({} if self.copies is None else self.copies.status()),
            **self.told.status(),
            "files_persisted": self.counts.files_persisted,
            "bytes_persisted": self.counts.bytes_persisted,
            "removed": self.counts.removed,
            "failures": self.counts.failures,
            "conflicts": [
                {"path": os.fsdecode(one.path), "kept": os.fsdecode(one.kept), "why": one.why}
                for one in self._known.conflicts()
            ],
        }

    async def _in_thread(self, work: Callable[..., object], *arguments: object):  # type: ignore[no-untyped-def]
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)


async def _nobody() -> None:
    pass
