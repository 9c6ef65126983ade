"""The REST API of a node: every operation in one table, and the JSON it takes and gives. The authority on its meaning.

`rest/gateway.py` routes by this table, `sdk/remote_node.py` asks by it, docs/openapi.json is written from it. Values
and words only, no socket. Since v1; what is added later has a default.

Text of paths and names that is no UTF-8 has lone surrogates (`\\udc80`…), as Python's os.fsdecode makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

TOKEN_HEADER = "authorization"
SUMS_HEADER = "headrace-checksums"
"""Of a request for content: "xxh3-64" asks for it. Of its answer: one checksum for each piece of the range that lies
within one block of 1 MiB, 16 hex digits each, with commas between. Of whole blocks that are cached it is the checksum
that was taken when they were fetched, so that the client checks them from end to end."""
SUM_HEADER = "headrace-checksum"
"""Of a request that brings content: xxh3-64 of all of it, 16 hex digits; what doesn't match is not kept."""
SUMS_WORD = "xxh3-64"
SUMS_BYTES_MAX = 32 << 20
"""A range up to this length is answered with checksums."""
PAGE_NAMES = 1000
WAIT_S_MAX = 30.0
BODY_BYTES_MAX = 1 << 20
"""Of a body that is JSON."""

PATH = Meta(
    description="In the namespace, absolute.",
    pattern="^/",
    min_length=1,
    max_length=4096,
    examples=["/images/0001.jpg"],
)
Path = Annotated[str, PATH]


class Value(msgspec.Struct, frozen=True, omit_defaults=False):
    """Base of all that is JSON."""


# ---------------------------------------------------------------- what is asked


class Nothing(Value, frozen=True):
    """No parameters."""


class AtPath(Value, frozen=True):
    path: Path


class EntryQuery(Value, frozen=True):
    path: Path
    follow: Annotated[bool, Meta(description="Of a link: what it leads to.")] = False


class ListQuery(Value, frozen=True):
    path: Path
    after: Annotated[
        str, Meta(description="Names after this one: `next` of the page before.", max_length=255)
    ] = ""
    limit: Annotated[int, Meta(description="Entries of the page at most.", ge=1, le=10_000)] = PAGE_NAMES


class RemoveQuery(Value, frozen=True):
    path: Path
    recursive: Annotated[bool, Meta(description="A folder, too, with all that is in it.")] = False
    empty_directory: Annotated[bool, Meta(description="A folder that has nothing in it.")] = False


class PutQuery(Value, frozen=True):
    path: Path
    replace: Annotated[bool, Meta(description="What is there is replaced; false: that is an error.")] = True


class JobQuery(Value, frozen=True):
    id: Annotated[str, Meta(description="Of a job.", min_length=1, max_length=200)]


class WaitQuery(Value, frozen=True):
    id: Annotated[str, Meta(description="Of a job.", min_length=1, max_length=200)]
    wait_s: Annotated[
        float,
        Meta(description="So long the answer may wait for the job's end, in seconds.", ge=0, le=WAIT_S_MAX),
    ] = 0.0


class NewMount(Value, frozen=True):
    """options: docs/operating.md; secrets among them are not kept over a restart."""

    path: Path
    url: Annotated[str, Meta(description="Of the origin.", min_length=1, examples=["s3://bucket/prefix"])]
    options: dict[str, str] = {}


JobKind = Literal["load", "free", "pin", "unpin", "sync", "persist", "persist-soon", "fsck", "drain"]


class NewJob(Value, frozen=True):
    """options: as of the command of that name, as text: replicas, priority, verify; forget_conflicts."""

    kind: JobKind
    path: Path = "/"
    options: dict[str, str] = {}


class Rename(Value, frozen=True):
    source: Path
    target: Path


# ---------------------------------------------------------------- what is answered


class Health(Value, frozen=True):
    ready: bool


class ApiStatus(Value, frozen=True):
    """status: what `headrace status --json` prints of a node, docs/operating.md."""

    status: dict[str, Any]


class ApiMount(Value, frozen=True):
    path: str
    url: str
    sync_interval_s: float


class ApiMounts(Value, frozen=True):
    mounts: list[ApiMount]


class ApiMember(Value, frozen=True):
    """api: where its REST API is, as a URL; "": it has none. capacity_bytes: its share of the ring follows from it."""

    id: str
    api: str
    zone: str
    capacity_bytes: int
    draining: bool


class Cluster(Value, frozen=True):
    """node: that was asked; "" and no members: it is alone."""

    node: str
    replicas: int
    members: list[ApiMember]


class Failed(Value, frozen=True):
    path: str
    reason: str


class ApiJob(Value, frozen=True):
    """scope: `cluster`: a job of all nodes, known to each; `node`: of this API's process, which ends with it. state:
    running, done, cancelled or failed (at its end some files could not be done). failed: up to 1000, failed_files
    counts all. files_total 0: not known yet; listing: more may be found. error: why it ended, where that was no file's
    fault."""

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
    error: Problem | None = None


class ApiJobs(Value, frozen=True):
    jobs: list[ApiJob]


class ApiEntry(Value, frozen=True):
    """path: with `follow` what it leads to. mtime_ns: 0 where the origin knows none. version: of a file; another one
    where the bytes are others. target: of a link. id, cached (`yes`, `no`, or a share as `40%`) and origin are told of
    one path only."""

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
    """next: to be given as `after` for the next page; null: this is the last one."""

    entries: list[ApiEntry]
    next: str | None


class Problem(Value, frozen=True):
    """RFC 9457. code: of docs/errors.md; detail is what, why and hint in one line. retryable: the same call may work
    later."""

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
    """query: parameters; those that stand in the path are among them. body, answer: JSON, or BYTES, or TEXT, or None.
    open: no token is asked for. refusals: HTTP statuses that are told of this operation beside those of all."""

    name: str
    method: str
    path: str
    summary: str
    query: type[Value] = Nothing
    body: type[Value] | str | None = None
    answer: type[Value] | str | None = None
    status: int = 200
    open: bool = False

    @property
    def path_names(self) -> tuple[str, ...]:
        """Parameters that stand in the path."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))


BYTES, TEXT, DOCUMENT = (
    "application/octet-stream",
    "text/plain; version=0.0.4; charset=utf-8",
    "application/json",
)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="health", method="GET", path="/healthz", open=True, answer=Health,
        summary="Whether this API answers.",
    ),
    Operation(
        name="ready", method="GET", path="/readyz", open=True, answer=Health,
        summary="Whether the node behind it answers; 503 where it does not.",
    ),
    Operation(
        name="metrics", method="GET", path="/metrics", answer=TEXT,
        summary="Counters and gauges for Prometheus.",
    ),
    Operation(
        name="document", method="GET", path="/openapi.json", open=True, answer=DOCUMENT,
        summary="This document.",
    ),
    Operation(
        name="status", method="GET", path="/v1/status", answer=ApiStatus,
        summary="What the node holds and does.",
    ),
    Operation(
        name="cluster", method="GET", path="/v1/cluster", answer=Cluster,
        summary="The nodes, and where their APIs are.",
    ),
    Operation(
        name="listMounts", method="GET", path="/v1/mounts", answer=ApiMounts,
        summary="Which origins are attached, and where.",
    ),
    Operation(
        name="addMount", method="POST", path="/v1/mounts", body=NewMount, answer=ApiMount, status=201,
        summary="Attach an origin.",
    ),
    Operation(
        name="removeMount", method="DELETE", path="/v1/mounts", query=AtPath, status=204,
        summary="Detach what is attached at a path. The origin is not touched.",
    ),
    Operation(
        name="listJobs", method="GET", path="/v1/jobs", answer=ApiJobs,
        summary="Jobs that run, and the last ones that are over.",
    ),
    Operation(
        name="startJob", method="POST", path="/v1/jobs", body=NewJob, answer=ApiJob, status=202,
        summary="Begin a job: load, free, pin, unpin, sync, persist, fsck, or drain of the node.",
    ),
    Operation(
        name="getJob", method="GET", path="/v1/jobs/{id}", query=WaitQuery, answer=ApiJob,
        summary="How far a job is, and what failed.",
    ),
    Operation(
        name="cancelJob", method="POST", path="/v1/jobs/{id}/cancel", query=JobQuery, answer=ApiJob, status=202,
        summary="End a job; what is done stays done.",
    ),
    Operation(
        name="retryJob", method="POST", path="/v1/jobs/{id}/retry", query=JobQuery, answer=ApiJob, status=202,
        summary="Do again what failed of a job of the cluster.",
    ),
    Operation(
        name="getEntry", method="GET", path="/v1/entry", query=EntryQuery, answer=ApiEntry,
        summary="What is known of one path.",
    ),
    Operation(
        name="removeEntry", method="DELETE", path="/v1/entry", query=RemoveQuery, status=204,
        summary="Remove a file or a link; recursive: a folder, too.",
    ),
    Operation(
        name="listEntries", method="GET", path="/v1/entries", query=ListQuery, answer=ApiEntries,
        summary="What is in a directory, by name, in pages.",
    ),
    Operation(
        name="makeDirectory", method="PUT", path="/v1/directory", query=AtPath, status=204,
        summary="Make a directory, with those above; one that is there is let be.",
    ),
    Operation(
        name="rename", method="POST", path="/v1/rename", body=Rename, status=204,
        summary="Give another name, in one step, over a file that is there.",
    ),
    Operation(
        name="readContent", method="GET", path="/v1/content", query=AtPath, answer=BYTES,
        summary="A file's bytes, or a range of them.",
    ),
    Operation(
        name="writeContent", method="PUT", path="/v1/content", query=PutQuery, body=BYTES, status=204,
        summary="A whole file, which is there when all of it has come. Folders above it are made.",
    ),
)  # fmt: skip


def operation(name: str) -> Operation:
    return _BY_NAME[name]


def etag_of(version: str) -> str:
    """Of content: the version as HTTP writes it."""
    return version if version.startswith(('"', 'W/"')) else f'"{version}"'


_BY_NAME = {one.name: one for one in OPERATIONS}
