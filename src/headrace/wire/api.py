"""The REST API of a node: one table of all operations, and the JSON of their requests and responses. It is the
authority on their meaning.

`rest/gateway.py` routes by this table, the client of another host calls by it, and docs/openapi.json is generated from
it. The module has values only, no socket. It exists since v1; fields that are added later have a default.

A path or name that is not UTF-8 has lone surrogates (`\\udc80`…), as Python's os.fsdecode makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from headrace.policy.limits import POLICY_AUTHOR_MAX, POLICY_TEXT_MAX
from headrace.wire.location_messages import FileLocation
from headrace.wire.plan_answers import PlanRow
from headrace.wire.policy_messages import (
    PolicyAdvice,
    PolicyDecision,
    PolicyOutcome,
    PolicyOutlook,
    PolicyVersionRow,
)
from headrace.wire.seal_messages import SealRow
from headrace.wire.trace_messages import HOPS_MAX, INSTANCE_PATTERN

TOKEN_HEADER = "authorization"
SUMS_HEADER = "headrace-checksums"
"""Header. In a request for content, "xxh3-64" asks for checksums. The response then has one checksum for each piece of
the range that lies within one block of 1 MiB: 16 hex digits each, separated by commas. For a complete cached block it
is the checksum taken when the block was fetched, so that the client verifies it end to end."""
SUM_HEADER = "headrace-checksum"
"""Header of a request that uploads content: xxh3-64 of all its bytes, 16 hex digits. The gateway discards content that
does not match."""
UPLOAD_HEADER = "headrace-upload"
"""Header of a request that uploads content and replaces nothing: 32 hex digits, chosen by the client. A gateway that
created the file by an upload with them answers a repeated one as it answered the first."""
SUMS_WORD = "xxh3-64"
SUMS_BYTES_MAX = 32 << 20
"""Bytes of the longest range that is answered with checksums."""
PAGE_NAMES = 1000
CHANGES_A_PAGE = 1000
"""The most names of one answer about changes."""
WAIT_S_MAX = 30.0
BODY_BYTES_MAX = 1 << 20
"""The limit for a JSON body."""

PATH = Meta(
    description="Absolute path in the namespace.",
    pattern="^/",
    min_length=1,
    max_length=4096,
    examples=["/images/0001.jpg"],
)
Path = Annotated[str, PATH]


WHOLE = Meta(ge=0, le=1 << 31, multiple_of=1)
"""A whole number in JSON, for which 3.0 is one, too."""


class Value(msgspec.Struct, frozen=True, omit_defaults=False):
    """Base of all JSON values."""


# ---------------------------------------------------------------- requests


class Nothing(Value, frozen=True):
    """An operation without parameters."""


class AtPath(Value, frozen=True):
    path: Path


class EntryQuery(Value, frozen=True):
    path: Path
    follow: Annotated[bool, Meta(description="Return the target of a link, not the link itself.")] = False


class ListQuery(Value, frozen=True):
    path: Path
    after: Annotated[
        str, Meta(description="List the names after this one: `next` of the previous page.", max_length=255)
    ] = ""
    limit: Annotated[int, Meta(description="Entries per page, at most.", ge=1, le=10_000)] = PAGE_NAMES


class RemoveQuery(Value, frozen=True):
    path: Path
    recursive: Annotated[bool, Meta(description="Remove a directory too, with everything in it.")] = False
    empty_directory: Annotated[bool, Meta(description="Remove an empty directory.")] = False


class PutQuery(Value, frozen=True):
    path: Path
    replace: Annotated[
        bool, Meta(description="Replace an existing file; false: an existing file is an error.")
    ] = True


class JobQuery(Value, frozen=True):
    id: Annotated[str, Meta(description="Id of the job.", min_length=1, max_length=200)]


class WaitQuery(JobQuery, frozen=True):
    wait_s: Annotated[
        float,
        Meta(
            description="Seconds for which the response may wait for the end of the job.",
            ge=0,
            le=WAIT_S_MAX,
        ),
    ] = 0.0


class ChangesQuery(Value, frozen=True):
    """Which changes are asked for. feed, after: of the last answer; nothing for a start at the present."""

    path: Path = "/"
    feed: Annotated[str, Meta(max_length=64)] = ""
    after: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    wait_s: Annotated[
        float, Meta(description="Seconds for which the response may wait for a change.", ge=0, le=WAIT_S_MAX)
    ] = 0.0


class TraceQuery(Value, frozen=True):
    """Which mount is being added. instance: of a node of the cluster that adds it. mount: its path there. hops:
    clusters that passed the question on."""

    path: Path
    instance: Annotated[str, Meta(pattern=INSTANCE_PATTERN)]
    mount: Path
    hops: Annotated[int, Meta(ge=0, le=HOPS_MAX)] = 0


class SealQuery(Value, frozen=True):
    """Which seals are asked for."""

    origin: Annotated[
        bool, Meta(description="Return the seals at the origins of the mounts, not those of the node.")
    ] = False


class NewMount(Value, frozen=True):
    """A mount to attach. options: see docs/origins.md; secrets among them are not kept over a restart."""

    path: Path
    url: Annotated[str, Meta(description="URL of the origin.", min_length=1, examples=["s3://bucket/prefix"])]
    options: dict[str, str] = {}


JobKind = Literal[
    "load",
    "free",
    "pin",
    "unpin",
    "sync",
    "persist",
    "persist-soon",
    "fsck",
    "drain",
    "seal",
    "unseal",
    "verify-seal",
    "push-seal",
    "pull-seal",
]


class NewJob(Value, frozen=True):
    """A job to start. options: those of the command of that name, as text: replicas, priority, verify,
    forget_conflicts; seal, as NAME@VERSION, which jobs of seals need."""

    kind: JobKind
    path: Path = "/"
    options: dict[str, str] = {}


class Rename(Value, frozen=True):
    source: Path
    target: Path


# ---------------------------------------------------------------- responses


class Health(Value, frozen=True):
    ready: bool


class ApiStatus(Value, frozen=True):
    """The status of a node. status: what `headrace status --json` prints, see docs/status.md."""

    status: dict[str, Any]


class ApiMount(Value, frozen=True):
    path: str
    url: str
    sync_interval_s: float


class ApiMounts(Value, frozen=True):
    mounts: list[ApiMount]


class ApiSeals(Value, frozen=True):
    """Seals, by name and version. id: a hash of the content list."""

    seals: list[SealRow]


class ApiMember(Value, frozen=True):
    """A member of the cluster. api: URL of its REST API; "": it has none. capacity_bytes: its share of the ring follows
    from it."""

    id: str
    api: str
    zone: str
    capacity_bytes: int
    draining: bool


class Cluster(Value, frozen=True):
    """The cluster as one node sees it. node: the node that answers. A node without a cluster has node "" and no
    members."""

    node: str
    replicas: int
    members: list[ApiMember]


class Failed(Value, frozen=True):
    path: str
    reason: str


class ApiJob(Value, frozen=True):
    """A job and its progress. scope: `cluster` for a job of all nodes, which each of them can report; `node` for a job
    that ends with the process that serves this API. state: running, done, cancelled or failed; failed means
    that some files could not be processed. failed: up to 1000 files; failed_files counts all. files_total: 0 while
    unknown. listing: the job may still find more files. data: the id of the seal
    whose files it concerns, by its name. error: why the job ended, if no single file caused it."""

    id: str
    kind: str
    path: str
    state: Literal["running", "done", "cancelled", "failed"]
    scope: Literal["cluster", "node"]
    options: dict[str, str]
    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    failed_files: int
    failed: list[Failed]
    listing: bool
    took_s: float = 0.0
    node: str = ""
    attempt: int = 1
    bytes_s: float = 0.0
    eta_s: float | None = None
    files_by_node: dict[str, int] = {}
    data: dict[str, str] = {}
    error: Problem | None = None


class ApiJobs(Value, frozen=True):
    jobs: list[ApiJob]


class ApiPlans(Value, frozen=True):
    """The loaders of training jobs whose order of reads the node knows."""

    plans: list[PlanRow]


class ApiPolicy(Value, frozen=True):
    """A version of the policy, and all that are kept, the one in force last. number: 0 where none was set. unanswered:
    nodes that did not check it before it was set, and why. warnings: what the version in force asks for in vain."""

    number: int
    text: str
    versions: list[PolicyVersionRow]
    unanswered: dict[str, str] = {}
    warnings: list[str] = []


class ApiTrace(Value, frozen=True):
    """Says whether the origins of a path lead back to a mount. false also if a cluster behind did not answer."""

    leads_back: bool


class ReceivedEvents(Value, frozen=True):
    """Counts what was received. changes: changes of objects; refused: those whose keys have no name in a namespace.
    When Azure Event Grid asks for its code, the response has the code as `validationResponse`, and nothing else."""

    changes: int = 0
    refused: int = 0


class ApiPolicyAdvice(Value, frozen=True):
    """Says what the cache and each tenant read and would hit, and advises."""

    outlooks: list[PolicyOutlook]
    advice: list[PolicyAdvice]


class ApiChanges(Value, frozen=True):
    """Names that changed, one for each directory at least. feed, next: for the next request. is_complete: false if
    changes are missing before these, and for a first request; then anything may have changed."""

    feed: str
    next: int
    names: list[str]
    is_complete: bool = True


class ApiPolicyDecisions(Value, frozen=True):
    """The effects of the policy on a path."""

    decisions: list[PolicyDecision]


class ApiLocation(Value, frozen=True):
    """Says why a file is where it is."""

    location: FileLocation


class ApiPolicyOutcomes(Value, frozen=True):
    """The changes that a policy would make for the cached files of all nodes. unanswered: nodes that are not part of
    the sums, and why. warnings: what the policy asks for in vain."""

    outcomes: list[PolicyOutcome]
    unanswered: dict[str, str] = {}
    warnings: list[str] = []


class NewPolicy(Value, frozen=True):
    """A policy. author: who sets it. base: the version that it was made from: another one in force is an error."""

    text: Annotated[str, Meta(max_length=POLICY_TEXT_MAX)]
    author: Annotated[str, Meta(max_length=POLICY_AUTHOR_MAX)] = ""
    base: Annotated[float, WHOLE] | None = None


class EarlierPolicy(Value, frozen=True):
    """An earlier version of the policy. number: 0 for the one before."""

    number: Annotated[float, WHOLE] = 0
    author: Annotated[str, Meta(max_length=POLICY_AUTHOR_MAX)] = ""


class PolicyQuery(Value, frozen=True):
    """number: of the version; 0 for the one in force."""

    number: Annotated[int, Meta(ge=0, le=1 << 53)] = 0


class ApiEntry(Value, frozen=True):
    """An entry of the namespace. path: with `follow`, the target of the link. mtime_ns: 0 where the origin has no time.
    version: of a file; it changes when the bytes change. target: of a link. id, cached (`yes`, `no`, or a share such as
    `40%`) and origin are set in the response for one path only."""

    path: str
    kind: Literal["file", "directory", "link", "other"]
    size_bytes: int
    mtime_ns: int
    version: str = ""
    target: str = ""
    id: int = 0
    cached: str = ""
    origin: str = ""


class ApiEntries(Value, frozen=True):
    """A page of a listing. next: the value of `after` for the next page; null: this is the last page."""

    entries: list[ApiEntry]
    next: str | None


class Problem(Value, frozen=True):
    """An error as RFC 9457 describes it. code: see docs/errors.md. detail: what, why and hint in one line. retryable:
    the same call may succeed later."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    what: str = ""
    why: str = ""
    hint: str = ""
    retryable: bool = False


# ---------------------------------------------------------------- the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A row of the table. query: all parameters, including those in the path. body, answer: a JSON type, a media type,
    or None. open: the operation needs no token. events: it also takes the token of origins that send events."""

    name: str
    method: str
    path: str
    summary: str
    query: type[Value] = Nothing
    body: type[Value] | str | None = None
    answer: type[Value] | str | None = None
    status: int = 200
    open: bool = False
    events: bool = False

    @property
    def path_names(self) -> tuple[str, ...]:
        """Return the parameters in the path."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))


BYTES, TEXT, DOCUMENT = (
    "application/octet-stream",
    "text/plain; version=0.0.4; charset=utf-8",
    "application/json",
)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="health", method="GET", path="/healthz", open=True, answer=Health,
        summary="Report that this API is alive.",
    ),
    Operation(
        name="ready", method="GET", path="/readyz", open=True, answer=Health,
        summary="Report whether the node behind this API answers; 503 if it does not.",
    ),
    Operation(
        name="metrics", method="GET", path="/metrics", answer=TEXT,
        summary="Return counters and gauges for Prometheus.",
    ),
    Operation(
        name="document", method="GET", path="/openapi.json", open=True, answer=DOCUMENT,
        summary="Return this document.",
    ),
    Operation(
        name="status", method="GET", path="/v1/status", answer=ApiStatus,
        summary="Return the status of the node: what it caches and which work it does.",
    ),
    Operation(
        name="cluster", method="GET", path="/v1/cluster", answer=Cluster,
        summary="List the nodes of the cluster and the URLs of their APIs.",
    ),
    Operation(
        name="listMounts", method="GET", path="/v1/mounts", answer=ApiMounts,
        summary="List the mounts and their origins.",
    ),
    Operation(
        name="addMount", method="POST", path="/v1/mounts", body=NewMount, answer=ApiMount, status=201,
        summary="Attach an origin.",
    ),
    Operation(
        name="removeMount", method="DELETE", path="/v1/mounts", query=AtPath, status=204,
        summary="Detach the origin at a path. The origin itself does not change.",
    ),
    Operation(
        name="listSeals", method="GET", path="/v1/seals", query=SealQuery, answer=ApiSeals,
        summary="List the seals of the node, or those at the origins.",
    ),
    Operation(
        name="listPlans", method="GET", path="/v1/plans", answer=ApiPlans,
        summary="List the loaders of training jobs, and how far the cache is ahead of each.",
    ),
    Operation(
        name="getPolicy", method="GET", path="/v1/policy", query=PolicyQuery, answer=ApiPolicy,
        summary="Return the policy of the cluster, or an earlier version of it.",
    ),
    Operation(
        name="setPolicy", method="PUT", path="/v1/policy", body=NewPolicy, answer=ApiPolicy,
        summary="Put a policy in force on all nodes.",
    ),
    Operation(
        name="rollBackPolicy", method="POST", path="/v1/policy/rollback", body=EarlierPolicy, answer=ApiPolicy,
        summary="Put an earlier version of the policy in force again.",
    ),
    Operation(
        name="tryPolicy", method="POST", path="/v1/policy/try", body=NewPolicy, answer=ApiPolicyOutcomes,
        summary="Return what a policy would change for cached files; nothing changes.",
    ),
    Operation(
        name="advisePolicy", method="GET", path="/v1/policy/advice", answer=ApiPolicyAdvice,
        summary="Return what another size of the cache or another policy would do, by the reads of this host.",
    ),
    Operation(
        name="explainPolicy", method="GET", path="/v1/policy/explain", query=AtPath, answer=ApiPolicyDecisions,
        summary="Return what the policy means for a path, which need not exist.",
    ),
    Operation(
        name="listChanges", method="GET", path="/v1/changes", query=ChangesQuery, answer=ApiChanges,
        summary="Return names that changed since the last answer, and wait for them: for a far cluster.",
    ),
    Operation(
        name="traceMount", method="GET", path="/v1/trace", query=TraceQuery, answer=ApiTrace,
        summary="Return whether the origins of a path lead back to a mount of another cluster that is being added.",
    ),
    Operation(
        name="receiveEvents", method="POST", path="/v1/events", body=DOCUMENT, answer=ReceivedEvents, events=True,
        summary="Receive what an origin reports about changed objects: S3 event notifications and others.",
    ),
    Operation(
        name="confirmEvents", method="OPTIONS", path="/v1/events", open=True,
        summary="Confirm to a sender of CloudEvents that it may post events here, by its WebHook-Request-Origin.",
    ),
    Operation(
        name="explainLocation", method="GET", path="/v1/entry/location", query=AtPath, answer=ApiLocation,
        summary="Return why a file is where it is: its owners, and what decided them.",
    ),
    Operation(
        name="listJobs", method="GET", path="/v1/jobs", answer=ApiJobs,
        summary="List running jobs and the most recent finished ones.",
    ),
    Operation(
        name="startJob", method="POST", path="/v1/jobs", body=NewJob, answer=ApiJob, status=202,
        summary="Start a job: load, free, pin, unpin, sync, persist, fsck, drain of the node, or one of a seal.",
    ),
    Operation(
        name="getJob", method="GET", path="/v1/jobs/{id}", query=WaitQuery, answer=ApiJob,
        summary="Return the progress of a job and the files that failed.",
    ),
    Operation(
        name="cancelJob", method="POST", path="/v1/jobs/{id}/cancel", query=JobQuery, answer=ApiJob, status=202,
        summary="Cancel a job; files that are done stay done.",
    ),
    Operation(
        name="retryJob", method="POST", path="/v1/jobs/{id}/retry", query=JobQuery, answer=ApiJob, status=202,
        summary="Run the failed files of a cluster job again.",
    ),
    Operation(
        name="getEntry", method="GET", path="/v1/entry", query=EntryQuery, answer=ApiEntry,
        summary="Return the entry of one path.",
    ),
    Operation(
        name="removeEntry", method="DELETE", path="/v1/entry", query=RemoveQuery, status=204,
        summary="Remove a file or a link; with `recursive`, a directory too.",
    ),
    Operation(
        name="listEntries", method="GET", path="/v1/entries", query=ListQuery, answer=ApiEntries,
        summary="List a directory, sorted by name, in pages.",
    ),
    Operation(
        name="makeDirectory", method="PUT", path="/v1/directory", query=AtPath, status=204,
        summary="Create a directory and its missing parents; an existing one is no error.",
    ),
    Operation(
        name="rename", method="POST", path="/v1/rename", body=Rename, status=204,
        summary="Rename a path atomically; an existing file at the target is replaced.",
    ),
    Operation(
        name="readContent", method="GET", path="/v1/content", query=AtPath, answer=BYTES,
        summary="Read a file, or a range of it.",
    ),
    Operation(
        name="writeContent", method="PUT", path="/v1/content", query=PutQuery, body=BYTES, status=204,
        summary="Write a file; it appears when all its bytes have arrived. Missing parent directories are created.",
    ),
)  # fmt: skip


def operation(name: str) -> Operation:
    """Return the row of an operation. Raises KeyError for an unknown name."""
    return _BY_NAME[name]


def etag_of(version: str) -> str:
    """Return a version as an HTTP ETag of the content."""
    return version if version.startswith(('"', 'W/"')) else f'"{version}"'


_BY_NAME = {row.name: row for row in OPERATIONS}
