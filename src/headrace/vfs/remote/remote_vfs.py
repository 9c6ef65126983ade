"""Provide the namespace of a cluster by path on a host without a node, as `vfs/local_vfs.py` does on a host with one.

Written bytes are gathered in a file of this host. The close uploads it as a whole.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Generator, Iterator

import xxhash

from headrace.base.errors import (
    DirectoryNotEmptyError,
    HeadraceError,
    IsADirectoryPathError,
    NotSupportedError,
    PathExistsError,
    PathNotFoundError,
    ProtocolError,
    StoreError,
)
from headrace.base.model import ROOT_ID, Entry, FileId, Kind, Version
from headrace.base.namespace_path import split
from headrace.overlay.merged_view import FileStat
from headrace.vfs.file_stat import attributes_of_row, is_directory
from headrace.vfs.remote.cluster_client import SIZE_BYTES_MAX, STEP_BYTES, ClusterClient
from headrace.vfs.remote.content import RemoteContent, fetch_into, filled
from headrace.vfs.remote.jobs import RemoteJobs
from headrace.vfs.remote.request_group import RequestGroup
from headrace.vfs.request_vfs import RequestVfs
from headrace.vfs.streams import Content, WriteStream
from headrace.wire.api import (
    PAGE_NAMES,
    SUM_HEADER,
    UPLOAD_HEADER,
    ApiEntries,
    ApiEntry,
    ApiStatus,
    Rename,
    etag_of,
)
from headrace.wire.messages import JobStart, JobState

_SUM_STEP_BYTES = 4 << 20
_NO_MOUNT = "a node must run on this host for that"


class RemoteVfs(RequestVfs):
    """Reads and changes the namespace through nodes, which it owns."""

    def __init__(self, nodes: ClusterClient) -> None:
        self.nodes = nodes
        self.jobs = RemoteJobs(nodes)
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self.nodes.close()

    # ------------------------------------------------------------ looking

    def find(self, path: bytes, *, follow: bool = True) -> tuple[bytes, FileStat | None]:
        """Find a path as `LocalVfs` does."""
        try:
            row = self.look(path, follow=follow)
        except PathNotFoundError:
            return path, None
        return os.fsencode(row.path), status_of(row)

    def get(self, path: bytes, *, follow: bool = True) -> tuple[bytes, FileStat]:
        row = self.look(path, follow=follow)
        return os.fsencode(row.path), status_of(row)

    def children(self, path: bytes, *, after: bytes = b"") -> Iterator[tuple[bytes, FileStat]]:
        position: str | None = os.fsdecode(after)
        while position is not None:
            page = self.nodes.ask(
                "listEntries", ApiEntries, path=os.fsdecode(path), after=position, limit=PAGE_NAMES
            )
            for row in page.entries:
                yield os.fsencode(row.path.rpartition("/")[2]), status_of(_checked(row))
            position = page.next

    def readlink(self, path: bytes) -> bytes:
        return os.fsencode(self.look(path, follow=False).target)

    def look(self, path: bytes, *, follow: bool) -> ApiEntry:
        """Return the entry that a node reports for a path. Raises PathNotFoundError."""
        return _checked(self.nodes.ask("getEntry", ApiEntry, path=os.fsdecode(path), follow=follow))

    # ------------------------------------------------------------ reading

    def content(self, path: bytes) -> Content:
        row = self.look(path, follow=True)
        if row.kind == "directory":
            raise IsADirectoryPathError(os.fsdecode(path), why="it is a directory")
        return RemoteContent(self.nodes, os.fsencode(row.path), row.size_bytes, etag_of(row.version))

    def _read(self, path: bytes, start: int, end: int | None) -> bytes:
        return read_version(self.nodes, path, start, end)

    # ------------------------------------------------------------ changing

    def create(
        self,
        path: bytes,
        *,
        replace: bool,
        parents: bool = False,
        commits: bool = True,
        is_broken_off: Callable[[], bool] = lambda: False,
    ) -> WriteStream:
        """Create a file as `LocalVfs` does. An error of writing is raised when it is closed."""
        status = self.find(path)[1]
        if status is not None and not replace:
            raise PathExistsError(os.fsdecode(path), why="it exists already")
        if status is not None and is_directory(status):
            raise IsADirectoryPathError(os.fsdecode(path), why="it is a directory")
        if not parents:
            self.get(split(path)[0])
        fd = _scratch()
        return WriteStream(
            fd,
            os.fsdecode(path),
            finish=lambda fd: self._put(fd, path, replace=replace),
            abandon=lambda _: None,
            commits=commits,
            is_broken_off=is_broken_off,
        )

    def _put(self, fd: int, path: bytes, *, replace: bool) -> None:
        digest, offset = xxhash.xxh3_64(), 0
        while data := os.pread(fd, _SUM_STEP_BYTES, offset):
            digest.update(data)
            offset += len(data)

        headers = {SUM_HEADER: digest.hexdigest()}
        if not replace:
            headers[UPLOAD_HEADER] = secrets.token_hex(16)
        self.nodes.change(
            "writeContent",
            {"path": path, "replace": replace},
            body=lambda: open(f"/proc/self/fd/{fd}", "rb"),  # noqa: SIM115 - opened again for each node that is tried
            headers=headers,
            is_own=lambda error: isinstance(error, PathExistsError),
        )

    def append(self, path: bytes, *, is_broken_off: Callable[[], bool] = lambda: False) -> WriteStream:
        raise NotSupportedError(os.fsdecode(path), why="appending is done in place", hint=_NO_MOUNT)

    def touch(self, path: bytes) -> None:
        raise NotSupportedError(os.fsdecode(path), why="another host can't set times", hint=_NO_MOUNT)

    def copy(self, source: bytes, target: bytes, *, parents: bool = False) -> None:
        content = self.content(source)
        try:
            with self.create(target, replace=True, parents=parents) as stream:
                content.copy_to(stream.fileno())
        finally:
            content.close()

    def check_writable(self, path: bytes) -> None:
        """Do nothing: the node answers when a file is put."""

    def make_directory(self, path: bytes) -> None:
        if self.find(path)[1] is not None:
            raise PathExistsError(os.fsdecode(path), why="it exists already")
        self.get(split(path)[0])
        self.make_directories(path)

    def make_directories(self, path: bytes) -> None:
        self.nodes.change("makeDirectory", {"path": path})

    def remove(self, path: bytes) -> None:
        self._remove(path)

    def remove_directory(self, path: bytes) -> None:
        if next(self.children(path), None) is not None:
            raise DirectoryNotEmptyError(os.fsdecode(path), why="it is not empty")
        self._remove(path, empty_directory=True)

    def remove_all(self, path: bytes) -> None:
        self._remove(path, recursive=True)

    def _remove(self, path: bytes, **how: bool) -> None:
        self.nodes.change("removeEntry", {"path": path, **how}, repeatable=_is_gone)

    def rename(self, source: bytes, target: bytes) -> None:
        body = Rename(os.fsdecode(source), os.fsdecode(target))
        self.nodes.change("rename", {}, body=body, repeatable=_is_gone)

    # ------------------------------------------------------------ the cache

    def status(self) -> dict[str, object]:
        """Return the status of the node that was named, if only one was, or of any node."""
        return self.nodes.ask("status", ApiStatus, on=self.nodes.only).status

    def run_job(self, start: JobStart) -> Generator[JobState, None, None]:
        return self.jobs.run(start)


def _is_gone(error: HeadraceError) -> bool:
    return isinstance(error, PathNotFoundError)


def _checked(row: ApiEntry) -> ApiEntry:
    """Return a row of another host if a file may have its numbers. Raises ProtocolError."""
    if not (0 <= row.size_bytes <= SIZE_BYTES_MAX and abs(row.mtime_ns) // 1_000_000_000 <= SIZE_BYTES_MAX):
        raise ProtocolError(f"entry {row.path}"[:300], why="no file has its size or its time")
    return row


def read_version(
    nodes: ClusterClient, path: bytes, start: int, end: int | None, *, group: RequestGroup | None = None
) -> bytes:
    """Read bytes start..end of one version of a file. A small file takes one request. Raises VersionChangedError if the
    file is replaced meanwhile. group: raises CancelledByUserError after its end."""
    step = (start // STEP_BYTES + 1) * STEP_BYTES
    if end is not None and end <= start:
        return b""
    first = nodes.fetch(path, start, step if end is None else min(end, step), group=group)
    stop = first.size_bytes if end is None else min(end, first.size_bytes)
    if stop <= start + len(first.data):
        return bytes(first.data)

    def fill(target: memoryview, offset: int) -> None:
        known = first.data[offset : offset + len(target)]
        offset += len(known)
        target[: len(known)] = known
        # A thread may keep a reference for a moment; the memory could not grow before it is released.
        with target[len(known) :] as rest:
            fetch_into(nodes, path, first.etag, rest, start + offset, group=group)

    return filled(stop - start, fill)


def status_of(row: ApiEntry) -> FileStat:
    if row.kind in ("file", "directory"):
        kind = Kind.FILE if row.kind == "file" else Kind.DIRECTORY
        name = os.fsencode(row.path.rpartition("/")[2])
        return Entry(FileId(row.id), ROOT_ID, name, kind, Version(row.size_bytes, row.mtime_ns, row.version))
    mode = stat.S_IFLNK | 0o777 if row.kind == "link" else stat.S_IFIFO
    return attributes_of_row(mode, row.id, row.size_bytes, row.mtime_ns)


def _scratch() -> int:
    """Open a file without a name, which disappears when this process dies."""
    try:
        return os.open(tempfile.gettempdir(), os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError:
        pass
    try:
        fd, name = tempfile.mkstemp(prefix="headrace-put-")
    except OSError as error:
        raise StoreError(f"folder {tempfile.gettempdir()}", why=error.strerror or str(error)) from error
    os.unlink(name)
    return fd
