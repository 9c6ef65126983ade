"""One path of the upper layer to its origin: a put, a removal, a folder made or removed.

Each is conditional on the version that was there when the path was written, so that nothing which somebody else put
there is lost: ours is then kept beside it, under another name, and reported. The steps of a put, and what a crash after
each of them leaves, are in docs/format.md.
Called on the node's loop; what touches the disk for long runs in `threads`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from headrace.base import failpoint
from headrace.base.deadline import Deadline
from headrace.base.errors import (
    ConflictError,
    DirectoryNotEmptyError,
    IsADirectoryPathError,
    NotADirectoryPathError,
    NotSupportedError,
    PathNotFoundError,
    StoreError,
)
from headrace.base.model import Attributes, Entry, Kind, Version
from headrace.layer.calls import begin_write_back, may_be_written, write_back
from headrace.layer.extras import extras_of
from headrace.layer.known import ABSENT, Conflict, KnownTable, Row
from headrace.layer.upper import (
    BASE,
    Base,
    Upper,
    base_at,
    drop_base,
    is_removed,
    is_whiteout,
    join,
    set_base,
    split,
)
from headrace.layer.written import is_written
from headrace.namespace.mounts import Mount
from headrace.namespace.tree import Namespace
from headrace.origin.origin import Absent, Condition, Origin
from headrace.origin.source import FileSource

log = logging.getLogger(__name__)

COMPARE_BYTES = 8 << 20
CONTENT_BYTES_MAX = 256 << 10
"""Files up to this are read as they are opened: another turn of a thread costs 50 µs. As many of them as puts at one
time are in memory."""
CTIME_TICK_NS = 20_000_000
"""Two changes within a tick of the kernel's clock may have one ctime, where it has no finer one."""


@dataclass(frozen=True, slots=True)
class Put:
    """What was put. changed: what must be looked at again: the path, when the file was written meanwhile; what hides
    it, when it was removed."""

    size_bytes: int
    changed: list[bytes]


class Persist:
    """limit_s: of one object: a time for each, and one more for each so many bytes. on_written: told paths of which the
    node itself changed what they mean. ask_others: what they persisted in this node's place is in the table then."""

    def __init__(
        self,
        namespace: Namespace,
        upper: Upper,
        known: KnownTable,
        threads: Executor,
        *,
        limit_s: Callable[[int], float],
        on_written: Callable[[list[bytes]], None],
        ask_others: Callable[[], Awaitable[None]],
    ) -> None:
        self._namespace = namespace
        self._upper = upper
        self._known = known
        self._threads = threads
        self._limit_s = limit_s
        self._on_written = on_written
        self.settle_elsewhere: Callable[[bytes, Version], Awaitable[Version | None]] = _never_there
        """To be set where there are other nodes: what the origin has of a file that one of them wrote."""
        self._ask_others = ask_others
        self._removed: dict[bytes, Version] = {}
        """By whiteouts that are still there: a listing of before may show it once more."""

    # ------------------------------------------------------------ files

    async def put(self, path: bytes) -> Put | None:
        """None: there is nothing to put any more. ConflictError is dealt with here; other HeadraceErrors leave the
        file as dirty as it was."""
        mount, key = self._place(path)
        at = self._upper.at(path)
        await self._settle_base(path, at)
        opened = await self._opened(at, os.fsdecode(path))
        if opened is None:
            return None
        source, before = opened
        try:
            return await self._put_open(path, source, before, mount.origin, key)
        finally:
            os.close(source.file)

    async def _opened(self, at: bytes, name: str) -> tuple[FileSource, os.stat_result] | None:
        """Of who is cancelled meanwhile it is closed."""
        work = asyncio.get_running_loop().run_in_executor(self._threads, _open_settled, self._upper, at, name)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(_close_opened)
            raise

    async def _settle_base(self, path: bytes, at: bytes) -> bool:
        """What replaces, or removes, a file that another node had not persisted yet waits until it has: then there is a
        version to replace. False: there is not, as that node wrote it again, or is gone. HeadraceError: it can't be
        asked now."""
        base = base_at(at, path)
        if base is None or not is_written(base):
            return True
        version = await self.settle_elsewhere(path, base)
        with self._upper.lock:
            if base_at(at, path) != base:
                return True
            if version is not None:
                set_base(at, Base(path, version))
                self._namespace.was_put(path, version)
            elif not is_whiteout(os.lstat(at)):  # a whiteout without a base would stand for whatever is there
                drop_base(at, path)
            return version is not None

    async def _put_open(
        self,
        path: bytes,
        source: FileSource,
        before: os.stat_result,
        origin: Origin,
        key: str,
        *,
        asked: bool = False,
    ) -> Put | None:
        deadline = Deadline.after(self._limit_s(before.st_size))
        row = await self._resolved(self._known.get(path), origin, key, deadline)
        condition = self._condition(path, row)
        failpoint.hit("persist.chosen")
        known = condition if isinstance(condition, Version) else ABSENT
        begun = _row_of(path, before, known, begun=True)
        self._known.note(begun)
        failpoint.hit("persist.begun")
        extras = extras_of(source.file, before)
        attributes = replace(_attributes_of(before), put_id=begun.put_id, extras=extras)
        try:
            info = await origin.put(
                key, source, condition=condition, attributes=attributes, deadline=deadline
            )
            version = info.version
        except (ConflictError, IsADirectoryPathError, NotADirectoryPathError) as error:
            found = await self._same_at_origin(origin, key, source, deadline)
            if found is None and not asked and await self._others_put(path):
                return await self._put_open(path, source, before, origin, key, asked=True)
            if found is None:
                self._set_aside(path, before, str(error))
                return None
            version = found
        failpoint.hit("persist.put")
        return self._landed(path, before, version)

    async def _resolved(self, row: Row | None, origin: Origin, key: str, deadline: Deadline) -> Row | None:
        """What became of a put that had begun when its node died, or its answer was lost: the row as if it had been
        noted, when the origin has the object; the file may be another one by now."""
        if row is None or not row.begun or row.is_directory:
            return row
        try:
            info = await origin.head(key, deadline=deadline)
        except PathNotFoundError:
            return row
        told = info.attributes
        if told is None or info.version.size_bytes != row.size_bytes:
            return row
        if told.put_id != row.put_id if told.put_id else told.mtime_ns != row.mtime_ns:
            return row
        done = replace(row, version=info.version, begun=False)
        self._known.note(done)
        return done

    def _condition(self, path: bytes, row: Row | None) -> Condition:
        base = self._upper.base_of(path)
        if row is None:
            return base or Absent()
        if row.version != ABSENT:
            return row.version
        return base if base is not None and self._shows(path, base) else Absent()

    def replaces(self, path: bytes, at: bytes, found: os.stat_result) -> Version | None:
        """The origin's version that what is at a path stands for, or hides; None: there is none."""
        row = self._known.get(path)
        if stat.S_ISREG(found.st_mode):
            condition = self._condition(path, row)
            return condition if isinstance(condition, Version) else None
        if is_whiteout(found):
            return self._version_to_remove(path, at, row, self._namespace.known(path))
        return base_at(at, path)

    def _shows(self, path: bytes, version: Version | None) -> bool:
        """Whether the index has that version there: then somebody put it after whatever we did."""
        entry = self._namespace.known(path)
        return version is not None and entry is not None and entry.version == version

    def _landed(self, path: bytes, before: os.stat_result, version: Version) -> Put:
        """The origin has it: names and table say so, in one step for everybody who changes names."""
        with self._upper.lock:
            hidden = self._upper.hide_missing(
                path, version
            )  # if it was removed meanwhile, it must not come back
            if self._namespace.was_put(path, version, _attributes_of(before)) is None:
                log.warning("put below a file path=%s", os.fsdecode(path))
            failpoint.hit("persist.shown")
            row = _row_of(path, before, version)
            self._known.note(row)
            now = _lstat(self._upper.at(path))
        failpoint.hit("persist.noted")
        clean = now is not None and row.describes(now)
        changed = [] if clean else [path]
        return Put(before.st_size, changed if hidden is None else [*changed, hidden])

    async def _others_put(self, path: bytes) -> bool:
        """Whether what the origin has is an earlier state of what is here, which another node put in this one's
        place."""
        before = self._known.get(path)
        await self._ask_others()
        return self._known.get(path) != before

    async def _same_at_origin(
        self, origin: Origin, key: str, source: FileSource, deadline: Deadline
    ) -> Version | None:
        """The origin's version when its bytes are ours: then we put it ourselves, before a crash, or somebody else
        put the same."""
        try:
            version = (await origin.head(key, deadline=deadline)).version
            if version.size_bytes != source.size_bytes:
                return None
            for start in range(0, source.size_bytes, COMPARE_BYTES):
                end = min(source.size_bytes, start + COMPARE_BYTES)
                theirs = await origin.read_range(key, start, end, version=version, deadline=deadline)
                if bytes(theirs) != bytes(await self._in_thread(source.pread, start, end)):
                    return None
        except PathNotFoundError:
            return None
        return version

    def _set_aside(self, path: bytes, before: os.stat_result, why: str) -> None:
        """The origin has something else there: that is what the name means from now on; ours gets another name, and
        is persisted under that."""
        with self._upper.lock:
            found = self._upper.look(path)
            if not isinstance(found, os.stat_result) or found.st_ino != before.st_ino:
                self._known.drop(path)
                return
            kept = self._free_name(path)
            os.rename(self._upper.at(path), self._upper.at(kept))
            self._known.drop(path)
        self._known.add_conflict(Conflict(path, kept, why, time.time()))
        log.warning(
            "changed at the origin by somebody else, ours is kept beside path=%s kept=%s",
            os.fsdecode(path),
            os.fsdecode(kept),
        )
        self._namespace.look_again(path)
        self._on_written([path, kept])

    def _free_name(self, path: bytes) -> bytes:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()).encode()
        count = 0
        while True:
            tail = b".conflict-" + stamp + (b"-%d" % count if count else b"")
            directory, name = split(path)
            candidate = join(directory, name[: 255 - len(tail)] + tail)
            if self._upper.look(candidate) is None and self._namespace.known(candidate) is None:
                return candidate
            count += 1

    # ------------------------------------------------------------ removals

    async def remove(self, path: bytes, at: bytes, *, asked: bool = False) -> bool:
        """What a whiteout (or a directory in a file's place) at `at` stands for is removed at the origin. True: and
        the listing that knew it should be taken again before the whiteout goes."""
        mount, key = self._place(path)
        if not await self._settle_base(path, at):
            entry = self._namespace.known(path)
            if entry is not None and entry.kind is Kind.FILE:
                self._known.add_conflict(Conflict(path, b"", "another node wrote it again", time.time()))
            self._give_way(path, at)
            return False
        deadline = Deadline.after(self._limit_s(0))
        entry = self._namespace.known(path)
        row = await self._resolved(self._known.get(path), mount.origin, key, deadline)
        if row is not None and row.begun and row.version == ABSENT and base_at(at, path) is None:
            # our put has not happened: what is there, if anything, is somebody else's
            self._give_way(path, at)
            return False
        version = self._version_to_remove(path, at, row, entry)
        if version is None:
            self._known.note(Row.removed(path))
            return True
        failpoint.hit("persist.removing")
        try:
            await mount.origin.remove(key, condition=version, deadline=deadline)
        except PathNotFoundError:
            pass
        except ConflictError as error:
            if not asked and await self._others_put(path):
                return await self.remove(path, at, asked=True)
            self._known.add_conflict(Conflict(path, b"", str(error), time.time()))
            log.warning("changed at the origin by somebody else, not removed path=%s", os.fsdecode(path))
            self._give_way(path, at)
            return False
        self._removed[path] = version
        failpoint.hit("persist.removed")
        if entry is not None and entry.kind is Kind.FILE:
            self._namespace.was_removed(path)
        self._known.note(Row.removed(path))
        return True

    def _give_way(self, path: bytes, at: bytes) -> None:
        """The name means what the origin, or another node, has there."""
        self.drop_marker(path, at)
        self._known.drop(path)
        self._namespace.look_again(path)
        self._on_written([path])

    def _version_to_remove(
        self, path: bytes, at: bytes, row: Row | None, entry: Entry | None
    ) -> Version | None:
        if row is not None and row.version != ABSENT:
            return row.version
        base = base_at(at, path)
        if base is not None and (row is None or self._shows(path, base)):
            return base
        if row is not None and row.is_absent:
            return None  # it was removed; what the name means since then is somebody else's
        if entry is None or entry.kind is not Kind.FILE or is_written(entry.version):
            return None
        return entry.version

    async def remove_gone(self) -> None:
        """What `Upper.put_away` put aside is removed at the origin, folders too, and then here."""
        for top, prefix in self._upper.put_aside():
            for directory, _, names in os.walk(top, topdown=False):
                path = prefix + directory[len(top) :]
                for name in names:
                    await self.remove(join(path, name), join(directory, name))
                await self._remove_gone_directory(path)
            entry = self._namespace.known(prefix)
            if entry is not None and entry.kind is Kind.DIRECTORY:
                self._namespace.was_removed(prefix)
            shutil.rmtree(top)

    async def _remove_gone_directory(self, path: bytes) -> None:
        """There may be none any more, also because a file is there."""
        mount, key = self._place(path)
        try:
            await mount.origin.remove_directory(key, deadline=Deadline.after(self._limit_s(0)))
        except DirectoryNotEmptyError:
            log.info("somebody else put something into a removed folder path=%s", os.fsdecode(path))
        except NotADirectoryPathError:
            log.info("a file is where a folder was removed path=%s", os.fsdecode(path))

    def drop_whiteout(self, path: bytes) -> bool:
        """After the listing was taken again: when it has no such name, or somebody else's by now, the whiteout has done
        its work. False: it has the one that was removed."""
        with self._upper.lock:
            entry, at = self._namespace.known(path), self._upper.at(path)
            if entry is not None and entry.kind is Kind.FILE:
                row = self._known.get(path)
                removed = (base_at(at, path), self._removed.get(path))
                if row is None or not row.is_absent or entry.version in removed:
                    return False
            self._removed.pop(path, None)
            self.drop_marker(path, at)
            return True

    def drop_marker(self, path: bytes, at: bytes) -> None:
        with self._upper.lock:
            found = _lstat(at)
            if found is None:
                return
            if is_whiteout(found):
                os.unlink(at)
            elif not stat.S_ISREG(found.st_mode) and base_at(at, path) is not None:
                os.removexattr(at, BASE, follow_symlinks=False)

    # ------------------------------------------------------------ directories

    async def make_directory(self, path: bytes) -> list[bytes]:
        """What must be looked at again."""
        mount, key = self._place(path)
        found = self._upper.look(path)
        if not isinstance(found, os.stat_result) or not stat.S_ISDIR(found.st_mode):
            return []
        self._known.note(Row(path, found.st_ino, 0, 0, Version(0, 0), begun=True))
        if key:
            await mount.origin.make_directory(key, deadline=Deadline.after(self._limit_s(0)))
        failpoint.hit("persist.made")
        with self._upper.lock:
            hidden = self._upper.hide_missing(
                path, None, directory=True
            )  # removed, or renamed, while it was made
            self._namespace.was_made(path)
            self._known.note(Row(path, found.st_ino, 0, 0, Version(0, 0)))
        return [] if hidden is None else [hidden]

    async def remove_directory(self, path: bytes) -> bool:
        """A directory marked as removed, when nothing is left in it. False: something is."""
        at = self._upper.at(path)
        if not is_removed(at):
            return True
        if os.listdir(at):
            return False
        mount, key = self._place(path)
        try:
            if key:
                await mount.origin.remove_directory(key, deadline=Deadline.after(self._limit_s(0)))
        except (DirectoryNotEmptyError, NotADirectoryPathError):
            pass  # somebody else put something there, or a file in its place: it shows again
        failpoint.hit("persist.emptied")
        with self._upper.lock:
            if not is_removed(at):
                return True
            self._namespace.was_removed(path)
            os.rmdir(at)
            self._known.drop(path)
        self._namespace.look_again(path)
        self._on_written([path])
        return True

    # ------------------------------------------------------------ inside

    def _place(self, path: bytes) -> tuple[Mount, str]:
        found = self._namespace.place_of(path)
        if found is None:
            raise NotSupportedError(
                os.fsdecode(path), why="no origin is attached there", hint="--write local"
            )
        return found

    async def _in_thread(self, work: Callable[..., object], *arguments: object):  # type: ignore[no-untyped-def]
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)


async def _never_there(path: bytes, version: Version) -> Version | None:
    return None


def _open_settled(upper: Upper, at: bytes, name: str) -> tuple[FileSource, os.stat_result] | None:
    """A file as it is put, and the content of a small one; None when there is no file any more. The caller closes it.
    Its dirty pages are on their way to the disk, and no store into a mapping of it, nor a change within the tick of the
    last one, can fail to show in its ctime from here on."""
    try:
        fd = os.open(at, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            return None
        age_ns = time.time_ns() - found.st_ctime_ns
        if 0 <= age_ns < CTIME_TICK_NS:
            time.sleep((CTIME_TICK_NS - age_ns) / 1e9)
        with upper.lock:  # who opens the file has it
            written = may_be_written(fd)
        if written:
            write_back(fd)
        else:
            begin_write_back(fd)  # there is no mapping to be protected: nobody has to wait for the disk
        found = os.fstat(fd)
        content = os.pread(fd, found.st_size, 0) if found.st_size <= CONTENT_BYTES_MAX else None
        if content is not None and len(content) != found.st_size:
            content = None
        return FileSource(fd, found.st_size, name=name, content=content), found
    except OSError as error:
        os.close(fd)
        raise StoreError(name, why=os.strerror(error.errno or 0)) from error


def _close_opened(work: asyncio.Future[tuple[FileSource, os.stat_result] | None]) -> None:
    opened = None if work.cancelled() or work.exception() is not None else work.result()
    if opened is not None:
        os.close(opened[0].file)


def _attributes_of(found: os.stat_result) -> Attributes:
    return Attributes(found.st_mtime_ns, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)


def _row_of(path: bytes, found: os.stat_result, version: Version, *, begun: bool = False) -> Row:
    return Row(
        *(path, found.st_ino, found.st_ctime_ns, found.st_size), version, begun, mtime_ns=found.st_mtime_ns
    )


def _lstat(at: bytes) -> os.stat_result | None:
    try:
        return os.lstat(at)
    except (FileNotFoundError, NotADirectoryError):
        return None
