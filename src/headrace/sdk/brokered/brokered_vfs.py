"""The namespace of a node that another user runs: what `sdk/local_vfs.py` is where this user, or root, does.

Names are asked of the node, and bytes are read from descriptors of its cache files, as far as modes let this user. What
was written on this host, and is in no cache, is read by a mount of that node, where there is one. Nothing is changed
this way: a mount takes writes, with this user as the owner.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import NoReturn

from headrace.base.errors import (
    HeadraceError,
    NotAllowedError,
    NotSupportedError,
    PathNotFoundError,
    ProtocolError,
    VersionChangedError,
)
from headrace.base.model import ROOT_ID, Entry, FileId, Kind, Version
from headrace.overlay.upper import join
from headrace.sdk.asked_paths import AskedPaths
from headrace.sdk.brokered.broker_connection import BrokerConnection
from headrace.sdk.brokered.content import content_of
from headrace.sdk.brokered.mounts import mount_of
from headrace.sdk.merged_tree import FileStat
from headrace.sdk.streams import STEP_BYTES, Content
from headrace.wire.broker_messages import (
    BrokerNames,
    BrokerRefusal,
    BrokerRow,
    ListNames,
    LookAt,
    Looked,
    OpenedFile,
    OpenedFiles,
    OpenFiles,
    UpperFile,
    error_of,
)
from headrace.wire.messages import JobStart, JobState

Opened = tuple[OpenedFile | UpperFile | BrokerRefusal, int]
"""The descriptor is -1 where none came along."""


class BrokeredVfs(AskedPaths):
    """link: belongs to this from now on."""

    def __init__(self, link: BrokerConnection) -> None:
        self._link = link

    @property
    def closed(self) -> bool:
        return self._link.closed

    def close(self) -> None:
        self._link.close()

    # ------------------------------------------------------------ looking

    def find(self, path: bytes, *, follow: bool = True) -> tuple[bytes, FileStat | None]:
        """As of Paths, but that links are followed by a mount only."""
        at = plain(path)
        try:
            return at, seen_of(self._look(at))
        except PathNotFoundError:
            return at, None

    def get(self, path: bytes, *, follow: bool = True) -> tuple[bytes, FileStat]:
        at = plain(path)
        return at, seen_of(self._look(at))

    def _look(self, path: bytes) -> BrokerRow:
        answer, _ = self._link.ask(LookAt(path))
        if not isinstance(answer, Looked):
            raise _unexpected(answer)
        return answer.row

    def children(self, path: bytes, *, after: bytes = b"") -> Iterator[tuple[bytes, FileStat]]:
        at = plain(path)
        while True:
            answer, _ = self._link.ask(ListNames(at, after))
            if not isinstance(answer, BrokerNames):
                raise _unexpected(answer)
            for row in answer.rows:
                yield row.name, seen_of(row)
            if not answer.next:
                return
            after = answer.next

    def readlink(self, path: bytes) -> bytes:
        return os.readlink(self._mounted(path))

    # ------------------------------------------------------------ reading

    def content(self, path: bytes) -> Content:
        """As of Paths; NotAllowedError."""
        at = plain(path)
        (opened,) = self.open_many([at], 0, STEP_BYTES)
        return self.content_of(at, opened)

    def content_of(self, path: bytes, opened: Opened) -> Content:
        """path: plain, of which open_many said that."""
        about, fd = opened
        if isinstance(about, BrokerRefusal):
            raise error_of(about)
        if isinstance(about, UpperFile):
            return self._written(path)
        return content_of(about, fd, lambda start, end: self._open_again(path, start, end))

    def _open_again(self, path: bytes, start: int, end: int) -> tuple[OpenedFile, int]:
        ((about, fd),) = self.open_many([path], start, end)
        if isinstance(about, BrokerRefusal):
            raise error_of(about)
        if isinstance(about, UpperFile):
            raise VersionChangedError(os.fsdecode(path), why="it was written meanwhile")
        return about, fd

    def open_many(self, paths: list[bytes], start: int, end: int) -> list[Opened]:
        """Of each path; the descriptors are the caller's to close. At most FILES_MAX of them."""
        answer, fds = self._link.ask(OpenFiles(paths, start, end))
        try:
            if not isinstance(answer, OpenedFiles) or len(answer.files) != len(paths):
                raise _unexpected(answer)
            count = sum(isinstance(one, OpenedFile) for one in answer.files)
            if count != len(fds):
                raise ProtocolError(
                    f"{len(fds)} descriptors came, of {count}", why="this process may have no more"
                )
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        left = iter(fds)
        return [(one, next(left) if isinstance(one, OpenedFile) else -1) for one in answer.files]

    def _read(self, path: bytes, start: int, end: int | None) -> bytes:
        content = self.content(path)
        try:
            return content.read(start, content.size_bytes if end is None else end)
        finally:
            content.close()

    def _written(self, path: bytes) -> Content:
        fd = os.open(self._mounted(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            raise NotSupportedError(os.fsdecode(path), why="it is no regular file", hint="read it by a mount")
        return Content(found.st_size, fd=fd, grows=True)

    def _mounted(self, path: bytes) -> bytes:
        mountpoint = mount_of(self._link.path)
        if mountpoint is None:
            raise NotSupportedError(
                os.fsdecode(path),
                why="it was written on this host, and no mount of its node is open to this user",
                hint="mount it with --allow-other",
            )
        return mountpoint + plain(path)

    # ------------------------------------------------------------ what a mount is for

    def create(self, path: bytes, **_: object) -> NoReturn:
        raise _by_a_mount(path)

    append = make_directory = make_directories = remove = remove_directory = remove_all = touch = create
    check_writable = create

    def copy(self, source: bytes, target: bytes, **_: object) -> NoReturn:
        raise _by_a_mount(target)

    rename = copy

    def status(self) -> dict[str, object]:
        raise _by_its_user("status")

    def run_job(self, start: JobStart) -> Iterator[JobState]:
        raise _by_its_user(start.kind)


def seen_of(row: BrokerRow) -> FileStat:
    kind = stat.S_IFMT(row.mode)
    if not row.written and kind in (stat.S_IFREG, stat.S_IFDIR):
        version = Version(row.size_bytes, row.mtime_ns, row.token)
        return Entry(
            FileId(row.id), ROOT_ID, row.name, Kind.FILE if kind == stat.S_IFREG else Kind.DIRECTORY, version
        )
    seconds = row.mtime_ns // 1_000_000_000
    values = (row.mode, row.id, 0, 1, row.uid, row.gid, row.size_bytes, seconds, seconds, seconds)
    return os.stat_result(values, {"st_mtime_ns": row.mtime_ns, "st_ctime_ns": row.mtime_ns})


def plain(path: bytes) -> bytes:
    """Without `.`, `..` and empty names: no link is among them, so they mean what they say."""
    at = b"/"
    for name in path.split(b"/"):
        if name == b"..":
            at = at.rpartition(b"/")[0] or b"/"
        elif name not in (b"", b"."):
            at = join(at, name)
    return at


def _unexpected(answer: object) -> HeadraceError:
    return ProtocolError("the node's answer is of another question", why=type(answer).__name__)


def _by_a_mount(path: bytes) -> HeadraceError:
    return NotAllowedError(
        os.fsdecode(path),
        why="another user runs the node, and nothing is changed this way",
        hint="use a mount of it",
    )


def _by_its_user(what: str) -> HeadraceError:
    return NotAllowedError(what, why="another user runs the node", hint="ask that user")
