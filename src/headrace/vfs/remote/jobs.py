"""Run jobs on nodes of other hosts, and follow them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator

import msgspec

from headrace.base.errors import HeadraceError, UsageError, error_classes
from headrace.vfs.remote.cluster_client import ClusterClient, ClusterNode
from headrace.wire.api import ApiJob, ApiJobs, NewJob
from headrace.wire.messages import JobStart, JobState

JOB_POLL_S = 1.0
"""Least seconds between two requests for the state of a job. A node waits as long for its end, or answers at once if
too many requests wait there."""
SHARED = ("load", "free", "pin", "unpin")
"""Jobs of a cluster, which any node takes."""


class RemoteJobs:
    """Starts and lists jobs through the nodes of a cluster."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    def run(self, start: JobStart) -> Generator[JobState, None, None]:
        """Yield a job's states as `Vfs.run_job` does. Nodes persist what this process wrote to them. A drain runs on
        the node that was named."""
        nodes = self._nodes_of(start.kind)
        for number, node in enumerate(nodes):
            for state in self._run_at(node, start):
                last = number + 1 == len(nodes)
                yield state if last else msgspec.structs.replace(state, done=False)

    def _nodes_of(self, kind: str) -> list[ClusterNode]:
        only = self._cluster.only
        if kind == "drain" and only is None:
            raise UsageError("node drain", why="several nodes are named", hint="name only the node to drain")
        if kind in ("drain", "fsck") and only is not None:
            return [only]
        written = self._cluster.changed_at if kind.startswith("persist") else []
        return written or [only or self._cluster.home]

    def _run_at(self, node: ClusterNode, start: JobStart) -> Iterator[JobState]:
        if start.kind == "watch":
            job = self._cluster.ask("getJob", ApiJob, id=start.path)
        else:
            body = NewJob(start.kind, start.path, start.options)  # type: ignore[arg-type]  # the node checks it
            job = self._cluster.ask(
                "startJob", ApiJob, body=body, on=node if start.kind not in SHARED else None
            )
        scope_node = node if job.scope == "node" else None
        try:
            next_s = 0.0
            while _runs(job):
                yield state_of(job)
                time.sleep(max(0.0, next_s - time.monotonic()))
                next_s = time.monotonic() + JOB_POLL_S
                job = self._cluster.ask("getJob", ApiJob, id=job.id, wait_s=JOB_POLL_S, on=scope_node)
            yield state_of(job)
        finally:
            if _runs(job) and scope_node is not None:
                with contextlib.suppress(HeadraceError):
                    self._cluster.ask("cancelJob", ApiJob, id=job.id, on=scope_node)

    def all(self) -> list[ApiJob]:
        return self._cluster.ask("listJobs", ApiJobs).jobs


def state_of(job: ApiJob) -> JobState:
    """Return the state of a job. Raises the error that ended the job, unless files failed."""
    if job.error is not None:
        problem = job.error
        raise error_classes().get(problem.code, HeadraceError)(
            problem.what, why=problem.why, hint=problem.hint
        )
    return JobState(
        done=job.state != "running",
        files_done=job.files_done,
        files_total=job.files_total,
        bytes_done=job.bytes_done,
        bytes_total=job.bytes_total,
        failed_files=job.failed_files,
        failed=[(failure.path, failure.reason) for failure in job.failed],
        listing=job.listing,
        id=job.id if job.scope == "cluster" else "",
        state=job.state if job.scope == "cluster" else "",
        data=job.data,
    )


def _runs(job: ApiJob) -> bool:
    return job.state == "running"
