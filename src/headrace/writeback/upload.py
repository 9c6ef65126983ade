"""Upload files of the upper layer to their origins. docs/format/persist-commits.md has the steps.

Requests dominate the cost of small files. Work before and after a request is therefore done in batches of files that
are at the same step. Calls are on the node's loop; longer work on the disk runs in `threads`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import structs

from headrace.base import failpoint
from headrace.base.beneath import SafePath
from headrace.base.deadline import Deadline
from headrace.base.errors import (
    ConflictError,
    FileInUseError,
    HeadraceError,
    IsADirectoryPathError,
    NotADirectoryPathError,
    NotSupportedError,
    PathNotFoundError,
    StoreError,
)
from headrace.base.file_leases import may_be_written
from headrace.base.file_times import stored_ns
from headrace.base.group_commit import GroupCommit
from headrace.base.model import ObjectMetadata, Version
from headrace.base.os_errors import unread_error
from headrace.namespace.namespace import Namespace
from headrace.origin.origin import Condition, Origin
from headrace.origin.retry import PATIENCE_S
from headrace.origin.source import FilePutSource, UnchangedFileSource
from headrace.overlay.hiding import hide_missing
from headrace.overlay.mark_names import MARKS
from headrace.overlay.marks import base_version, is_whiteout
from headrace.overlay.object_metadata import extras_of
from headrace.overlay.syscalls import begin_write_back, seen_at_rest, tick_left_s, write_back
from headrace.overlay.upper import Upper
from headrace.writeback.action import attributes_of, size_of
from headrace.writeback.conflicts import ConflictCopies
from headrace.writeback.preconditions import QUERIES_MAX, Preconditions
from headrace.writeback.reconcile import AskFirst, PathState, SyncStep, reconcile
from headrace.writeback.sync_journal import ABSENT, JournalRecord
from headrace.writeback.writable_layer import WritableLayer

COMPARE_BYTES = 8 << 20
"""Bytes that are read at once to compare a file with the origin's."""
CONTENT_BYTES_MAX = 256 << 10
"""Largest file that is read when it is opened, because another turn of a thread costs 50 µs. Memory holds as many such
files as uploads run at the same time."""
SYNC_LATER_BYTES_MIN = 64 << 20
"""Smallest file that is sent before its dirty pages are on the disk. They are synced before the upload completes."""
OPEN_BATCH_MAX = 8
"""Most files that one thread opens in a batch, one after the other."""
COMMIT_BATCH_MAX = 64
"""Most uploads whose begin, or whose result, one transaction records."""
UNBATCHED_UPLOADS_MAX = 4
"""Number of uploads in progress up to which a result does not wait for others."""
COMMIT_DELAY_S = 0.004
"""Seconds for which a result waits for others to share its transaction. With more uploads than UNBATCHED_UPLOADS_MAX in
progress, the next transaction takes longer than that."""


@dataclass(frozen=True, slots=True)
class UploadResult:
    """Report an upload. changed: paths that need another look: the file if it was written meanwhile, and its new
    whiteout if it was removed."""

    size_bytes: int
    changed: list[bytes]


@dataclass(frozen=True, slots=True)
class _Opened:
    """Hold a file that is open for upload. base: the version that it replaces. extras: the object's metadata besides
    its bytes."""

    path: bytes
    source: FilePutSource
    status: os.stat_result
    base: Version | None
    extras: ObjectMetadata | None

    def close(self) -> None:
        os.close(self.source.file)


@dataclass(frozen=True, slots=True)
class _Begun:
    """Hold an upload whose begin is in the journal."""

    opened: _Opened
    condition: Condition
    put_id: str


@dataclass(frozen=True, slots=True)
class _Uploaded:
    """Hold an upload that the origin has answered."""

    path: bytes
    status: os.stat_result
    version: Version


class Uploader:
    """Upload files. limit_s: returns the time limit of an upload by its bytes."""

    def __init__(
        self,
        namespace: Namespace,
        layer: WritableLayer,
        preconditions: Preconditions,
        conflicts: ConflictCopies,
        *,
        limit_s: Callable[[int], float],
    ) -> None:
        self._names = namespace.changes
        self._layer = layer
        self._upper = layer.upper
        self._journal = layer.journal
        self._write_ahead = layer.write_ahead
        self._threads = layer.threads
        self._preconditions = preconditions
        self._conflicts = conflicts
        self._limit_s = limit_s
        self._in_progress = 0
        self._opening = GroupCommit(self._open_all, most=OPEN_BATCH_MAX, unclaimed=_close)
        self._beginning = GroupCommit(self._begin_all, most=COMMIT_BATCH_MAX)
        self._committing = GroupCommit(self._commit_all, most=COMMIT_BATCH_MAX, delay_s=COMMIT_DELAY_S)

    async def put(self, path: bytes) -> UploadResult | None:
        """Upload a file. Return None if the path has no file to upload. A ConflictError is handled here; after another
        HeadraceError the file is still dirty."""
        mount, key = self._preconditions.locate(path)
        opened = await self._opened(path)
        if opened is None:
            return None
        self._in_progress += 1
        try:
            uploaded = await self._put_opened(opened, mount.origin, key)
            if uploaded is None:
                return None
            return await self._committing.submit(uploaded, soon=self._in_progress <= UNBATCHED_UPLOADS_MAX)
        finally:
            self._in_progress -= 1
            opened.close()

    async def _opened(self, path: bytes) -> _Opened | None:
        """Open a file once the origin has the version that it replaces."""
        safe_path = self._upper.at(path)
        while True:
            opened = await self._open(path, safe_path)
            if opened is None or not _asks_writer(opened):
                return opened
            opened.close()
            await self._preconditions.resolve_base(path, safe_path)

    async def _open(self, path: bytes, safe_path: SafePath) -> _Opened | None:
        """Open a file. A large one has its own batch, because it may have to wait for the disk."""
        return await self._opening.submit(path, soon=True, alone=size_of(safe_path) > CONTENT_BYTES_MAX)

    async def _open_all(self, paths: list[bytes]) -> list[_Opened | Exception | None]:
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, _open_files, self._layer, paths
        )

    async def _put_opened(
        self, opened: _Opened, origin: Origin, key: str, *, queries_left: int = QUERIES_MAX
    ) -> _Uploaded | None:
        """Upload an open file under its condition. Return None if it was renamed instead, because the origin refused
        it. queries_left: how often the replicas may be queried about a conflict."""
        path, source, status = opened.path, opened.source, opened.status
        deadline = Deadline.after(self._limit_s(status.st_size), patience_s=PATIENCE_S)
        before = self._journal.get(path)
        if before is not None and reconcile(SyncStep.PUT, PathState(before)) is AskFirst.ORIGIN:
            before = await self._preconditions.ask_origin(before, origin, key, deadline)
        begun = await self._beginning.submit(opened, soon=True)
        failpoint.hit("persist.begun")
        attributes = structs.replace(attributes_of(status), put_id=begun.put_id, extras=opened.extras)
        try:
            info = await origin.put(
                key, source, condition=begun.condition, attributes=attributes, deadline=deadline
            )
            version = info.version
        except NotSupportedError as error:
            if not self._conflicts.keep_by_plain_name(path, error):
                self._clear_intent(path, before)
                raise
            self._clear_intent(path, None)
            return None
        except (ConflictError, IsADirectoryPathError, NotADirectoryPathError) as error:
            same = await self._same_at_origin(origin, key, source, deadline)
            if same is None and queries_left and await self._preconditions.query_failover(path):
                return await self._put_opened(opened, origin, key, queries_left=queries_left - 1)
            if same is None:
                self._conflicts.check_blocked(path, error)
                self._conflicts.keep(path, status, str(error))
                return None
            version = same
        failpoint.hit("persist.put")
        return _Uploaded(path, status, version)

    def _clear_intent(self, path: bytes, before: JournalRecord | None) -> None:
        """Restore the row from before the upload. The origin refused the object, so there is no lost answer to ask
        for."""
        if before is None:
            self._journal.drop(path)
        else:
            self._journal.note(before)

    async def _begin_all(self, files: list[_Opened]) -> list[_Begun | Exception]:
        """Record durably that these uploads begin."""
        begun: list[_Begun | Exception] = []
        rows = []
        for opened in files:
            condition = self._preconditions.condition(opened.path, opened.base)
            failpoint.hit("persist.chosen")
            row = self._journal.get(opened.path)
            last = ABSENT if row is None else row.last_removed
            before = condition if isinstance(condition, Version) else last
            rows.append(_row_of(opened.path, opened.status, before, begun=True))
            self._layer.note_directories_above(opened.path)
            begun.append(_Begun(opened, condition, rows[-1].put_id))
        self._journal.note_all(rows)
        await self._write_ahead.flush()
        return begun

    async def _commit_all(self, uploaded: list[_Uploaded]) -> list[UploadResult | Exception]:
        """Record what the origin has: names and journal in one step, under the layer's lock."""
        with self._upper.lock:
            # a name that was removed meanwhile must stay hidden
            hidden = [self._hide_missing(file) for file in uploaded]
            self._names.record_puts(
                [(file.path, file.version, attributes_of(file.status)) for file in uploaded]
            )
            failpoint.hit("persist.shown")
            rows = [_row_of(file.path, file.status, file.version) for file in uploaded]
            self._journal.note_all(rows)
            now = [self._upper.at(file.path).seen() for file in uploaded]
        failpoint.hit("persist.noted")
        puts: list[UploadResult | Exception] = []
        for row, hides, status in zip(rows, hidden, now, strict=True):
            changed = [] if status is not None and row.describes(status) else [row.path]
            puts.append(UploadResult(row.size_bytes, changed if hides is None else [*changed, hides]))
        return puts

    def _hide_missing(self, file: _Uploaded) -> bytes | None:
        """Hide a file that was removed during its upload. Return the path of what hides it. In an exclusive directory
        nothing may: the path is looked at again."""
        if self._layer.is_exclusive(file.path):
            return None
        return hide_missing(self._upper, file.path, file.version)

    async def _same_at_origin(
        self, origin: Origin, key: str, source: FilePutSource, deadline: Deadline
    ) -> Version | None:
        """Return the origin's version if it has the same bytes: this node uploaded them before a crash, or another
        writer did."""
        loop = asyncio.get_running_loop()
        try:
            version = (await origin.head(key, deadline=deadline)).version
            if version.size_bytes != source.size_bytes:
                return None
            for start in range(0, source.size_bytes, COMPARE_BYTES):
                end = min(source.size_bytes, start + COMPARE_BYTES)
                theirs = await origin.read_range(key, start, end, version=version, deadline=deadline)
                ours = await loop.run_in_executor(self._threads, source.pread, start, end)
                if bytes(theirs.body) != bytes(ours):
                    return None
        except PathNotFoundError:
            return None
        return version


def _asks_writer(opened: _Opened) -> bool:
    return reconcile(SyncStep.PUT, PathState(None, opened.base)) is AskFirst.WRITER


def _open_files(layer: WritableLayer, paths: list[bytes]) -> list[_Opened | Exception | None]:
    """Open files for upload, and read the content of small ones; None where the path has no file. The caller closes
    them.

    Dirty pages are on the disk on return, except those of large files. Every later change shows in the ctime, also one
    through a mapping. Blocks.
    """
    upper = layer.upper
    files: dict[bytes, int] = {}
    opened: dict[bytes, _Opened | Exception] = {}
    for path in paths:
        try:
            fd = _open_file(upper.at(path))
        except OSError as error:
            opened[path] = _not_opened(path, error)
        else:
            if fd is not None:
                files[path] = fd
    in_use = {path for path, fd in files.items() if layer.is_exclusive(path) and may_be_written(fd)}
    for path in in_use:  # close it now, so that its pages are not written back at each attempt
        os.close(files.pop(path))
    for fd in files.values():
        with contextlib.suppress(OSError):  # `write_back` below raises the same error
            begin_write_back(fd)
    left_s = max((tick_left_s(os.fstat(fd)) for fd in files.values()), default=0.0)
    if left_s:
        time.sleep(left_s)
    later = {path for path, fd in files.items() if _is_synced_later(upper, fd)}
    opened |= {path: _open_for_writing(path) for path in in_use}
    for path, fd in files.items():
        opened[path] = _prepare(path, fd, later=path in later, alone=layer.is_exclusive(path))
    return [opened.get(path) for path in paths]


def _open_for_writing(path: bytes) -> FileInUseError:
    return FileInUseError(os.fsdecode(path), why="a program has it open for writing")


def _is_synced_later(upper: Upper, fd: int) -> bool:
    """Return whether a file is large enough to be synced later, and no process can write to it now."""
    if os.fstat(fd).st_size < SYNC_LATER_BYTES_MIN:
        return False
    with upper.lock:  # a session opens files under this lock
        return not may_be_written(fd)  # otherwise its pages must be written and protected now


def _prepare(path: bytes, fd: int, *, later: bool, alone: bool) -> _Opened | HeadraceError:
    """Write back an open file, and return it ready for upload; StoreError if the disk fails."""
    name = os.fsdecode(path)
    try:
        if not later:
            write_back(fd)
        status = _at_rest(fd)
        content = os.pread(fd, status.st_size, 0) if status.st_size <= CONTENT_BYTES_MAX else None
        if content is not None and len(content) != status.st_size:
            content = None
        source = _source_of(fd, status, content, name=name, sync=later, alone=alone)
        return _Opened(path, source, status, base_version(fd, path), extras_of(fd, status))
    except OSError as error:
        os.close(fd)
        return (
            error if isinstance(error, HeadraceError) else StoreError(name, why=os.strerror(error.errno or 0))
        )


def _source_of(
    fd: int, status: os.stat_result, content: bytes | None, *, name: str, sync: bool, alone: bool
) -> FilePutSource:
    """Return the source of an upload. alone: no session reports when the file is complete. It must then be closed, and
    stay unchanged until its upload ends. Raises FileInUseError."""
    if not alone:
        return FilePutSource(fd, status.st_size, name=name, content=content, sync=sync)
    if may_be_written(fd):
        raise _open_for_writing(os.fsencode(name))
    ctime_ns = status.st_ctime_ns
    return UnchangedFileSource(fd, status.st_size, ctime_ns=ctime_ns, name=name, content=content, sync=sync)


def _at_rest(fd: int) -> os.stat_result:
    """Wait until all writes that the ctime covers have ended, and a later one would change the ctime. Return fstat."""
    status = seen_at_rest(fd)
    left_s = tick_left_s(status)
    if left_s:  # it was written after the batch was opened
        time.sleep(left_s)
        status = seen_at_rest(fd)
    return status


def _not_opened(path: bytes, error: OSError) -> FileInUseError | StoreError:
    """Return why a file that exists cannot be uploaded now."""
    if error.errno == errno.EWOULDBLOCK:
        return FileInUseError(os.fsdecode(path), why="a program has a lease on it")
    return unread_error(path, error)


def _open_file(safe_path: SafePath) -> int | None:
    """Open a file; None if the path has no regular file. Raises OSError if it cannot be opened now."""
    try:
        fd = safe_path.open(os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        status = safe_path.seen()
        if status is not None and stat.S_ISREG(status.st_mode):
            raise
        return None
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and not (MARKS.single_owner and is_whiteout(status)):
        return fd
    os.close(fd)
    return None


def _close(opened: _Opened | None) -> None:
    if opened is not None:
        opened.close()


def _row_of(path: bytes, status: os.stat_result, version: Version, *, begun: bool = False) -> JournalRecord:
    return JournalRecord(
        *(path, status.st_ino, status.st_ctime_ns, status.st_size),
        version,
        begun,
        mtime_ns=stored_ns(status.st_mtime_ns),
    )
