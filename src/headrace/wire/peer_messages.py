"""The messages between nodes. This module is the authority on their meaning.

Messages are tagged msgpack maps in frames, as in `wire/messages.py`, over TCP or TLS. A connection carries one request
at a time; its answers end with Done or Failure. The raw bytes of a block, `length` of them, follow its Block frame.
Nodes name files by path and version, as file ids belong to one host. Decoding checks paths, names and node ids, so that
none points out of a directory of the receiver. Peers never forward a request: a node answers from its cache, or, as an
owner, from the origin. Nodes never compare wall clocks. Since peer protocol 1.

In the docstrings the *sender* is the node that sends the request, the *receiver* the node that answers it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from headrace.base.model import BLOCK_SIZE_BYTES, ObjectMetadata, Version
from headrace.base.namespace_path import check_name, check_node_id, check_path
from headrace.overlay.pending_version import PendingEntry
from headrace.overlay.snapshot import Snapshot
from headrace.policy.limits import POLICY_TEXT_MAX, TRIAL_LIMIT_S_MAX
from headrace.wire.message import Message
from headrace.wire.messages import Done, Failure

PEER_PROTOCOL = 4
PEER_PROTOCOL_MIN = 4
"""The oldest protocol that this release speaks. From the first release on a node speaks at least two, so that nodes can
be upgraded one by one. Protocols 1 to 3 had other names for messages."""
FILES_MAX = 256
"""The limit for the files of one Fetch, and of one OfferHandover."""
REPORTED_MAX = 256
"""The limit for the directories of one OriginChanged, and of one DirtyNamesChanged."""
AHEAD_BYTES_MAX = 64 << 20
"""The limit for the bytes of one ReplicateAhead. The receiver has all of them in memory."""
TRIAL_ROWS_MAX = 1000
"""The limit for the rows of one TrialAnswer."""
TRIAL_WORD_MAX = 300
INT64_MAX = (1 << 63) - 1
SizeBytes = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
"""A size of a file, or a position in it. The index and every system call take no larger one."""
TimeNs = Annotated[int, msgspec.Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]


# ---------------------------------------------------------------- requests


class PeerHello(Message, frozen=True):
    """Introduce the sender; the first message on every connection. → PeerWelcome, or Failure if the nodes have no
    protocol in common or belong to different clusters. protocols: the lowest and the highest that the sender speaks."""

    protocols: tuple[int, int]
    cluster: str
    node: str

    def __post_init__(self) -> None:
        check_node_id(self.node)


class FileRange(msgspec.Struct, frozen=True):
    """Bytes start..end of one version of a file. path: in the namespace, with its leading slash."""

    path: bytes
    size_bytes: SizeBytes
    mtime_ns: TimeNs
    token: str
    start: SizeBytes
    end: SizeBytes

    def __post_init__(self) -> None:
        check_path(self.path)


class Fetch(Message, frozen=True):
    """Fetch ranges of files. → for each file, in any order but one after the other: Block, many, then FileEnd; at last
    Done. Blocks of a file arrive in order, each within one block of the cache (1 MiB), as soon as the receiver has
    them. cached_only: send only bytes that are cached or already being fetched; otherwise an owner fetches missing
    blocks from the origin while it streams. background: no reader of the sender waits, so other reads of the receiver
    precede this one; a request of the same bytes without it promotes it. epoch: of the sender's view."""

    files: list[FileRange]
    cached_only: bool
    epoch: int
    background: bool = False


class ListShared(Message, frozen=True):
    """List a directory at its owner, which lists it at the origin if its own listing is stale. → Names, many, the last
    with last=True; or Failure. anew: the sender detected a change, so the owner lists it at the origin however fresh
    its listing is."""

    path: bytes
    epoch: int
    anew: bool = False

    def __post_init__(self) -> None:
        check_path(self.path)


class LookupShared(Message, frozen=True):
    """Look up one name of a directory at the directory's owner. → Names with the entry, or with none. anew: the origin
    reported a change of it, so the owner looks it up at the origin however fresh its listing is."""

    path: bytes
    name: bytes
    epoch: int
    anew: bool = False

    def __post_init__(self) -> None:
        check_path(self.path)
        check_name(self.name)


class InvalidateListing(Message, frozen=True):
    """Invalidate listings on another node, for example in `headrace sync`. It takes two rounds over all nodes, so that
    no node copies a stale listing from a node that is still to be notified. First (relist=False) listings at and below
    the path become stale. Then (relist=True) the nodes list again, in the background, the directories that they had
    listed. → Done. below False: only the listing of the path itself is stale, because the sender persisted a change
    there."""

    path: bytes
    relist: bool = False
    below: bool = True

    def __post_init__(self) -> None:
        check_path(self.path)


class OriginChanged(Message, frozen=True):
    """Notify the receiver that the origin reported changes in these directories. It lists each again that it had
    listed, or the nearest directory above that it knows. → Done, at once. below: changes may also be anywhere below
    them. names: only these paths themselves changed, so the receiver looks them up one by one. A report is a hint: the
    receiver believes the origin only."""

    paths: Annotated[list[bytes], msgspec.Meta(max_length=REPORTED_MAX)]
    below: bool = False
    names: bool = False

    def __post_init__(self) -> None:
        for path in self.paths:
            check_path(path)


class OfferHandover(Message, frozen=True):
    """Offer files to their new owner after a change of the ring. The receiver owns them now, and fetches those it lacks
    from the sender or another node that has them. → HandoverAnswer, after that."""

    files: Annotated[list[FileRange], msgspec.Meta(max_length=FILES_MAX)]
    epoch: int


class ReportCorruption(Message, frozen=True):
    """Report that the bytes received for this file did not match their checksums. → Done, after the receiver verified
    its copy: it drops corrupt blocks, and fetches them again when they are next read."""

    file: FileRange


class Replicate(Message, frozen=True):
    """Keep replicas of files that the sender wrote and has not persisted. The receiver first fetches missing blocks of
    large files from the sender. → Done, when all replicas match the snapshots. begin: starts a complete list, which a
    message with end completes; replicas that are not in it are obsolete then."""

    writer: str
    snapshots: list[Snapshot]
    begin: bool = False
    end: bool = False

    def __post_init__(self) -> None:
        check_node_id(self.writer)


class ReplicateAhead(Message, frozen=True):
    """Fetch these bytes of a sender's file now, so that the Replicate that follows takes less time. → Done. inode: of
    the file on the sender. start: first byte of a block."""

    writer: str
    inode: int
    start: int
    end: int

    def __post_init__(self) -> None:
        check_node_id(self.writer)
        length = self.end - self.start
        is_range = 0 <= self.start < self.end <= INT64_MAX and not self.start % BLOCK_SIZE_BYTES
        if not (0 < self.inode < 1 << 64 and is_range and length <= AHEAD_BYTES_MAX):
            raise ValueError(f"bytes {self.start} to {self.end} of inode {self.inode}")


class QueryFailover(Message, frozen=True):
    """Ask, after the sender came back, which of its files the receiver persisted in its place. → FailoverReport. done:
    the sender has recorded the last report; the next one has other files. → FailoverReport, empty."""

    writer: str
    done: bool = False

    def __post_init__(self) -> None:
        check_node_id(self.writer)


class ListPending(Message, frozen=True):
    """List names in a directory that a writer changed and has not persisted yet. The writer is the receiver itself, or
    a node whose replicas the receiver holds. since: `state` of the previous answer; "" for all. → PendingNamesPage."""

    writer: str
    path: bytes
    since: str = ""

    def __post_init__(self) -> None:
        check_node_id(self.writer)
        check_path(self.path)


class DirtyNamesChanged(Message, frozen=True):
    """Notify the receiver that the sender wrote in these directories. Its record in the cluster names them already.
    below: the change may also be somewhere below them. → Done, at once."""

    writer: str
    paths: Annotated[list[bytes], msgspec.Meta(max_length=REPORTED_MAX)]
    below: bool = False

    def __post_init__(self) -> None:
        check_node_id(self.writer)
        for path in self.paths:
            check_path(path)


WRITER_IS_SENDER = (Replicate, ReplicateAhead, QueryFailover, DirtyNamesChanged)
"""The requests whose writer is the sender itself. The writer of ListPending may be another node."""


class ResolveVersion(Message, frozen=True):
    """Ask which version of the origin a pending file became. The sender replaced that file before the receiver had
    persisted it; by now the receiver has. token: of that file, as `overlay/pending_version.py` makes it. →
    VersionResolved."""

    path: bytes
    token: str

    def __post_init__(self) -> None:
        check_path(self.path)


class TryPolicy(Message, frozen=True):
    """Ask what a policy would mean for the files that the receiver has cached, and change nothing. outcomes: False asks
    only what forbids it there. limit_s: seconds after which the receiver gives up. → TrialAnswer."""

    text: Annotated[str, msgspec.Meta(max_length=POLICY_TEXT_MAX)]
    outcomes: bool = True
    limit_s: Annotated[int, msgspec.Meta(ge=1, le=TRIAL_LIMIT_S_MAX)] = TRIAL_LIMIT_S_MAX


class RecallLease(Message, frozen=True):
    """Recall the lease of a directory: the sender wants to create names in it. → Done, when the receiver does not hold
    the lease any more, or never held it."""

    path: bytes

    def __post_init__(self) -> None:
        check_path(self.path)


class Ping(Message, frozen=True):
    """Check that the receiver is alive and which node it is. → PeerWelcome."""


# ---------------------------------------------------------------- answers


class PeerWelcome(Message, frozen=True):
    """The identity of a node. protocol: the highest that both speak. instance: of this run of the node."""

    protocol: int
    node: str
    instance: str
    epoch: int


class Block(Message, frozen=True):
    """The header of bytes of files[file], which follow the frame. checksum: xxh3, 64 bits, of these bytes."""

    file: int
    start: int
    length: int
    checksum: int


class FileEnd(Message, frozen=True):
    """The end of files[file]. failure: why some bytes are missing. extras: attributes of the object that the receiver
    has besides its bytes; older nodes neither send nor understand them."""

    file: int
    failure: Failure | None = None
    extras: ObjectMetadata | None = None


class HandoverAnswer(Message, frozen=True):
    """The end of a handover. refused: the numbers of the files that the receiver could not fetch."""

    refused: list[int]


class FailedOverFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that a replica persisted. inode, ctime_ns, size_bytes: of the file on the node that wrote it. version:
    what the origin has now."""

    path: bytes
    inode: Annotated[int, msgspec.Meta(ge=0)]
    ctime_ns: TimeNs
    size_bytes: SizeBytes
    version: Version

    def __post_init__(self) -> None:
        check_path(self.path)
        _check_version(self.version)


class FailoverReport(Message, frozen=True):
    files: list[FailedOverFile]


class PendingNamesPage(Message, frozen=True):
    """A page of pending names. whole: these are all; otherwise what changed since the state in the request. more:
    request the next page with this state."""

    names: list[PendingEntry]
    state: str
    whole: bool
    more: bool = False

    def __post_init__(self) -> None:
        if not all(entry.name for entry in self.names):
            raise ValueError("a name is empty")


class VersionResolved(Message, frozen=True):
    """The result of ResolveVersion. version: what the origin has of that file; None: it was never persisted, and never
    will be."""

    version: Version | None

    def __post_init__(self) -> None:
        if self.version is not None:
            _check_version(self.version)


class PinnedTenant(msgspec.Struct, frozen=True, array_like=True):
    """A tenant of which more is pinned on a node than the policy allows there."""

    name: Annotated[str, msgspec.Meta(max_length=TRIAL_WORD_MAX)]
    limit_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    pinned_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class TrialRow(msgspec.Struct, frozen=True, array_like=True):
    """A change on one node, as PolicyOutcome. example: a path."""

    effect: Annotated[str, msgspec.Meta(max_length=TRIAL_WORD_MAX)]
    before: Annotated[str, msgspec.Meta(max_length=TRIAL_WORD_MAX)]
    after: Annotated[str, msgspec.Meta(max_length=TRIAL_WORD_MAX)]
    files: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    size_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    copies: Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
    example: bytes

    def __post_init__(self) -> None:
        check_path(self.example)


class TrialAnswer(Message, frozen=True):
    """Says what a policy would mean for one node. tiers: of its volumes. pinned: tenants that stay above their limits.
    rows: the changes, those of most files first."""

    tiers: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=TRIAL_WORD_MAX)]], msgspec.Meta(max_length=16)
    ]
    pinned: Annotated[list[PinnedTenant], msgspec.Meta(max_length=TRIAL_ROWS_MAX)] = msgspec.field(
        default_factory=list
    )
    rows: Annotated[list[TrialRow], msgspec.Meta(max_length=TRIAL_ROWS_MAX)] = msgspec.field(
        default_factory=list
    )


class NameRow(msgspec.Struct, frozen=True, array_like=True):
    name: bytes
    kind: int
    size_bytes: SizeBytes
    mtime_ns: TimeNs
    token: str


class Names(Message, frozen=True):
    """Entries of a directory. good_for_s: seconds for which the listing may still be used."""

    rows: list[NameRow]
    good_for_s: Annotated[float, msgspec.Meta(ge=0)]
    last: bool


def _check_version(version: Version) -> None:
    """Refuse a version that no index can have."""
    if not (0 <= version.size_bytes <= INT64_MAX and -INT64_MAX <= version.mtime_ns <= INT64_MAX):
        raise ValueError(f"a version of {version.size_bytes} bytes and time {version.mtime_ns}")


ListingRequest = ListShared | LookupShared
ReplicaRequest = Replicate | ReplicateAhead
PendingNamesRequest = ListPending | DirtyNamesChanged | ResolveVersion | RecallLease
PendingNamesAnswer = PendingNamesPage | VersionResolved | Done
PeerRequest = (
    PeerHello
    | Fetch
    | ListingRequest
    | InvalidateListing
    | OriginChanged
    | OfferHandover
    | ReportCorruption
    | ReplicaRequest
    | QueryFailover
    | PendingNamesRequest
    | TryPolicy
    | Ping
)
PeerAnswer = (
    PeerWelcome
    | Block
    | FileEnd
    | Names
    | HandoverAnswer
    | FailoverReport
    | PendingNamesPage
    | VersionResolved
    | TrialAnswer
    | Done
    | Failure
)
