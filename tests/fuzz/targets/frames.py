"""Frames and messages: of a host's clients and their node, and between nodes."""

from __future__ import annotations

import msgspec

from headrace.base.errors import ProtocolError
from headrace.base.model import Version
from headrace.base.namespace_path import check_name, check_path
from headrace.events.changes import OriginChange
from headrace.overlay.pending_version import EntryState, PendingEntry
from headrace.overlay.snapshot import EntryType, Snapshot
from headrace.wire import broker_messages, event_messages, frame, messages, peer_frame, peer_messages
from headrace.wire.message import Message
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.mutations import mutate_tree

_WANTED = peer_messages.FileRange(b"/data/a", 3 << 20, 17, '"e"', 0, 1 << 20)
_HOST_REQUESTS: list[Message] = [
    messages.Hello(2, 4711, "sdk"),
    messages.Lookup(1, b"name"),
    messages.OpenMany([1, 2, 3]),
    messages.FillRange(7, 0, 1 << 20),
    messages.Resolve(b"/a/b"),
    messages.MountAdd("/data", "s3://bucket/prefix", {"region": "eu-1"}),
    messages.JobStart("load", "/data", {"replicas": "2"}),
    messages.Changed([b"/a", b"/b"], 3, [b"/c"]),
    event_messages.ReportChanges([OriginChange("s3", "bucket", b"a/b", True, 1.5)], 1),
    messages.GatewayCounts(1, "s3", "127.0.0.1:9000", [messages.OperationRow("get_object", 1, 2, 3, 4, 5)]),
]
_HOST_ANSWERS: list[Message] = [
    messages.Welcome(1, "/cache/index", ["/cache"], 5, "/cache/upper", "back"),
    messages.Opened(True, "/cache/files/1"),
    messages.Described(True, {"a": "b"}, {"Content-Type": "text/plain"}, {"t": "v"}),
    messages.Mounts([messages.MountRow("/data", "s3://bucket", 1.5)]),
    messages.Report({"node": {"id": "n1"}, "list": [1, 2.5, None, "x"]}),
    messages.JobState(True, 1, 2, 3, 4, 1, [("/a", "why")], False, "id", "done"),
    messages.Failure("path.not_found", "/a", "no such file", ""),
    messages.Invalidated([(1, b"name")]),
]
_PEER_REQUESTS: list[Message] = [
    peer_messages.PeerHello((4, 4), "cluster", "node-1"),
    peer_messages.Fetch([_WANTED], False, 3),
    peer_messages.ListShared(b"/data", 3, True),
    peer_messages.LookupShared(b"/data", b"a", 3),
    peer_messages.InvalidateListing(b"/", True),
    peer_messages.OriginChanged([b"/w", b"/"], True),
    peer_messages.OfferHandover([_WANTED, _WANTED], 4),
    peer_messages.ReportCorruption(_WANTED),
    peer_messages.Replicate(
        "node-2", [Snapshot(b"/w", 1, 5, 6, 7, 3, 0o644, 0, 0, Version(3, 7, "x"), b"abc")], True
    ),
    peer_messages.Replicate("node-2", [Snapshot(b"/w", 1, 5, 6, 7, 2 << 20, 0o644, sums=[1, 2])]),
    peer_messages.ReplicateAhead("node-2", 5, 0, 100),
    peer_messages.QueryFailover("node-2", True),
    peer_messages.ListPending("node-2", b"/w", "state"),
    peer_messages.DirtyNamesChanged("node-2", [b"/w", b"/"], True),
    peer_messages.ResolveVersion(b"/w/x", "written-by/node-2/5-6"),
    peer_messages.RecallLease(b"/w"),
    peer_messages.TryPolicy('[[rule]]\nmatch = ["/a"]\nttl = "1d"\n', False),
]
_PEER_ANSWERS: list[Message] = [
    peer_messages.PendingNamesPage([PendingEntry(b"x", 2, 3, 4, 5, 6)], "state", True),
    peer_messages.VersionResolved(Version(3, 7, '"e"')),
    peer_messages.TrialAnswer(
        ["nvme"],
        [peer_messages.PinnedTenant("t", 1, 2)],
        [peer_messages.TrialRow("ttl", "-", "1d", 3, 4, -1, b"/a/b")],
    ),
    peer_messages.Names([peer_messages.NameRow(b"x", 1, 3, 4, '"e"')], 1.5, True),
    messages.Failure("peer.not_owner", "/a", "", ""),
    messages.Done(),
]
_BROKER_REQUESTS: list[broker_messages.BrokerMessage] = [
    broker_messages.OpenFiles([b"/data/a", b"/data/b"], 0, 1 << 20),
    broker_messages.LookAt(b"/data/a"),
    broker_messages.ListNames(b"/data", b"a"),
]
_BROKER_ANSWERS: list[broker_messages.BrokerMessage] = [
    broker_messages.OpenedFiles(
        [
            broker_messages.OpenedFile(7, 1 << 20, 5, "token", True),
            broker_messages.UpperFile(),
            broker_messages.BrokerRefusal("path.not_found", "/a", "no such file", ""),
        ]
    ),
    broker_messages.Looked(broker_messages.BrokerRow(b"a", 7, 0o100644, 0, 0, 3, 5, "token", False)),
    broker_messages.BrokerNames([broker_messages.BrokerRow(b"a", 7, 0o40755, 0, 0, 3, 5, "", True)], b"a"),
]
_MUTATE = mutate_tree(msgspec.msgpack.decode, msgspec.msgpack.encode)
_WORDS = [b"type", b"path", b"/a/b", b"writer", b"..", b"snapshots"]


def _host_request(data: bytes) -> None:
    _same_again(frame.decode_request(data), frame.decode_request)


def _host_answer(data: bytes) -> None:
    answer = frame.decode_answer(data)
    if isinstance(answer, messages.Failure):
        frame.error_of(answer)
    _same_again(answer, frame.decode_answer)


def _peer_request(data: bytes) -> None:
    """The frame's header comes first, as from a socket."""
    body = data[peer_frame.HEADER_BYTES :]
    assert peer_frame.body_length(data[: peer_frame.HEADER_BYTES]) <= frame.BODY_BYTES_MAX
    request = peer_frame.decode_request(body)
    _check_paths(request)
    if isinstance(request, peer_messages.PeerHello):
        lowest, highest = peer_frame.SPOKEN
        assert lowest <= peer_frame.common_protocol(request.protocols) <= highest
    if isinstance(request, peer_messages.Replicate):
        for snapshot in request.snapshots:
            _check_snapshot(snapshot)
    _same_again(request, peer_frame.decode_request)


def _peer_answer(data: bytes) -> None:
    answer = peer_frame.decode_answer(data)
    if isinstance(answer, peer_messages.PendingNamesPage):
        for row in answer.names:
            assert not row.name or b"/" not in row.name
            EntryState(row.means)
    if isinstance(answer, messages.Failure):
        peer_frame.error_of(answer)
    _same_again(answer, peer_frame.decode_answer)


def _broker_request(data: bytes) -> None:
    request = broker_messages.decode_request(data)
    _check_paths(request)
    if isinstance(request, broker_messages.OpenFiles):
        assert 0 <= request.start <= request.end <= request.start + broker_messages.RANGE_BYTES_MAX
        assert 1 <= len(request.paths) <= broker_messages.FILES_MAX
    again = broker_messages.decode_request(broker_messages.encode(request))
    assert again == request


def _broker_answer(data: bytes) -> None:
    answer = broker_messages.decode_answer(data)
    for part in answer.files if isinstance(answer, broker_messages.OpenedFiles) else [answer]:
        if isinstance(part, broker_messages.BrokerRefusal):
            broker_messages.error_of(part)
    assert broker_messages.decode_answer(broker_messages.encode(answer)) == answer


def _check_paths(request: Message | broker_messages.BrokerMessage) -> None:
    for name in request.__struct_fields__:
        value = getattr(request, name)
        if name == "path":
            check_path(value)
        elif name == "name":
            check_name(value)
        elif name == "writer":
            assert "/" not in value and "\0" not in value and not value.startswith(".") and value
        elif name == "paths":
            for path in value:
                check_path(path)
        elif name in ("files", "file"):
            for file in value if isinstance(value, list) else [value]:
                check_path(file.path)


def _check_snapshot(snapshot: Snapshot) -> None:
    check_path(snapshot.path)
    assert snapshot.mode & ~0o7777 == 0 and snapshot.size_bytes >= 0
    assert EntryType(snapshot.shape) is not None
    assert snapshot.state


def _same_again(message: Message, decode: object) -> None:
    """Send on what was taken; it means the same then."""
    assert callable(decode)
    again = decode(frame.encode(message)[frame.HEADER_BYTES :])
    assert repr(again) == repr(message)  # by text: not-a-number is not equal to itself


def _bodies(sent: list[Message]) -> list[bytes]:
    return [frame.encode(message)[frame.HEADER_BYTES :] for message in sent]


def _mutate_framed(data: bytes, words: list[bytes], chance: object) -> bytes:
    import random

    assert isinstance(chance, random.Random)
    header, body = data[: frame.HEADER_BYTES], data[frame.HEADER_BYTES :]
    if chance.random() < 0.05:
        header = chance.randbytes(4)
    return header + _MUTATE(body, words, chance)


FUZZERS = [
    Fuzzer(
        "host-requests",
        "messages of programs of this host to their node (wire/frame.py)",
        _host_request,
        (ProtocolError,),
        _bodies(_HOST_REQUESTS),
        words=_WORDS,
        mutate=_MUTATE,
    ),
    Fuzzer(
        "host-answers",
        "the node's answers to them (wire/frame.py)",
        _host_answer,
        (ProtocolError,),
        _bodies(_HOST_ANSWERS),
        words=_WORDS,
        mutate=_MUTATE,
    ),
    Fuzzer(
        "peer-requests",
        "frames and messages that another node sends (wire/peer_frame.py)",
        _peer_request,
        (ProtocolError,),
        [frame.encode(message) for message in _PEER_REQUESTS],
        words=_WORDS,
        mutate=_mutate_framed,
    ),
    Fuzzer(
        "peer-answers",
        "another node's answers (wire/peer_frame.py)",
        _peer_answer,
        (ProtocolError,),
        _bodies(_PEER_ANSWERS),
        words=_WORDS,
        mutate=_MUTATE,
    ),
    Fuzzer(
        "broker-requests",
        "messages of programs of other users (wire/broker_messages.py)",
        _broker_request,
        (ProtocolError,),
        [broker_messages.encode(message) for message in _BROKER_REQUESTS],
        words=_WORDS,
        mutate=_MUTATE,
    ),
    Fuzzer(
        "broker-answers",
        "what they are answered (wire/broker_messages.py)",
        _broker_answer,
        (ProtocolError,),
        [broker_messages.encode(message) for message in _BROKER_ANSWERS],
        words=_WORDS,
        mutate=_MUTATE,
    ),
]
