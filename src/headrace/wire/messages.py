"""The messages between a host's clients and its node. The authority on their meaning.

Requests and answers are tagged msgpack maps in frames (`wire/frame.py`). A connection carries one request at a time;
its answer is the message named in the request's docstring, or Failure. File contents never travel here: answers say
when they are in the cache file. Since protocol 1.
"""

from __future__ import annotations

import msgspec

from headrace.base.namespace_path import check_long_names

PROTOCOL = 2


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all; the tag on the wire is the class name."""


# ---------------------------------------------------------------- requests


class Hello(Message, frozen=True):
    """First on every connection. → Welcome."""

    protocol: int
    pid: int
    role: str  # "session", "sdk", "cli", "s3"


class Lookup(Message, frozen=True):
    """Make the index right for one name, now. → Done (then read the index: no entry means no such file) or Failure."""

    parent: int
    name: bytes


class List(Message, frozen=True):
    """Make the index hold a fresh whole listing of a directory. → Done."""

    directory: int


class Open(Message, frozen=True):
    """Make a cache file exist for a file; small files are filled whole first. → Opened."""

    id: int


class OpenMany(Message, frozen=True):
    """As Open, of many small files at once. → OpenedMany, many: as they are whole; the last has done=True."""

    ids: list[int]


class FillRange(Message, frozen=True):
    """Wait until the bytes start..end of the file are in its cache file. → Filled.
    sequential: the caller reads on from here; the node may read ahead."""

    id: int
    start: int
    end: int
    sequential: bool = True


class Touch(Message, frozen=True):
    """These files were opened, in this order; for eviction. → Done."""

    ids: list[int]


class Forgot(Message, frozen=True):
    """What an Evicted with this receipt asked for is done. An unknown one is no error. → Done."""

    receipt: int


class Subscribe(Message, frozen=True):
    """From now on this connection carries only events, from the node. → Invalidated, Evicted, … until closed."""


class Resolve(Message, frozen=True):
    """A path of the namespace ("/a/b") to its entry, listing what is needed. → Resolved."""

    path: bytes


class MountAdd(Message, frozen=True):
    """Attach an origin. options: of `origin/factory.py` (endpoint, region, …), never secrets in logs. restricted: only
    where `allowed_origins` has it, as another host asks. → Done."""

    path: str
    url: str
    options: dict[str, str]
    restricted: bool = False


class MountRemove(Message, frozen=True):
    """→ Done."""

    path: str


class MountList(Message, frozen=True):
    """→ Mounts."""


class StatusAsk(Message, frozen=True):
    """→ Report."""


class JobStart(Message, frozen=True):
    """kind: load | free | pin | unpin | sync | fsck. → JobState, many: one at least every second, the last
    has done=True. Closing the connection cancels the job; but not one that has an id, which is the whole cluster's.
    kind watch: path is such an id, and its states are told. options: jobs/options.py."""

    kind: str
    path: str
    options: dict[str, str] = {}


class JobList(Message, frozen=True):
    """The cluster's jobs, or the one that is named. → JobRows."""

    id: str = ""


class JobCancel(Message, frozen=True):
    """Ends it on all nodes; what is done stays done. → Done, also when it was over already."""

    id: str


class JobRetry(Message, frozen=True):
    """What failed of it, or all of it, once more. → Done, also while it is running."""

    id: str


class Changed(Message, frozen=True):
    """These paths of the upper layer were written, made, moved or removed; source: the session that did it, which is
    not told again. begun: files that are open for writing, of which copies are promised. → Done, at once."""

    paths: list[bytes]
    source: int = 0
    begun: list[bytes] = []

    def __post_init__(self) -> None:
        for path in (*self.paths, *self.begun):
            check_long_names(path)


class Secure(Message, frozen=True):
    """What was written at a path gets what the path's mode promises before a close returns: `through`: the origin has
    it; `back:2` and more: so many nodes. In `back` in a cluster: the other nodes are told that there is something. →
    Done then, or Failure."""

    path: bytes

    def __post_init__(self) -> None:
        check_long_names(self.path)


class AcquireLease(Message, frozen=True):
    """New names are to be made in a folder, exclusively: this node has the right to it, for a moment at least, and the
    index knows the names that other nodes made. → Done, or Failure."""

    path: bytes

    def __post_init__(self) -> None:
        check_long_names(self.path)


class Describe(Message, frozen=True):
    """What the origin tells of a file's object beside its bytes, if it is the version of that id. → Described."""

    id: int


class OperationRow(msgspec.Struct, frozen=True):
    """Of one operation, since the gateway began. refused: answered 4xx; failed: 5xx. Bytes are of bodies."""

    operation: str
    requests: int
    refused: int
    failed: int
    bytes_in: int
    bytes_out: int


class GatewayCounts(Message, frozen=True):
    """What a gateway of this host has answered; told every two seconds. kind: "s3", "webhdfs". → Done."""

    pid: int
    kind: str
    address: str
    rows: list[OperationRow]


class Shutdown(Message, frozen=True):
    """Stop the node in order. → Done."""


# ---------------------------------------------------------------- answers and events


class Welcome(Message, frozen=True):
    """index: folder of the LMDB index; volumes: their folders, by volume number; generation: changes when the
    index was made anew, and ids with it."""

    protocol: int
    index: str
    volumes: list[str]
    generation: int
    upper: str = ""  # folder of the upper layer
    write: str = (
        ""  # modes of writing, as base/write_modes.py reads them; "" or "off": nothing can be written
    )
    durable_puts: bool = True  # what is written by path is on the disk before it is answered


class Done(Message, frozen=True):
    pass


class Opened(Message, frozen=True):
    complete: bool
    path: str  # of the cache file


class OpenedMany(Message, frozen=True):
    """ids: whole now. What was asked for and never named is to be asked for by an Open, which says why."""

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
    """known: False where the origin has another version by now, or does not tell."""

    known: bool
    metadata: dict[str, str] = {}
    headers: dict[str, str] = {}
    tags: dict[str, str] | None = None


class MountRow(msgspec.Struct, frozen=True):
    path: str
    url: str
    sync_interval_s: float


class Mounts(Message, frozen=True):
    rows: list[MountRow]


class Report(Message, frozen=True):
    """status: a JSON-able tree, see docs/operating.md."""

    status: dict[str, object]


class JobState(Message, frozen=True):
    """failed: up to 1000 of (path, reason); failed_files counts all. files_total 0: not known yet. id, state: of a job
    of the whole cluster: "running", "done", "cancelled" or "failed"; else ""."""

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


class JobRow(msgspec.Struct, frozen=True):
    """A job of the cluster. node: that took it. attempt: 1, and one more with each retry. eta_s: None where it can't
    be told. took_s: of the node that took longest, by its own clock."""

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


class JobRows(Message, frozen=True):
    """By id, the oldest first."""

    rows: list[JobRow]


class Failure(Message, frozen=True):
    """A HeadraceError on its way: `code` is HeadraceError.code."""

    code: str
    what: str
    why: str
    hint: str


class Invalidated(Message, frozen=True):
    """Names in directories that no longer mean what they did: (parent id, name)."""

    names: list[tuple[int, bytes]]


class Written(Message, frozen=True):
    """Paths of the upper layer that another session of this host changed, or the node itself (source 0)."""

    paths: list[bytes]
    source: int


class Evicted(Message, frozen=True):
    """Cache files that were dropped: let go of descriptors and backing ids. damaged: their bytes were not what was
    fetched, so the kernel's pages go, too. receipt: not 0: send it back by Forgot when that is done."""

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
    | Describe
    | GatewayCounts
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
    | Failure
    | Invalidated
    | Written
    | Evicted
    | Completed
)
