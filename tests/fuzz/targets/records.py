"""Records of the cluster in etcd, which whoever can write there writes, and the file that remembers the last view."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable

import msgspec

from headrace.base.decoding import Kind, decode_json
from headrace.base.errors import ClusterUnavailableError
from headrace.cluster import membership
from headrace.cluster.last_view import LastView
from headrace.jobs import job_records
from headrace.jobs.job_records import JobRecord, TaskProgress, TaskRecord
from headrace.jobs.pins import PinRecord
from headrace.node import shared_mounts
from headrace.node.hot_copies import HotTable, decode_hot, encode_hot
from headrace.node.origin_budgets import PublishedRate, PublishedRates, decode_rates
from headrace.overlay.pending_version import PendingVersion
from headrace.policy.current import CurrentPolicy
from headrace.policy.document import PolicyFaultsError
from headrace.policy.rate_shares import NodeBudget
from headrace.policy.record import PolicyRecord, decode_record, encode_record
from headrace.policy.spending import (
    DEPARTED_MAX,
    Departed,
    Spending,
    background_rate,
    decode_departed,
    decode_spending,
    encode_spending,
)
from headrace.ring.ownership import Ownership
from headrace.ring.view import NodeInfo, next_view
from headrace.wire import frame, messages
from headrace.wire.message import Message
from headrace.writeback.coherence.directory_claims import ClaimRecord
from headrace.writeback.coherence.dirty_scope import DirtyScope
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.mutations import mutate_tree

_ME = NodeInfo("me", "instance", "127.0.0.1:1", "zone-a", 1 << 40, "0.1", 3)
_OTHER = NodeInfo("other", "instance", "127.0.0.2:1", "zone-b", 1 << 41, "0.1", 3, api="http://127.0.0.2:2")
_JOB = JobRecord(
    "j1", "load", "/data", {"replicas": "2"}, "me", summary=TaskProgress(1, 2, 3, 4, 1, [("/a", "why")])
)
_PART = TaskRecord("mark", 1, True, TaskProgress(files_done=2, bytes_total=5, bytes_s=1.5))
_MUTATE = mutate_tree(json.loads, lambda tree: json.dumps(tree).encode())


def _node(data: bytes) -> None:
    """Whatever a record says of a node, there is a view with it, and every file has an owner."""
    info = membership._decode(data)
    if info is None:
        return
    nodes = {"me": _ME, info.id: info}
    view = next_view(next_view(None, {"me": _ME}, epoch=0), nodes, epoch=1)
    owners = view.owners(b"/a/b", replicas=2)
    assert owners and {owner.id for owner in owners} <= set(nodes)
    _tell(messages.Report({"members": [msgspec.to_builtins(info)]}))


def _job(data: bytes) -> None:
    record, part = _taken_job(data), _taken(data, TaskRecord)
    if record is not None:
        job_records.state_of(record, record.summary or TaskProgress())
        row = job_records.row_of(record, record.summary or TaskProgress(), {})
        _tell(messages.JobRows([row]))
    if part is not None:
        total = job_records.sum_progress([part.progress, part.progress])
        _tell(messages.JobRows([job_records.row_of(_JOB, total, {"n": part})]))


def _taken_job(data: bytes) -> JobRecord | None:
    try:
        return job_records.decode_job(_JOB.id, data)
    except msgspec.DecodeError:
        return None


def _mount(data: bytes) -> None:
    record = shared_mounts._decode(data)
    again = shared_mounts._decode(shared_mounts._encode(record))
    assert again.url == record.url and again.options.items() <= record.options.items()


_POLICY = '[[rule]]\nmatch = ["/a/**"]\nttl = "1d"\n'


_FIRST = PolicyRecord().followed_by(_POLICY, author="a@b", now_s=1.5)


def _pin(data: bytes) -> None:
    record = decode_json(data, PinRecord)
    assert isinstance(record.replicas, int)


def _policy(data: bytes) -> None:
    record = decode_record(data)
    assert decode_record(encode_record(record)) == record
    later = record.followed_by(_POLICY, author="a@b", now_s=3.0)
    assert later.number == record.number + 1 and decode_record(encode_record(later)) == later
    try:
        CurrentPolicy().adopt(record)
    except PolicyFaultsError:
        assert record.text


def _rates(data: bytes) -> None:
    for rate in decode_rates(data).values():
        part = NodeBudget("me", 50.0)
        part.exchange(100.0, {"other": rate}, demand=70.0, factor=1.0)
        assert 0 < part.rate <= 100.0


def _hot(data: bytes) -> None:
    holders = decode_hot(data)
    assert decode_hot(encode_hot(holders)) == holders
    table = HotTable()
    table.put("other", holders)
    view = next_view(None, {"me": _ME, "other": _OTHER}, epoch=1)
    owners = Ownership(lambda path: 1, lambda key: next(iter(holders.values()), ())).owners(view, b"/a")
    assert len({owner.id for owner in owners}) == len(owners) > 0
    table.put("other", {})
    assert not any(table.of(key) for key in holders)


def _spending(data: bytes) -> None:
    spending = decode_spending(data)
    assert decode_spending(encode_spending(spending)) == spending
    rate = background_rate(1e12, sum(spending.bytes.values()), 86400.0)
    assert rate is None or 0 <= rate <= 1e12


def _departed(data: bytes) -> None:
    departed = decode_departed(data).with_record("me", Spending("2026-11", {"s3://b": 1 << 40}), "2026-11")
    assert decode_departed(msgspec.json.encode(departed)) == departed
    assert departed.of_node("2026-11", "me")["s3://b"] >= 1 << 40
    assert len(departed.months["2026-11"].nodes) <= DEPARTED_MAX


def _cover(data: bytes) -> None:
    cover = DirtyScope.decode(data)
    for folder in (b"/", b"/a", b"/a/b"):
        assert cover.covers(folder) >= cover.covers_below(folder)
    again = DirtyScope.decode(cover.encode())
    assert again == cover
    DirtyScope.of(set(cover.folders), set(cover.below))


def _claim(data: bytes) -> None:
    record = ClaimRecord.decode(data)
    assert ClaimRecord.decode(record.encode()) == record


def _last_view(data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        nodes = LastView(file.name, cluster="etcd://c", node="me").read()
    for id, info in nodes.items():
        assert id == info.id


def _token(data: bytes) -> None:
    """Parse the token of a version that no origin has yet."""
    version = PendingVersion.parse(data.decode("utf-8", "surrogateescape"))
    if version is not None:
        assert PendingVersion.parse(version.token) == version


def _tell(message: Message) -> None:
    """To a program of this host, which asks what the cluster does."""
    frame.encode(message)


def _taken(data: bytes, kind: type[Kind]) -> Kind | None:
    try:
        return decode_json(data, kind)
    except msgspec.DecodeError:
        return None


def _json(*values: object) -> list[bytes]:
    return [msgspec.json.encode(value) for value in values]


def _fuzzer(name: str, about: str, parse: Callable[[bytes], None], seeds: list[bytes]) -> Fuzzer:
    refuses = (msgspec.DecodeError, ClusterUnavailableError)
    words = [b"/a", b"%2F", b"%00", b"\\ud800", b"1e400"]
    return Fuzzer(name, about, parse, refuses, seeds, words=words, mutate=_MUTATE)


FUZZERS = [
    _fuzzer(
        "node-records",
        "records of nodes, and their views (cluster/membership.py)",
        _node,
        _json(_ME, _OTHER),
    ),
    _fuzzer("job-records", "records of jobs and their parts (jobs/job_records.py)", _job, _json(_JOB, _PART)),
    _fuzzer(
        "mount-records",
        "records of mounts (node/shared_mounts.py)",
        _mount,
        _json(shared_mounts.MountRecord("s3://b", {"region": "x", "secret_access_key": "y"})),
    ),
    _fuzzer(
        "policy-records",
        "records of policies (policy/record.py)",
        _policy,
        [encode_record(_FIRST), encode_record(_FIRST.followed_by("", author="", now_s=2.0))],
    ),
    _fuzzer(
        "rate-records",
        "what nodes take of the budgets of origins (node/origin_budgets.py)",
        _rates,
        _json(
            PublishedRates(
                {"requests s3://b": PublishedRate(20.5, 10.0), "bytes s3://b": PublishedRate(0.0, 1e9)}
            )
        ),
    ),
    _fuzzer(
        "hot-records",
        "which nodes hold copies of hot segments (node/hot_copies.py)",
        _hot,
        [encode_hot({1: ("me", "other"), 1 << 63: ("me",)}), encode_hot({})],
    ),
    _fuzzer(
        "cost-records",
        "what nodes read from origins in a month (policy/spending.py)",
        _spending,
        _json(Spending("2026-11", {"s3://b": 1 << 40, "gs://c/d": 3})),
    ),
    _fuzzer(
        "departed-records",
        "what nodes read in a month that left the cluster (policy/spending.py)",
        _departed,
        _json(Departed().with_record("n1", Spending("2026-11", {"s3://b": 1 << 40}), "2026-11")),
    ),
    _fuzzer("pin-records", "records of pins (jobs/pins.py)", _pin, _json(PinRecord(True, 2))),
    _fuzzer(
        "cover-records",
        "what nodes say they wrote (writeback/coherence/dirty_scope.py)",
        _cover,
        [DirtyScope.of({b"/a", b"/b/c"}, {b"/d"}).encode(), b'{"folders": ["%2Fa"], "below": ["%2F"]}'],
    ),
    _fuzzer(
        "claim-records",
        "claims of exclusive directories (writeback/coherence/directory_claims.py)",
        _claim,
        [ClaimRecord("node-1", "0a1b").encode(), ClaimRecord("", "0a1b").encode()],
    ),
    _fuzzer(
        "last-view",
        "the file that remembers the last view (cluster/last_view.py)",
        _last_view,
        _json({"cluster": "etcd://c", "node": "me", "nodes": [msgspec.to_builtins(_ME)]}),
    ),
    _fuzzer(
        "written-tokens",
        "versions of files that no origin has yet (overlay/pending_version.py)",
        _token,
        [PendingVersion("node-2", 5, 1_700_000_000_000_000_000).token.encode()],
    ),
]
