"""A node's own messages (`wire/messages.py`) by its REST API: for the command line, on a host where the node is not."""

from __future__ import annotations

import os
from collections.abc import Iterator

from headrace.base.deadline import Deadline
from headrace.base.errors import NotSupportedError
from headrace.base.model import Entry, FileId, Kind
from headrace.sdk.remote.remote_registry import REMOTES
from headrace.sdk.remote.remote_vfs import RemoteVfs, seen_of
from headrace.wire.api import ApiJob, ApiMounts, NewMount
from headrace.wire.api import ApiMount as Told
from headrace.wire.messages import (
    Answer,
    Done,
    JobCancel,
    JobList,
    JobRetry,
    JobRow,
    JobRows,
    JobStart,
    JobState,
    Message,
    MountAdd,
    MountList,
    MountRemove,
    MountRow,
    Report,
    StatusAsk,
)
from headrace.wire.messages import Mounts as MountsAnswer


class RemoteConnection:
    """nodes: as the setting. What a `Connection` does, of those messages that mean something on another host."""

    def __init__(self, nodes: str) -> None:
        self._paths = REMOTES.get(nodes, 0.0)
        self._nodes = self._paths.nodes

    def ask(self, request: Message, *, deadline: Deadline | None = None) -> Answer:
        """Errors as the node answers them; NotSupportedError."""
        match request:
            case StatusAsk():
                return Report(self._paths.status())
            case MountList():
                rows = self._nodes.ask("listMounts", ApiMounts).mounts
                return MountsAnswer([MountRow(one.path, one.url, one.sync_interval_s) for one in rows])
            case MountAdd(path=path, url=url, options=options):
                self._nodes.ask("addMount", Told, body=NewMount(path, url, options))
            case MountRemove(path=path):
                self._nodes.change("removeMount", {"path": path})
            case JobList(id=id):
                jobs = [self._nodes.ask("getJob", ApiJob, id=id)] if id else self._paths.jobs()
                return JobRows([_row_of(job) for job in jobs])
            case JobCancel(id=id):
                self._nodes.ask("cancelJob", ApiJob, id=id)
            case JobRetry(id=id):
                self._nodes.ask("retryJob", ApiJob, id=id)
            case _:
                raise NotSupportedError(
                    type(request).__name__, why="the node is on another host", hint="use it there"
                )
        return Done()

    def stream(self, request: JobStart) -> Iterator[JobState]:
        return self._paths.run_job(request)

    def receive(self, *, deadline: Deadline | None = None) -> Answer:
        raise NotSupportedError("the next answer", why="the node is on another host")

    def close(self) -> None:
        """What is shared by the process stays."""


class RemoteClient:
    """What `ls`, `stat` and `cat` ask of a Client."""

    def __init__(self, nodes: str) -> None:
        self._paths: RemoteVfs = REMOTES.get(nodes, 0.0)
        self._last: dict[FileId, dict[str, str]] = {}

    def resolve(self, path: bytes) -> Entry:
        """PathNotFoundError."""
        row = self._paths.look(path, follow=True)
        found = seen_of(row)
        if not isinstance(found, Entry):
            raise NotSupportedError(os.fsdecode(path), why="it is neither a file nor a directory")
        state = {"cached": row.cached, "version": row.version, "origin": row.origin}
        self._last[found.id] = {"socket": "", **state}
        return found

    def list_path(self, path: bytes) -> Iterator[Entry]:
        found = self.resolve(path)
        if found.kind is Kind.FILE:
            yield found
            return
        for _, one in self._paths.children(path):
            if isinstance(one, Entry):
                yield one

    def file_state(self, id: FileId) -> dict[str, str]:
        """Of one that was resolved before."""
        return self._last[id]

    def read(self, path: bytes, start: int = 0, end: int | None = None) -> Iterator[memoryview]:
        content = self._paths.content(path)
        stop = content.size_bytes if end is None else min(end, content.size_bytes)
        step = 16 << 20
        try:
            for at in range(start, stop, step):
                yield memoryview(content.read(at, min(stop, at + step)))
        finally:
            content.close()

    def close(self) -> None:
        """What is shared by the process stays."""


def _row_of(job: ApiJob) -> JobRow:
    return JobRow(
        id=job.id,
        kind=job.kind,
        path=job.path,
        options=job.options,
        node=job.node or os.uname().nodename,
        state=job.state,
        attempt=job.attempt,
        files_done=job.files_done,
        files_total=job.files_total,
        bytes_done=job.bytes_done,
        bytes_total=job.bytes_total,
        failed_files=job.failed_files,
        failed=[(one.path, one.reason) for one in job.failed],
        listing=job.listing,
        bytes_s=job.bytes_s,
        eta_s=job.eta_s,
        took_s=job.took_s,
        files_by_node=job.files_by_node,
    )
