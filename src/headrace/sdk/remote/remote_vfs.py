"""The namespace of a cluster by path, on a host without a node: what `sdk/local_vfs.py` is where there is one.

What is written is gathered in a file of this host, and put whole when it is closed.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator

import msgspec
import xxhash

from headrace.base.errors import (
    DirectoryNotEmptyError,
    HeadraceError,
    IsADirectoryPathError,
    NotSupportedError,
    PathExistsError,
    PathNotFoundError,
    StoreError,
    UsageError,
    error_classes,
)
from headrace.base.model import ROOT_ID, Entry, FileId, Kind, Version
from headrace.overlay.upper import split
from headrace.sdk.asked_paths import AskedPaths
from headrace.sdk.merged_tree import FileStat
from headrace.sdk.remote.cluster_client import STEP_BYTES, ClusterClient, ClusterNode
from headrace.sdk.remote.content import RemoteContent, fetch_into, filled
from headrace.sdk.streams import Content, WriteStream
from headrace.wire.api import (
    PAGE_NAMES,
    SUM_HEADER,
    ApiEntries,
    ApiEntry,
    ApiJob,
    ApiJobs,
    ApiStatus,
    NewJob,
    Rename,
    etag_of,
)
from headrace.wire.messages import JobStart, JobState

JOB_LOOK_S = 1.0
SHARED = ("load", "free", "pin", "unpin")
"""Jobs of a cluster: whichever node takes them."""
_SUM_STEP_BYTES = 4 << 20
_NO_MOUNT = "a node must run on this host for that"


class RemoteVfs(AskedPaths):
    """nodes: belongs to this from now on."""

    def __init__(self, nodes: ClusterClient) -> None:
        self.nodes = nodes
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self.nodes.close()

    # ------------------------------------------------------------ looking

    def find(self, path: bytes, *, follow: bool = True) -> tuple[bytes, FileStat | None]:
        """As of Paths."""
        try:
            row = self.look(path, follow=follow)
        except PathNotFoundError:
            return path, None
        return os.fsencode(row.path), seen_of(row)

    def get(self, path: bytes, *, follow: bool = True) -> tuple[bytes, FileStat]:
        row = self.look(path, follow=follow)
        return os.fsencode(row.path), seen_of(row)

    def children(self, path: bytes, *, after: bytes = b"") -> Iterator[tuple[bytes, FileStat]]:
        at: str | None = os.fsdecode(after)
        while at is not None:
            page = self.nodes.ask(
                "listEntries", ApiEntries, path=os.fsdecode(path), after=at, limit=PAGE_NAMES
            )
            for row in page.entries:
                yield os.fsencode(row.path.rpartition("/")[2]), seen_of(row)
            at = page.next

    def readlink(self, path: bytes) -> bytes:
        return os.fsencode(self.look(path, follow=False).target)

    def look(self, path: bytes, *, follow: bool) -> ApiEntry:
        """PathNotFoundError."""
        return self.nodes.ask("getEntry", ApiEntry, path=os.fsdecode(path), follow=follow)

    # ------------------------------------------------------------ reading

    def content(self, path: bytes) -> Content:
        row = self.look(path, follow=True)
        if row.kind == "directory":
            raise IsADirectoryPathError(os.fsdecode(path), why="it is a directory")
        return RemoteContent(self.nodes, os.fsencode(row.path), row.size_bytes, etag_of(row.version))

    def _read(self, path: bytes, start: int, end: int | None) -> bytes:
        """A small one is asked for once."""
        step = (start // STEP_BYTES + 1) * STEP_BYTES
        if end is not None and end <= start:
            return b""
        first = self.nodes.fetch(path, start, step if end is None else min(end, step))
        stop = first.size_bytes if end is None else min(end, first.size_bytes)
        if stop <= start + len(first.data):
            return bytes(first.data)
        done = len(first.data)

        def fill(whole: memoryview) -> None:
            whole[:done] = first.data
            fetch_into(self.nodes, path, first.etag, whole[done:], start + done)

        return filled(stop - start, fill)

    # ------------------------------------------------------------ changing

    def create(
        self, path: bytes, *, replace: bool, parents: bool = False, commits: bool = True
    ) -> WriteStream:
        """As of Paths; what can't be written is told when it is closed."""
        found = self.find(path)[1]
        if found is not None and not replace:
            raise PathExistsError(os.fsdecode(path), why="it is there already")
        if found is not None and isinstance(found, Entry) and found.kind is Kind.DIRECTORY:
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
        )

    def _put(self, fd: int, path: bytes, *, replace: bool) -> None:
        digest, at = xxhash.xxh3_64(), 0
        while data := os.pread(fd, _SUM_STEP_BYTES, at):
            digest.update(data)
            at += len(data)

        self.nodes.change(
            "writeContent",
            {"path": path, "replace": replace},
            body=lambda: open(f"/proc/self/fd/{fd}", "rb"),  # noqa: SIM115 - anew for each node that is tried
            headers={SUM_HEADER: digest.hexdigest()},
        )

    def append(self, path: bytes) -> WriteStream:
        raise NotSupportedError(os.fsdecode(path), why="appending is done in place", hint=_NO_MOUNT)

    def touch(self, path: bytes) -> None:
        raise NotSupportedError(os.fsdecode(path), why="times can't be set from afar", hint=_NO_MOUNT)

    def copy(self, source: bytes, target: bytes, *, parents: bool = False) -> None:
        content = self.content(source)
        try:
            with self.create(target, replace=True, parents=parents) as stream:
                content.copy_to(stream.fileno())
        finally:
            content.close()

    def check_writable(self, path: bytes) -> None:
        """It is told when something is put."""

    def make_directory(self, path: bytes) -> None:
        if self.find(path)[1] is not None:
            raise PathExistsError(os.fsdecode(path), why="it is there already")
        self.get(split(path)[0])
        self.make_directories(path)

    def make_directories(self, path: bytes) -> None:
        self.nodes.change("makeDirectory", {"path": path})

    def remove(self, path: bytes) -> None:
        self._remove(path)

    def remove_directory(self, path: bytes) -> None:
        if next(self.children(path), None) is not None:
            raise DirectoryNotEmptyError(os.fsdecode(path), why="it has something in it")
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
        """Of the node that was named, where only one was; else of any."""
        return self.nodes.ask("status", ApiStatus, at=self.nodes.only).status

    def run_job(self, start: JobStart) -> Iterator[JobState]:
        """Its states, the last with done=True. One of a node that is not iterated to its end is cancelled. What this
        process wrote is persisted by the nodes that took it; a node that is drained is the one that was named."""
        nodes = self._nodes_of(start.kind)
        for number, node in enumerate(nodes):
            for state in self._run_at(node, start):
                last = number + 1 == len(nodes)
                yield state if last else msgspec.structs.replace(state, done=False)

    def _nodes_of(self, kind: str) -> list[ClusterNode]:
        only = self.nodes.only
        if kind == "drain" and only is None:
            raise UsageError("node drain", why="several nodes are named", hint="name the one that is meant")
        if kind in ("drain", "fsck") and only is not None:
            return [only]
        written = self.nodes.changed_at if kind.startswith("persist") else []
        return written or [only or self.nodes.home]

    def _run_at(self, node: ClusterNode, start: JobStart) -> Iterator[JobState]:
        if start.kind == "watch":
            job = self.nodes.ask("getJob", ApiJob, id=start.path)
        else:
            body = NewJob(start.kind, start.path, start.options)  # type: ignore[arg-type]  # the node says
            job = self.nodes.ask("startJob", ApiJob, body=body, at=node if start.kind not in SHARED else None)
        at = node if job.scope == "node" else None
        try:
            while _runs(job):
                yield state_of(job)
                job = self.nodes.ask("getJob", ApiJob, id=job.id, wait_s=JOB_LOOK_S, at=at)
            yield state_of(job)
        finally:
            if _runs(job) and at is not None:
                with contextlib.suppress(HeadraceError):
                    self.nodes.ask("cancelJob", ApiJob, id=job.id, at=at)

    def jobs(self) -> list[ApiJob]:
        return self.nodes.ask("listJobs", ApiJobs).jobs


def state_of(job: ApiJob) -> JobState:
    """Raises what ended the job, where that was no file's fault."""
    if job.error is not None:
        told = job.error
        raise error_classes().get(told.code, HeadraceError)(told.what, why=told.why, hint=told.hint)
    return JobState(
        done=job.state != "running",
        files_done=job.files_done,
        files_total=job.files_total,
        bytes_done=job.bytes_done,
        bytes_total=job.bytes_total,
        failed_files=job.failed_files,
        failed=[(one.path, one.reason) for one in job.failed],
        listing=job.listing,
        id=job.id if job.scope == "cluster" else "",
        state=job.state if job.scope == "cluster" else "",
    )


def _runs(job: ApiJob) -> bool:
    return job.state == "running"


def _is_gone(error: HeadraceError) -> bool:
    return isinstance(error, PathNotFoundError)


def seen_of(row: ApiEntry) -> FileStat:
    if row.kind in ("file", "directory"):
        kind = Kind.FILE if row.kind == "file" else Kind.DIRECTORY
        name = os.fsencode(row.path.rpartition("/")[2])
        return Entry(FileId(row.id), ROOT_ID, name, kind, Version(row.size_bytes, row.mtime_ns, row.version))
    mode = stat.S_IFLNK | 0o777 if row.kind == "link" else stat.S_IFIFO
    seconds = row.mtime_ns // 1_000_000_000
    values = (mode, row.id, 0, 1, 0, 0, row.size_bytes, seconds, seconds, seconds)
    return os.stat_result(values, {"st_mtime_ns": row.mtime_ns})


def _scratch() -> int:
    """A file without a name, of which nothing stays when this process dies."""
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
