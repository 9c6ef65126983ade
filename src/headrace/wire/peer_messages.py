"""The messages between nodes. The authority on their meaning.

Tagged msgpack maps in frames, as in `wire/messages.py`, over TCP or TLS. One request at a time on a connection; its
answers end with Done or Failure. After each Block frame come its bytes, raw, `length` of them. Names between nodes are
paths of the namespace and versions: file ids are of one host. Paths, names and node ids are checked while they are
decoded, so that none leads out of a directory of the receiver. Peers never forward: a node answers from its cache, or,
where it is an owner, from the origin. No wall clock is compared between nodes. Since peer protocol 1.
"""

from __future__ import annotations

import msgspec

from headrace.base.model import ObjectMetadata, Version
from headrace.base.namespace_path import check_name, check_node_id, check_path
from headrace.overlay.pending_version import PendingEntry
from headrace.overlay.snapshot import Snapshot
from headrace.wire.messages import Done, Failure, Message

PEER_PROTOCOL = 4
PEER_PROTOCOL_MIN = 4
"""The oldest that is still spoken. From the first release on a node speaks at least two, so that nodes can be upgraded
one by one. Protocols 1 to 3 had other names for messages."""
FILES_MAX = 256
"""Files of one Fetch at most."""


# ---------------------------------------------------------------- requests


class PeerHello(Message, frozen=True):
    """First on every connection. → PeerWelcome, or Failure when the two can't talk: no protocol in common, or another
    cluster. protocols: lowest and highest that the asker speaks."""

    protocols: tuple[int, int]
    cluster: str
    node: str

    def __post_init__(self) -> None:
        check_node_id(self.node)


class FileRange(msgspec.Struct, frozen=True):
    """Bytes start..end of one version of a file. path: in the namespace, with its leading slash."""

    path: bytes
    size_bytes: int
    mtime_ns: int
    token: str
    start: int
    end: int

    def __post_init__(self) -> None:
        check_path(self.path)


class Fetch(Message, frozen=True):
    """→ for each file, in any order but one after the other: Block, many, then FileEnd; at last Done. Blocks of a file
    come as they are there, in order, each within one block of the cache (1 MiB).
    cached_only: only what is there already, or on its way here; else what an owner misses it fetches from the origin
    while it streams. epoch: of the asker's view."""

    files: list[FileRange]
    cached_only: bool
    epoch: int


class ListShared(Message, frozen=True):
    """A directory's listing, from its owner, who asks the origin if its own is stale. → Names, many, the last with
    last=True; or Failure. anew: the asker met a change; the owner asks the origin however fresh its listing is."""

    path: bytes
    epoch: int
    anew: bool = False

    def __post_init__(self) -> None:
        check_path(self.path)


class LookupShared(Message, frozen=True):
    """One name of a directory, from the directory's owner. → Names with the entry, or with none."""

    path: bytes
    name: bytes
    epoch: int

    def __post_init__(self) -> None:
        check_path(self.path)
        check_name(self.name)


class InvalidateListing(Message, frozen=True):
    """`headrace sync`, in two rounds over all nodes, so that nobody takes an old listing from a node that has not heard
    of it yet. First (relist=False): listings at and below the path are stale from now on. Then (relist=True): list
    again what was listed, in the background. → Done. below False: only the listing of the path itself, which changed
    because the asker persisted something there."""

    path: bytes
    relist: bool = False
    below: bool = True

    def __post_init__(self) -> None:
        check_path(self.path)


class OfferHandover(Message, frozen=True):
    """After a change of the ring: the asker has these, and the asked one owns them now, and fetches from the asker, or
    another node that has them, what it lacks. → HandoverAnswer, when that is over."""

    files: list[FileRange]
    epoch: int


class ReportCorruption(Message, frozen=True):
    """What came of this file did not match its checksums. → Done, when the asked one has compared its copy with them:
    blocks that are bad are dropped, and fetched again when they are wanted."""

    file: FileRange


class Replicate(Message, frozen=True):
    """The asker wrote these and has not persisted them: a copy of each is kept here. Blocks of large files that are
    not here are fetched from the asker first. → Done, when all are as the snapshots say. begin: what the asker does not
    name from here on, until a message with end, is of no more use then."""

    writer: str
    snapshots: list[Snapshot]
    begin: bool = False
    end: bool = False

    def __post_init__(self) -> None:
        check_node_id(self.writer)


class ReplicateAhead(Message, frozen=True):
    """These bytes of a file of the asker's that a Replicate will name are fetched, so that it takes less long. → Done.
    inode: of the file there."""

    writer: str
    inode: int
    start: int
    end: int

    def __post_init__(self) -> None:
        check_node_id(self.writer)
        if not (0 < self.inode < 1 << 64 and 0 <= self.start < self.end):
            raise ValueError(f"bytes {self.start} to {self.end} of inode {self.inode}")


class QueryFailover(Message, frozen=True):
    """The asker is back: what was persisted of its copies meanwhile? → FailoverReport. done: it has noted that; →
    FailoverReport, empty."""

    writer: str
    done: bool = False

    def __post_init__(self) -> None:
        check_node_id(self.writer)


class ListPending(Message, frozen=True):
    """What did the writer write in this folder that is not persisted yet? Of the asked node itself, or of one whose
    copies it holds. since: `state` of the last answer, "" for all. → PendingNamesPage."""

    writer: str
    path: bytes
    since: str = ""

    def __post_init__(self) -> None:
        check_node_id(self.writer)
        check_path(self.path)


class DirtyNamesChanged(Message, frozen=True):
    """The asker wrote something in these folders, which its record names already. below: or somewhere below them.
    → Done, at once."""

    writer: str
    paths: list[bytes]
    below: bool = False

    def __post_init__(self) -> None:
        check_node_id(self.writer)
        for path in self.paths:
            check_path(path)


OF_THE_ASKER = (Replicate, ReplicateAhead, QueryFailover, DirtyNamesChanged)
"""Their writer is the asker itself. ListPending's may be another one."""


class ResolveVersion(Message, frozen=True):
    """The asker wrote something that replaces a file which the asked one had not persisted when the asker saw it. It is
    persisted now. token: of that file, as `overlay/pending_version.py` makes it. → VersionResolved."""

    path: bytes
    token: str

    def __post_init__(self) -> None:
        check_path(self.path)


class RecallLease(Message, frozen=True):
    """The asker wants to be the one that makes new names in a folder. → Done, when the asked one is not any more, or
    never was."""

    path: bytes

    def __post_init__(self) -> None:
        check_path(self.path)


class Ping(Message, frozen=True):
    """Is there somebody, and who? → PeerWelcome."""


# ---------------------------------------------------------------- answers


class PeerWelcome(Message, frozen=True):
    """protocol: the highest that both speak; instance: of this run of the node."""

    protocol: int
    node: str
    instance: str
    epoch: int


class Block(Message, frozen=True):
    """Bytes of files[file], which follow the frame. checksum: xxh3, 64 bits, of these bytes."""

    file: int
    start: int
    length: int
    checksum: int


class FileEnd(Message, frozen=True):
    """files[file] is through; failure: why not all of it came. extras: what the asked one knows of the file beside its
    bytes; older nodes neither tell nor understand it."""

    file: int
    failure: Failure | None = None
    extras: ObjectMetadata | None = None


class HandoverAnswer(Message, frozen=True):
    """refused: the numbers of the files that are not here after all."""

    refused: list[int]


class FailedOverFile(msgspec.Struct, frozen=True, array_like=True):
    """inode, ctime_ns, size_bytes: of the file on the node that wrote it. version: what the origin has."""

    path: bytes
    inode: int
    ctime_ns: int
    size_bytes: int
    version: Version

    def __post_init__(self) -> None:
        check_path(self.path)


class FailoverReport(Message, frozen=True):
    files: list[FailedOverFile]


class PendingNamesPage(Message, frozen=True):
    """whole: these are all; else what changed since the state that the asker had. more: ask again, with this state."""

    names: list[PendingEntry]
    state: str
    whole: bool
    more: bool = False


class VersionResolved(Message, frozen=True):
    """version: what the origin has of the file that was asked for; None: it never came there, and never will."""

    version: Version | None


class NameRow(msgspec.Struct, frozen=True, array_like=True):
    name: bytes
    kind: int
    size_bytes: int
    mtime_ns: int
    token: str


class Names(Message, frozen=True):
    """good_for_s: how long the listing may still be used, from now."""

    rows: list[NameRow]
    good_for_s: float
    last: bool


PeerRequest = (
    PeerHello
    | Fetch
    | ListShared
    | LookupShared
    | InvalidateListing
    | OfferHandover
    | ReportCorruption
    | Replicate
    | ReplicateAhead
    | QueryFailover
    | ListPending
    | DirtyNamesChanged
    | ResolveVersion
    | RecallLease
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
    | Done
    | Failure
)
