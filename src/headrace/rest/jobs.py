"""Serve jobs as resources: those of the cluster, which every node knows, and those that this process started.

A job of this node ends with the connection that started it (`wire/messages.py`, JobStart). A thread therefore keeps
the connection, and the job has an id of this process. A gateway that is restarted does not know the job any more.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time

import msgspec

from headrace.base.cancel import Cancel
from headrace.base.errors import (
    CancelledByUserError,
    HeadraceError,
    PathNotFoundError,
    UsageError,
)
from headrace.client.connection import Connection, is_welcoming
from headrace.client.node_client import NodeClient
from headrace.rest.problems import problem_of
from headrace.rest.waiters import Waiters
from headrace.wire.api import ApiJob, Failed, NewJob
from headrace.wire.messages import (
    JobCancel,
    JobList,
    JobRetry,
    JobRow,
    JobRows,
    JobStart,
    JobState,
)

log = logging.getLogger(__name__)

ENDED_KEPT_MAX = 100
"""Most jobs of this node that are remembered after their end."""
RUNNING_MAX = 64
"""Most jobs of this node that are followed at one time: each has a thread."""
POLL_S = 0.25
"""Seconds between two requests for the state of a job of the cluster."""
CANCEL_S = 5.0
"""Most seconds that a cancel waits for the end of a job of this node."""


class OwnJob:
    """Follows one job of this node. Its thread replaces `job` as a whole; other threads read it."""

    def __init__(self, id: str, new: NewJob, connection: Connection, first: JobState) -> None:
        self.cancel = Cancel()
        self.ended = threading.Event()
        self._connection = connection
        self._began_s = time.monotonic()
        self.job = ApiJob(
            id=id,
            kind=new.kind,
            path=new.path,
            state="running",
            scope="node",
            options=new.options,
            files_done=0,
            files_total=0,
            bytes_done=0,
            bytes_total=0,
            failed_files=0,
            failed=[],
            listing=True,
        )
        self._update(first)

    def follow(self) -> None:
        """Receive the states of the job until it has ended."""
        try:
            while self.job.state == "running":
                state = self._connection.receive(cancel=self.cancel)
                assert isinstance(state, JobState)
                self._update(state)
        except CancelledByUserError:
            self.job = self._changed(state="cancelled")
        except HeadraceError as error:
            self.job = self._changed(state="failed", error=problem_of(error))
        except Exception:
            log.exception("a job can't be followed any more id=%s", self.job.id)
            self.job = self._changed(
                state="failed", error=problem_of(HeadraceError("job", why="a defect, see the log"))
            )
        finally:
            self._connection.close()
            self.cancel.close()
            self.ended.set()

    def _update(self, state: JobState) -> None:
        self.job = self._changed(
            state=("failed" if state.failed_files else "done") if state.done else "running",
            files_done=state.files_done,
            files_total=state.files_total,
            bytes_done=state.bytes_done,
            bytes_total=state.bytes_total,
            failed_files=state.failed_files,
            failed=[Failed(*failure) for failure in state.failed],
            listing=state.listing and not state.done,
            data=state.data,
        )

    def _changed(self, **changes: object) -> ApiJob:
        took_s = round(time.monotonic() - self._began_s, 3)
        return msgspec.structs.replace(self.job, took_s=took_s, **changes)


class JobOperations:
    """Answers the operations on jobs. Thread-safe."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client
        self._own: dict[str, OwnJob] = {}
        self._lock = threading.Lock()
        self._waiters = Waiters()
        self._prefix = secrets.token_hex(3)
        self._numbers = itertools.count(1)

    def start(self, new: NewJob) -> ApiJob:
        """Start a job, and return its first state. Raises UsageError or PathNotFoundError for a job that can't
        start."""
        if sum(not job.ended.is_set() for job in self._all_own()) >= RUNNING_MAX:
            raise UsageError(
                "job", why=f"{RUNNING_MAX} jobs of this node are running", hint="try again when one has ended"
            )
        connection = Connection(self._client.socket, role="rest")
        try:
            connection.send(JobStart(kind=new.kind, path=new.path, options=new.options))
            first = connection.receive(is_alive=lambda: is_welcoming(self._client.socket, role="rest"))
            assert isinstance(first, JobState)
            if first.id:
                connection.close()
                return self._of_cluster(first.id)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            own = OwnJob(f"node-{self._prefix}-{next(self._numbers)}", new, connection, first)
            self._own[own.job.id] = own
            self._forget_old()
        threading.Thread(target=own.follow, daemon=True, name=own.job.id).start()
        return own.job

    def get(self, id: str, wait_s: float) -> ApiJob:
        """Return a job, after its end or after `wait_s`, whichever comes first; at once if too many requests wait.
        Raises PathNotFoundError."""
        with self._waiters.waiting_s(wait_s) as allowed_s:
            return self._awaited(id, allowed_s)

    def _awaited(self, id: str, wait_s: float) -> ApiJob:
        own = self._find_own(id)
        if own is not None:
            own.ended.wait(wait_s)
            return own.job
        deadline_s = time.monotonic() + wait_s
        while True:
            job = self._of_cluster(id)
            remaining_s = deadline_s - time.monotonic()
            if job.state != "running" or remaining_s <= 0:
                return job
            time.sleep(min(POLL_S, remaining_s))

    def all(self) -> list[ApiJob]:
        """Return the jobs of the cluster, then those of this node, each with the oldest first."""
        return [*map(_job_of, self._rows("")), *(own.job for own in self._all_own())]

    def cancel(self, id: str) -> ApiJob:
        """Cancel a job, unless it has ended, and return it. Raises PathNotFoundError."""
        own = self._find_own(id)
        if own is None:
            self._of_cluster(id)
            self._client.ask(JobCancel(id=id))
            return self._of_cluster(id)
        own.cancel.set()
        with self._waiters.waiting_s(CANCEL_S) as wait_s:
            own.ended.wait(wait_s)
        return own.job

    def retry(self, id: str) -> ApiJob:
        """Retry a job. Raises PathNotFoundError; raises UsageError for a job of this node."""
        if self._find_own(id) is not None:
            raise UsageError(f"job {id}", why="a job of one node can't be retried", hint="start it again")
        self._of_cluster(id)
        self._client.ask(JobRetry(id=id))
        return self._of_cluster(id)

    # ------------------------------------------------------------ inside

    def _of_cluster(self, id: str) -> ApiJob:
        rows = self._rows(id)  # not of all jobs: their lists of failures may have megabytes
        if not rows:
            raise PathNotFoundError(f"job {id}", why="no job has that id")
        return _job_of(rows[0])

    def _rows(self, id: str) -> list[JobRow]:
        """Return the job of the cluster with that id, all for ""; none if there is none, or no cluster."""
        try:
            answer = self._client.ask(JobList(id=id))
        except UsageError:
            return []
        assert isinstance(answer, JobRows)
        return answer.rows

    def _find_own(self, id: str) -> OwnJob | None:
        with self._lock:
            return self._own.get(id)

    def _all_own(self) -> list[OwnJob]:
        with self._lock:
            return list(self._own.values())

    def _forget_old(self) -> None:
        ended = [id for id, own in self._own.items() if own.ended.is_set()]
        for id in ended[: max(0, len(ended) - ENDED_KEPT_MAX)]:
            del self._own[id]


def _job_of(row: JobRow) -> ApiJob:
    return ApiJob(
        id=row.id,
        kind=row.kind,
        path=row.path,
        state=row.state,  # type: ignore[arg-type]  # a record has one of these words (jobs/job_records.py)
        scope="cluster",
        options=row.options,
        files_done=row.files_done,
        files_total=row.files_total,
        bytes_done=row.bytes_done,
        bytes_total=row.bytes_total,
        failed_files=row.failed_files,
        failed=[Failed(*failure) for failure in row.failed],
        listing=row.listing,
        took_s=row.took_s,
        node=row.node,
        attempt=row.attempt,
        bytes_s=row.bytes_s,
        eta_s=row.eta_s,
        files_by_node=row.files_by_node,
        data=row.data,
    )
