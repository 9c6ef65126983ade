"""Translates a node's own messages (`wire/messages.py`) to its REST API, for the command line on a host without a
node.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from headrace.base.deadline import Deadline
from headrace.base.errors import NotSupportedError
from headrace.base.model import Entry, FileId, Kind
from headrace.vfs.remote.remote_registry import REMOTES
from headrace.vfs.remote.remote_vfs import RemoteVfs, status_of
from headrace.wire.api import (
    ApiJob,
    ApiLocation,
    ApiMount,
    ApiMounts,
    ApiPlans,
    ApiPolicy,
    ApiPolicyAdvice,
    ApiPolicyDecisions,
    ApiPolicyOutcomes,
    EarlierPolicy,
    NewMount,
    NewPolicy,
)
from headrace.wire.location_messages import LocationAsk, LocationShown
from headrace.wire.message import Message
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
    MountAdd,
    MountList,
    MountRemove,
    MountRow,
    PlanList,
    Report,
    StatusAsk,
)
from headrace.wire.messages import Mounts as MountsAnswer
from headrace.wire.plan_answers import PlanRows
from headrace.wire.policy_messages import (
    PolicyAdvise,
    PolicyAdvised,
    PolicyAsk,
    PolicyExplain,
    PolicyExplained,
    PolicyRollBack,
    PolicySet,
    PolicyShown,
    PolicyTried,
    PolicyTry,
)


class RemoteConnection:
    """Replaces a `Connection`, for the messages that have a meaning on another host. nodes: as the setting."""

    def __init__(self, nodes: str) -> None:
        self._vfs = REMOTES.get(nodes, 0.0)
        self._nodes = self._vfs.nodes

    def ask(self, request: Message, *, deadline: Deadline | None = None) -> Answer:
        """Send a message and return its answer. Errors as the node answers them. Raises NotSupportedError."""
        match request:
            case StatusAsk():
                return Report(self._vfs.status())
            case MountList():
                rows = self._nodes.ask("listMounts", ApiMounts).mounts
                return MountsAnswer(
                    [MountRow(mount.path, mount.url, mount.sync_interval_s) for mount in rows]
                )
            case MountAdd(path=path, url=url, options=options):
                self._nodes.ask("addMount", ApiMount, body=NewMount(path, url, options))
            case MountRemove(path=path):
                self._nodes.change("removeMount", {"path": path})
            case PlanList():
                return PlanRows(self._nodes.ask("listPlans", ApiPlans).plans)
            case (
                PolicyAsk() | PolicySet() | PolicyRollBack() | PolicyTry() | PolicyExplain() | PolicyAdvise()
            ):
                return self._ask_about_policy(request)
            case LocationAsk(path=path_bytes):
                shown = self._nodes.ask("explainLocation", ApiLocation, path=os.fsdecode(path_bytes))
                return LocationShown(shown.location)
            case JobList(id=id):
                jobs = [self._nodes.ask("getJob", ApiJob, id=id)] if id else self._vfs.jobs.all()
                return JobRows([_row_of(job) for job in jobs])
            case JobCancel(id=id):
                self._nodes.ask("cancelJob", ApiJob, id=id)
            case JobRetry(id=id):
                self._nodes.ask("retryJob", ApiJob, id=id)
            case _:
                raise NotSupportedError(
                    type(request).__name__, why="the node is on another host", hint="run it there"
                )
        return Done()

    def _ask_about_policy(
        self, request: PolicyAsk | PolicySet | PolicyRollBack | PolicyTry | PolicyExplain | PolicyAdvise
    ) -> Answer:
        match request:
            case PolicyAsk(number=number):
                shown = self._nodes.ask("getPolicy", ApiPolicy, number=number)
            case PolicySet(text=text, author=author, base=base):
                shown = self._nodes.ask("setPolicy", ApiPolicy, body=NewPolicy(text, author, base))
            case PolicyRollBack(number=number, author=author):
                shown = self._nodes.ask("rollBackPolicy", ApiPolicy, body=EarlierPolicy(number, author))
            case PolicyTry(text=text):
                body = NewPolicy(text)
                tried = self._nodes.ask("tryPolicy", ApiPolicyOutcomes, body=body)
                return PolicyTried(tried.outcomes, tried.unanswered, tried.warnings)
            case PolicyAdvise():
                advised = self._nodes.ask("advisePolicy", ApiPolicyAdvice)
                return PolicyAdvised(advised.outlooks, advised.advice)
            case PolicyExplain(path=path):
                decided = self._nodes.ask("explainPolicy", ApiPolicyDecisions, path=os.fsdecode(path))
                return PolicyExplained(decided.decisions)
        return PolicyShown(shown.number, shown.text, shown.versions, shown.unanswered, shown.warnings)

    def stream(self, request: JobStart) -> Iterator[JobState]:
        return self._vfs.run_job(request)

    def receive(self, *, deadline: Deadline | None = None) -> Answer:
        raise NotSupportedError("the next answer", why="the node is on another host")

    def close(self) -> None:
        """Do nothing: the process shares the connections, which stay open."""


class RemoteClient:
    """Provides the methods of a NodeClient that `ls`, `stat` and `cat` call."""

    def __init__(self, nodes: str) -> None:
        self._vfs: RemoteVfs = REMOTES.get(nodes, 0.0)
        self._last: dict[FileId, dict[str, str]] = {}

    def resolve(self, path: bytes) -> Entry:
        """Return the entry at a path. Raises PathNotFoundError."""
        row = self._vfs.look(path, follow=True)
        entry = status_of(row)
        if not isinstance(entry, Entry):
            raise NotSupportedError(os.fsdecode(path), why="it is neither a file nor a directory")
        state = {"cached": row.cached, "version": row.version, "origin": row.origin}
        self._last[entry.id] = {"socket": "", **state}
        return entry

    def list_path(self, path: bytes) -> Iterator[Entry]:
        entry = self.resolve(path)
        if entry.kind is Kind.FILE:
            yield entry
            return
        for _, child in self._vfs.children(path):
            if isinstance(child, Entry):
                yield child

    def file_state(self, id: FileId) -> dict[str, str]:
        """Return the attributes of a file that was resolved before."""
        return self._last[id]

    def read(self, path: bytes, start: int = 0, end: int | None = None) -> Iterator[memoryview]:
        content = self._vfs.content(path)
        stop = content.size_bytes if end is None else min(end, content.size_bytes)
        step = 16 << 20
        try:
            for offset in range(start, stop, step):
                yield memoryview(content.read(offset, min(stop, offset + step)))
        finally:
            content.close()

    def close(self) -> None:
        """Do nothing: the process shares the connections, which stay open."""


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
        failed=[(failure.path, failure.reason) for failure in job.failed],
        listing=job.listing,
        bytes_s=job.bytes_s,
        eta_s=job.eta_s,
        took_s=job.took_s,
        files_by_node=job.files_by_node,
        data=job.data,
    )
