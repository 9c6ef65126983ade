"""Provide the namespace of a node that another user runs, as `vfs/local_vfs.py` does for a node of this user or of
root.

The node answers requests for names. Bytes are read from descriptors of its cache files, as far as modes let this
user. Files that were written on this host, and are in no cache, are read through a mount of that node, where there is
one. Nothing can be changed this way: a mount takes writes, with this user as the owner.
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
from headrace.base.namespace_path import join
from headrace.overlay.merged_view import FileStat
from headrace.vfs.brokered.broker_connection import BrokerConnection
from headrace.vfs.brokered.content import content_of
from headrace.vfs.brokered.mounts import mount_of
from headrace.vfs.file_stat import attributes_of_row
from headrace.vfs.request_vfs import RequestVfs
from headrace.vfs.streams import STEP_BYTES, Content
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
from headrace.wire.messages import JobStart

Opened = tuple[OpenedFile | UpperFile | BrokerRefusal, int]
"""The descriptor is -1 where the answer has none."""


class BrokeredVfs(RequestVfs):
    """Reads a namespace over a link, which it owns. Calls that change it raise NotAllowedError."""

    def __init__(self, link: BrokerConnection) -> None:
        self._link = link

    @property
    def closed(self) -> bool:
        return self._link.closed

    def close(self) -> None:
        self._link.close()

    # ------------------------------------------------------------ looking

    def find(self, path: bytes, *, follow: bool = True) -> tuple[bytes, FileStat | None]:
        """Find a path as `LocalVfs` does, but only a mount follows links."""
        plain_path = plain(path)
        try:
            return plain_path, status_of(self._row_at(plain_path))
        except PathNotFoundError:
            return plain_path, None

    def get(self, path: bytes, *, follow: bool = True) -> tuple[bytes, FileStat]:
        plain_path = plain(path)
        return plain_path, status_of(self._row_at(plain_path))

    def _row_at(self, path: bytes) -> BrokerRow:
        answer, _ = self._link.ask(LookAt(path))
        if not isinstance(answer, Looked):
            raise _unexpected(answer)
        return answer.row

    def children(self, path: bytes, *, after: bytes = b"") -> Iterator[tuple[bytes, FileStat]]:
        plain_path = plain(path)
        while True:
            answer, _ = self._link.ask(ListNames(plain_path, after))
            if not isinstance(answer, BrokerNames):
                raise _unexpected(answer)
            for row in answer.rows:
                yield row.name, status_of(row)
            if not answer.next:
                return
            after = answer.next

    def readlink(self, path: bytes) -> bytes:
        return os.readlink(self._mounted(path))

    # ------------------------------------------------------------ reading

    def content(self, path: bytes) -> Content:
        """Open a file as `LocalVfs` does. Raises NotAllowedError."""
        plain_path = plain(path)
        (opened,) = self.open_many([plain_path], 0, STEP_BYTES)
        return self.content_of(plain_path, opened)

    def content_of(self, path: bytes, opened: Opened) -> Content:
        """Open a file from its answer of `open_many`. path: plain."""
        answer, fd = opened
        if isinstance(answer, BrokerRefusal):
            raise error_of(answer)
        if isinstance(answer, UpperFile):
            return self._written(path)
        return content_of(answer, fd, lambda start, end: self._open_again(path, start, end))

    def _open_again(self, path: bytes, start: int, end: int) -> tuple[OpenedFile, int]:
        ((answer, fd),) = self.open_many([path], start, end)
        if isinstance(answer, BrokerRefusal):
            raise error_of(answer)
        if isinstance(answer, UpperFile):
            raise VersionChangedError(os.fsdecode(path), why="it was written after it was opened")
        return answer, fd

    def open_many(self, paths: list[bytes], start: int, end: int) -> list[Opened]:
        """Open each path. The caller closes the descriptors. At most FILES_MAX paths."""
        answer, fds = self._link.ask(OpenFiles(paths, start, end))
        try:
            if not isinstance(answer, OpenedFiles) or len(answer.files) != len(paths):
                raise _unexpected(answer)
            count = sum(isinstance(file, OpenedFile) for file in answer.files)
            if count != len(fds):
                raise ProtocolError(
                    f"{len(fds)} of {count} descriptors arrived",
                    why="this process may have too many open files",
                )
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        descriptors = iter(fds)
        return [(file, next(descriptors) if isinstance(file, OpenedFile) else -1) for file in answer.files]

    def _written(self, path: bytes) -> Content:
        fd = os.open(self._mounted(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return Content.of_upper(fd, path)

    def _mounted(self, path: bytes) -> bytes:
        mountpoint = mount_of(self._link.path)
        if mountpoint is None:
            raise NotSupportedError(
                os.fsdecode(path),
                why="it was written on this host, and no mount of its node is open to this user",
                hint="mount it with --allow-other",
            )
        return os.fsencode(mountpoint) + plain(path)

    # ------------------------------------------------------------ what a mount is for

    def create(self, path: bytes, **_: object) -> NoReturn:
        raise _by_a_mount(path)

    append = make_directory = make_directories = remove = remove_directory = remove_all = touch = create
    check_writable = create

    def copy(self, source: bytes, target: bytes, **_: object) -> NoReturn:
        raise _by_a_mount(target)

    rename = copy

    def status(self) -> NoReturn:
        raise _by_its_user("status")

    def run_job(self, start: JobStart) -> NoReturn:
        raise _by_its_user(start.kind)


def status_of(row: BrokerRow) -> FileStat:
    kind = stat.S_IFMT(row.mode)
    if not row.written and kind in (stat.S_IFREG, stat.S_IFDIR):
        version = Version(row.size_bytes, row.mtime_ns, row.token)
        return Entry(
            FileId(row.id), ROOT_ID, row.name, Kind.FILE if kind == stat.S_IFREG else Kind.DIRECTORY, version
        )
    return attributes_of_row(row.mode, row.id, row.size_bytes, row.mtime_ns, row.uid, row.gid)


def plain(path: bytes) -> bytes:
    """Remove `.`, `..` and empty names. That is safe, because no name is a link."""
    result = b"/"
    for name in path.split(b"/"):
        if name == b"..":
            result = result.rpartition(b"/")[0] or b"/"
        elif name not in (b"", b"."):
            result = join(result, name)
    return result


def _unexpected(answer: object) -> HeadraceError:
    return ProtocolError("the node's answer does not match the request", why=type(answer).__name__)


def _by_a_mount(path: bytes) -> HeadraceError:
    return NotAllowedError(
        os.fsdecode(path),
        why="another user runs the node, which is read-only without a mount",
        hint="write through a mount of it",
    )


def _by_its_user(operation: str) -> HeadraceError:
    return NotAllowedError(operation, why="another user runs the node", hint="ask that user")
