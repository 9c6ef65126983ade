"""The messages between a host's clients and its node. This module is the authority on their meaning.

Requests and answers are tagged msgpack maps in frames (`wire/frame.py`). A connection carries one request at a time.
Its answer is the message named in the request's docstring, or Failure. File contents never travel here: answers say
when they are in the cache file. Since protocol 1.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from headrace.base.model import FILE_ID_MAX
from headrace.base.namespace_path import check_long_names
from headrace.wire.event_messages import ReportChanges
from headrace.wire.extents import count_extents, count_samples
from headrace.wire.location_messages import LocationAsk, LocationShown
from headrace.wire.message import Message
from headrace.wire.plan_answers import PlanNoted, PlanRows, PlanStarted
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
from headrace.wire.seal_messages import (
    SealList,
    SealOpen,
    SealOpened,
    SealRows,
)
from headrace.wire.trace_messages import MountTraced, TraceMount

PROTOCOL = 2
PLAN_TEXT_MAX = 1024
PLAN_SAMPLES_MAX = 1 << 31
PLAN_NAMES_MAX = PLAN_LEARNED_MAX = 1 << 16
"""The longest name of a plan, in characters; most samples of a data set; most files that one message names, or that a
worker reports."""
PLAN_SAMPLE_EXTENTS_MAX = 8
"""Most extents of a sample."""


TOUCHED_MAX = 100_000
"""Most files of one report."""
PROCESS_MAX = (1 << 48) - 1
TouchedId = Annotated[int, msgspec.Meta(ge=0, le=FILE_ID_MAX)]
StreamNumber = Annotated[int, msgspec.Meta(ge=0, le=PROCESS_MAX)]


def check_plan_range(first: int, count: int) -> None:
    """Raise ValueError unless positions first..first + count are within a plan."""
    if not 0 <= first <= first + count <= PLAN_SAMPLES_MAX:
        raise ValueError(f"positions {first} to {first + count} are not within a plan")


# ---------------------------------------------------------------- requests


class Hello(Message, frozen=True):
    """Introduce the client; the first message on every connection. → Welcome."""

    protocol: int
    pid: int
    role: str  # "session", "sdk", "cli", "s3"


class Lookup(Message, frozen=True):
    """Update the index for one name, now. → Done (then read the index: no entry means no such file) or Failure."""

    parent: int
    name: bytes


class List(Message, frozen=True):
    """Bring a complete, fresh listing of a directory into the index. → Done."""

    directory: int


class Open(Message, frozen=True):
    """Create the cache file of a file; a small file is filled completely first. → Opened."""

    id: int


class OpenMany(Message, frozen=True):
    """Open many small files at once, as Open does. → OpenedMany, many: one whenever files are complete; the last has
    done=True."""

    ids: list[int]


class FillRange(Message, frozen=True):
    """Wait until the bytes start..end of the file are in its cache file. → Filled. sequential: the caller reads on from
    here, so the node may read ahead."""

    id: int
    start: int
    end: int
    sequential: bool = True


class Touch(Message, frozen=True):
    """Report that the client opened these files, in this order: for eviction, and for predictions. process: a random
    number of the process; 0: opens that are not predicted. streams: for each open the number of the job that made it, 0
    if it is not known; empty: all are of one job. → Done."""

    ids: Annotated[list[TouchedId], msgspec.Meta(max_length=TOUCHED_MAX)]
    process: Annotated[int, msgspec.Meta(ge=0, le=PROCESS_MAX)] = 0
    streams: Annotated[tuple[StreamNumber, ...], msgspec.Meta(max_length=TOUCHED_MAX)] = ()

    def __post_init__(self) -> None:
        if self.streams and len(self.streams) != len(self.ids):
            raise ValueError(f"{len(self.ids)} opens have {len(self.streams)} streams")


class Forgot(Message, frozen=True):
    """Acknowledge an Evicted event by its receipt: the client released its descriptors and backing ids. An unknown
    receipt is no error. → Done."""

    receipt: int


class Subscribe(Message, frozen=True):
    """Turn this connection into a stream of events from the node. → Invalidated, Evicted, … until closed."""


class Resolve(Message, frozen=True):
    """Find the entry of a path of the namespace ("/a/b"); the node lists directories as needed. → Resolved."""

    path: bytes


class MountAdd(Message, frozen=True):
    """Attach an origin. options: of `origin/factory.py` (endpoint, region, …); secrets among them never get into logs.
    restricted: attach it only if `allowed_origins` permits it, because another host sent the request. → Done, with a
    warning for an origin that is empty."""

    path: str
    url: str
    options: dict[str, str]
    restricted: bool = False


class MountRemove(Message, frozen=True):
    """Detach an origin. → Done."""

    path: str


class MountList(Message, frozen=True):
    """List the mounts. → Mounts."""


class StatusAsk(Message, frozen=True):
    """Return the status of the node. → Report."""


class JobStart(Message, frozen=True):
    """Start a job. kind: load | free | pin | unpin | sync | fsck. → JobState, many: at least one a second; the last has
    done=True. Closing the connection cancels the job, unless it has an id: then it is a job of the whole cluster. With
    kind watch, path is such an id, and the answers are the states of that job. options: jobs/options.py."""

    kind: str
    path: str
    options: dict[str, str] = msgspec.field(default_factory=dict)


class JobList(Message, frozen=True):
    """List the cluster's jobs, or the one with this id. → JobRows."""

    id: str = ""


class JobCancel(Message, frozen=True):
    """Cancel a job on all nodes; files that are done stay done. → Done, also if the job was over already."""

    id: str


class JobRetry(Message, frozen=True):
    """Run the failed files of a job again, or all of its files. → Done, also while the job is running."""

    id: str


class Changed(Message, frozen=True):
    """Report paths of the upper layer that were written, created, moved or removed. source: the session that changed
    them; it gets no event. begun: files open for writing, of which replicas are promised. → Done, at once."""

    paths: list[bytes]
    source: int = 0
    begun: list[bytes] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        for path in (*self.paths, *self.begun):
            check_long_names(path)


class Secure(Message, frozen=True):
    """Make the files at a path as durable as its mode promises before a close returns. In `through` the origin has
    them; in `back:2` and more, so many nodes have them. In `back`, in a cluster, the other nodes know that dirty files
    exist. → Done after that, or Failure."""

    path: bytes

    def __post_init__(self) -> None:
        check_long_names(self.path)


class AcquireLease(Message, frozen=True):
    """Acquire the lease of a directory in order to create names in it exclusively. The node then holds the lease for a
    moment at least, and the index has the names that other nodes created. → Done, or Failure."""

    path: bytes

    def __post_init__(self) -> None:
        check_long_names(self.path)


class BreakClaim(Message, frozen=True):
    """Break the claim of a node that is lost to an exclusive directory. force: also if that node is in the cluster. →
    Done, or Failure."""

    path: str
    force: bool = False


class Describe(Message, frozen=True):
    """Return what the origin stores about a file's object besides its bytes, if it still has the version of that id. →
    Described."""

    id: int


class OperationRow(msgspec.Struct, frozen=True):
    """Counts of one operation since the gateway started. refused: answered 4xx; failed: 5xx. Bytes are those of
    bodies."""

    operation: str
    requests: int
    refused: int
    failed: int
    bytes_in: int
    bytes_out: int


class LookupVersion(Message, frozen=True):
    """Find the entry of a file in exactly this version; the origin is asked where the index has another one. The index
    does not change unless the origin has this version. → Resolved, or Failure with origin.version_changed."""

    path: bytes
    size_bytes: int
    mtime_ns: int
    token: str

    def __post_init__(self) -> None:
        check_long_names(self.path)


class GatewayCounts(Message, frozen=True):
    """Report what a gateway of this host has answered; sent every two seconds. kind: "s3", "webhdfs". → Done."""

    pid: int
    kind: str
    address: str
    rows: list[OperationRow]


class PlanStart(Message, frozen=True):
    """Announce the reads of one loader of a training process. A stream without any message for a minute ends. Since
    protocol 2. → PlanStarted.

    stream: a random id. job: its name. rank, world: of the process. key: what workers of this process call the data
    set, in PlanLearn. digest: of the names of its files, b"" where only the workers can tell. samples: of the data set.
    batch_size: samples that are taken at a time.
    """

    stream: str
    job: str
    rank: int
    world: int
    key: str
    digest: bytes
    samples: int
    batch_size: int

    def __post_init__(self) -> None:
        if max(map(len, (self.stream, self.job, self.key, self.digest))) > PLAN_TEXT_MAX:
            raise ValueError(f"a name of a plan has more than {PLAN_TEXT_MAX} characters")
        if not (
            0 <= self.rank < self.world <= PLAN_SAMPLES_MAX
            and 1 <= self.batch_size <= PLAN_SAMPLES_MAX
            and 0 <= self.samples <= PLAN_SAMPLES_MAX
        ):
            raise ValueError("the numbers of a plan are out of range")


class PlanNames(Message, frozen=True):
    """Name the files of consecutive samples of a data set, from `first` on: paths of the namespace, divided by zero
    bytes; an empty one is a file that no mount has. → Done."""

    digest: bytes
    first: int
    names: bytes

    def __post_init__(self) -> None:
        count = self.names.count(b"\0") + 1
        check_plan_range(self.first, count)
        if count > PLAN_NAMES_MAX:
            raise ValueError(f"{count} names in one message: {PLAN_NAMES_MAX} are allowed")


class PlanExtents(Message, frozen=True):
    """Divide files of a data set into extents, of which samples are made. Extents are numbered from 1 on, in the order
    of the messages. → Done.

    first: number of the first one. names: of the files, as in PlanNames. counts: extents of each file, numbers of 4
    bytes. bounds: numbers of 8 bytes, for each file one more than its extents: where they begin, ascending, and where
    the last one ends. All are little-endian. Since protocol 2.
    """

    digest: bytes
    first: int
    names: bytes
    counts: bytes
    bounds: bytes

    def __post_init__(self) -> None:
        files = self.names.count(b"\0") + 1
        if files > PLAN_NAMES_MAX:
            raise ValueError(f"{files} files in one message: {PLAN_NAMES_MAX} are allowed")
        check_plan_range(self.first - 1, count_extents(files, self.counts, self.bounds))


class PlanSamples(Message, frozen=True):
    """Say in which extents consecutive samples lie, from `first` on. Samples that follow each other and lie in the same
    extents have one row.

    extents: rows of `width` numbers of extents; 0: no further one. counts: the samples of each row; empty: one. Either
    all messages of a data set have counts, or none. Numbers have 4 bytes, little-endian. → Done. Since protocol 2.
    """

    digest: bytes
    first: int
    width: int
    extents: bytes
    counts: bytes = b""

    def __post_init__(self) -> None:
        if not 1 <= self.width <= PLAN_SAMPLE_EXTENTS_MAX or len(self.extents) % (4 * self.width):
            raise ValueError("the extents of samples are divided in the middle of one, or too many")
        rows = len(self.extents) // (4 * self.width)
        check_plan_range(self.first, max(rows * self.width, count_samples(rows, self.counts)))


class PlanOrder(Message, frozen=True):
    """Give a part of the order of an epoch: sample numbers of 4 bytes, little-endian, the first at position `first` of
    the epoch. is_last: the epoch's order is complete. → Done."""

    stream: str
    epoch: int
    first: int
    indices: bytes
    is_last: bool

    def __post_init__(self) -> None:
        check_plan_range(self.first, len(self.indices) // 4)
        if len(self.indices) % 4 or not 0 <= self.epoch < PLAN_SAMPLES_MAX:
            raise ValueError("an order is divided in the middle of a number, or its epoch is out of range")


class PlanProgress(Message, frozen=True):
    """Report how many samples of an epoch a loader has taken from its sampler. → PlanNoted."""

    stream: str
    epoch: int
    position: int

    def __post_init__(self) -> None:
        check_plan_range(self.position, 0)
        check_plan_range(self.epoch, 0)


class PlanLearn(Message, frozen=True):
    """Report files that a worker opened while it loaded samples: indices has the sample of each path, paths are those
    of the namespace, divided by zero bytes. → Done."""

    key: str
    indices: Annotated[list[int], msgspec.Meta(max_length=PLAN_LEARNED_MAX)]
    paths: bytes

    def __post_init__(self) -> None:
        if len(self.indices) > PLAN_LEARNED_MAX or len(self.indices) != self.paths.count(b"\0") + 1:
            raise ValueError("as many paths as samples are needed, and not too many of them")
        for index in self.indices:
            check_plan_range(index, 1)


class PlanEnd(Message, frozen=True):
    """End a stream. → Done, also if it is unknown."""

    stream: str


class PlanList(Message, frozen=True):
    """List the streams that this node knows. → PlanRows."""


class Shutdown(Message, frozen=True):
    """Stop the node in an orderly way. → Done."""


# ---------------------------------------------------------------- answers and events


class Welcome(Message, frozen=True):
    """The node's answer to Hello. index: directory of the LMDB index. volumes: their directories, by volume number.
    generation: changes when the index is created anew, and with it all ids. upper: directory of the upper layer. write:
    write modes, as base/write_modes.py parses them; "" or "off": the mounts are read-only. durable_puts: files that are
    written by path are on disk before the answer. tiers: of the disks among the volumes, by number."""

    protocol: int
    index: str
    volumes: list[str]
    generation: int
    upper: str = ""
    write: str = ""
    durable_puts: bool = True
    tiers: tuple[str, ...] = ()


class Done(Message, frozen=True):
    """Say that a request was obeyed. warning: what its user should look at; "" for nothing."""

    warning: str = ""


class Opened(Message, frozen=True):
    complete: bool
    path: str  # of the cache file


class OpenedMany(Message, frozen=True):
    """Some of the files of OpenMany. ids: files that are complete now. Send Open for a file that no answer lists: its
    Failure says why."""

    ids: list[int]
    done: bool


class Filled(Message, frozen=True):
    complete: bool


class Resolved(Message, frozen=True):
    id: int
    kind: int
    size_bytes: int
    mtime_ns: int
    token: str


class Described(Message, frozen=True):
    """Attributes of an object. known: False if the origin has another version by now, or does not return attributes."""

    known: bool
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    tags: dict[str, str] | None = None


class MountRow(msgspec.Struct, frozen=True):
    path: str
    url: str
    sync_interval_s: float


class Mounts(Message, frozen=True):
    rows: list[MountRow]


class Report(Message, frozen=True):
    """The status of the node. status: a tree that fits into JSON, see docs/status.md."""

    status: dict[str, object]


class JobState(Message, frozen=True):
    """The progress of a job. failed: up to 1000 of (path, reason); failed_files counts all. files_total: 0 while
    unknown. id, state: of a job of the whole cluster, "running", "done", "cancelled" or "failed"; else "". data: the id
    of the seal whose files it concerns, by its name."""

    done: bool
    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    failed_files: int
    failed: list[tuple[str, str]]
    listing: bool
    id: str = ""
    state: str = ""
    data: dict[str, str] = msgspec.field(default_factory=dict)


class JobRow(msgspec.Struct, frozen=True):
    """A job of the cluster. node: the node that accepted it. attempt: 1, and one more with each retry. eta_s: None if
    it cannot be estimated. took_s: of the slowest node, by its own clock. data: as in JobState."""

    id: str
    kind: str
    path: str
    options: dict[str, str]
    node: str
    state: str
    attempt: int
    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    failed_files: int
    failed: list[tuple[str, str]]
    listing: bool
    bytes_s: float
    eta_s: float | None
    took_s: float
    files_by_node: dict[str, int]
    data: dict[str, str] = msgspec.field(default_factory=dict)


class JobRows(Message, frozen=True):
    """Jobs sorted by id, the oldest first."""

    rows: list[JobRow]


class Failure(Message, frozen=True):
    """A HeadraceError as a message: `code` is HeadraceError.code."""

    code: str
    what: str
    why: str
    hint: str


class Invalidated(Message, frozen=True):
    """Names whose entries changed: (id of the parent, name)."""

    names: list[tuple[int, bytes]]


class Written(Message, frozen=True):
    """Paths of the upper layer that another session of this host changed, or the node itself (source 0)."""

    paths: list[bytes]
    source: int


class Evicted(Message, frozen=True):
    """Deleted cache files: the client releases their descriptors and backing ids. damaged: the bytes failed
    verification, so the client drops the kernel's page cache of them too. receipt: unless 0, the client returns it in
    Forgot afterwards."""

    ids: list[int]
    damaged: bool = False
    receipt: int = 0


class Completed(Message, frozen=True):
    """Files that became complete."""

    ids: list[int]


Request = (
    Hello
    | Lookup
    | List
    | Open
    | OpenMany
    | FillRange
    | Touch
    | Forgot
    | Subscribe
    | Resolve
    | MountAdd
    | MountRemove
    | MountList
    | StatusAsk
    | JobStart
    | JobList
    | JobCancel
    | JobRetry
    | Changed
    | Secure
    | AcquireLease
    | BreakClaim
    | Describe
    | SealList
    | SealOpen
    | LookupVersion
    | GatewayCounts
    | PlanStart
    | PlanNames
    | PlanExtents
    | PlanSamples
    | PlanOrder
    | PlanProgress
    | PlanLearn
    | PlanEnd
    | PlanList
    | PolicySet
    | PolicyAsk
    | PolicyRollBack
    | PolicyExplain
    | PolicyAdvise
    | PolicyTry
    | TraceMount
    | ReportChanges
    | LocationAsk
    | Shutdown
)
Answer = (
    Welcome
    | Done
    | Opened
    | OpenedMany
    | Filled
    | Resolved
    | Described
    | Mounts
    | Report
    | JobState
    | JobRows
    | SealRows
    | SealOpened
    | PlanStarted
    | PlanNoted
    | PlanRows
    | PolicyShown
    | PolicyExplained
    | PolicyAdvised
    | PolicyTried
    | MountTraced
    | LocationShown
    | Failure
    | Invalidated
    | Written
    | Evicted
    | Completed
)
