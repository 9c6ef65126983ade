"""A peer's message leads out of no directory of this node (finding 1 of the audit: `Replicate` was root by network)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.base.beneath import Root
from headrace.base.errors import PathNotFoundError, PeerError, ProtocolError, VersionChangedError
from headrace.base.namespace_path import check_path
from headrace.overlay.snapshot import EntryType, Snapshot
from headrace.ring.view import ClusterView, NodeInfo, next_view
from headrace.wire import peer_frame
from headrace.wire.peer_messages import FileRange, Replicate
from headrace.writeback.replication.dirty_files import DirtyFiles
from headrace.writeback.replication.replica_host import ReplicaHost
from headrace.writeback.replication.replica_layer import ReplicaLayer
from headrace.writeback.replication.replicator import ReplicaOffers

EVIL_PATHS = [
    b"", b"etc/cron.d/x", b"/..", b"/../../etc/shadow", b"/a/../../b", b"/a/./b", b"//etc", b"/a//b", b"/a/",
    b"/a\0b", b"/" + b"n" * 256, b"/n" * 2048,
]  # fmt: skip
EVIL_IDS = ["", ".", "..", "../..", "a/b", "/etc", "a\0", ".hidden", "n" * 256]
WANTED: dict[str, Any] = {"size_bytes": 4, "mtime_ns": 0, "token": "t", "start": 0, "end": 4}


def requests_with(path: bytes) -> list[dict[str, object]]:
    wanted = {"path": path, **WANTED}
    return [
        {"type": "Fetch", "files": [wanted], "cached_only": True, "epoch": 1},
        {"type": "ListShared", "path": path, "epoch": 1},
        {"type": "LookupShared", "path": path, "name": b"x", "epoch": 1},
        {"type": "InvalidateListing", "path": path},
        {"type": "OriginChanged", "paths": [path]},
        {"type": "OfferHandover", "files": [wanted], "epoch": 1},
        {"type": "ReportCorruption", "file": wanted},
        {
            "type": "Replicate",
            "writer": "n1",
            "snapshots": [{"path": path, "shape": 1, "size_bytes": 4, "content": b"evil"}],
        },
        {"type": "ListPending", "writer": "n1", "path": path},
        {"type": "DirtyNamesChanged", "writer": "n1", "paths": [path]},
        {"type": "ResolveVersion", "path": path, "token": "t"},
        {"type": "RecallLease", "path": path},
    ]


def requests_of(writer: str) -> list[dict[str, object]]:
    return [
        {"type": "Replicate", "writer": writer, "snapshots": []},
        {"type": "ReplicateAhead", "writer": writer, "inode": 1, "start": 0, "end": 1},
        {"type": "QueryFailover", "writer": writer},
        {"type": "ListPending", "writer": writer, "path": b"/"},
        {"type": "DirtyNamesChanged", "writer": writer, "paths": []},
    ]


def test_the_same_requests_with_plain_paths_are_understood() -> None:
    for request in [*requests_with(b"/a/b"), *requests_with(b"/"), *requests_of("n1")]:
        peer_frame.decode_request(msgspec.msgpack.encode(request))


@pytest.mark.parametrize("path", EVIL_PATHS)
def test_a_path_that_leads_elsewhere_is_not_decoded(path: bytes) -> None:
    for request in requests_with(path):
        with pytest.raises(ProtocolError):
            peer_frame.decode_request(msgspec.msgpack.encode(request))


@pytest.mark.parametrize("writer", EVIL_IDS)
def test_a_node_id_that_is_no_name_is_not_decoded(writer: str) -> None:
    for request in requests_of(writer):
        with pytest.raises(ProtocolError):
            peer_frame.decode_request(msgspec.msgpack.encode(request))


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": 9}, {"shape": -1}, {"mode": 0o100644}, {"mode": -1}, {"size_bytes": -1}, {"inode": -1},
        {"shape": 1, "size_bytes": 1 << 40, "sums": [1]}, {"shape": 1, "size_bytes": 1 << 20, "sums": []},
        {"uid": -1}, {"uid": 1 << 32}, {"gid": -1}, {"gid": 1 << 40}, {"size_bytes": 9}, {"content": b"x"},
        {"shape": 4}, {"shape": 4, "content": b"a\0b"},
    ],
)  # fmt: skip
def test_a_snapshot_that_no_layer_can_have_is_not_decoded(fields: dict[str, object]) -> None:
    snapshot = {"path": b"/a", "shape": 1, **fields}
    with pytest.raises(ProtocolError):
        peer_frame.decode_request(
            msgspec.msgpack.encode({"type": "Replicate", "writer": "n1", "snapshots": [snapshot]})
        )


@pytest.mark.parametrize("name", [b".", b"..", b"a/b", b"a\0", b"n" * 256])
def test_a_written_name_that_is_none_is_not_decoded(name: bytes) -> None:
    answer = {"type": "PendingNamesPage", "names": [[name, 2]], "state": "", "whole": True}
    with pytest.raises(ProtocolError):
        peer_frame.decode_answer(msgspec.msgpack.encode(answer))


@pytest.mark.parametrize(
    "entry",
    [
        [b"x", 2, -1], [b"x", 2, 1 << 63], [b"x", 2, 1, 1 << 63], [b"x", 2, 1, 1, -1],
        [b"x", 2, 1, 1, 1, (1 << 64) - 1], [b"x", 9], [b"", 2], [b"", 3], [b"", 1],
    ],
)  # fmt: skip
def test_a_written_file_that_no_layer_can_have_is_not_decoded(entry: list[object]) -> None:
    """Each listing of its directory failed on the nodes that asked for it, and the log had a trace."""
    answer = {"type": "PendingNamesPage", "names": [entry], "state": "", "whole": True}
    with pytest.raises(ProtocolError):
        peer_frame.decode_answer(msgspec.msgpack.encode(answer))


@pytest.mark.parametrize(
    "request_",
    [
        {"type": "ReplicateAhead", "writer": "n1", "inode": 1, "start": 0, "end": 1 << 50},
        {"type": "ReplicateAhead", "writer": "n1", "inode": 1, "start": 1, "end": 9},
        {"type": "ReplicateAhead", "writer": "n1", "inode": 1, "start": 1 << 63, "end": (1 << 63) + 9},
        {"type": "OfferHandover", "files": [{"path": b"/f", **WANTED}] * 10_000, "epoch": 1},
        {"type": "DirtyNamesChanged", "writer": "n1", "paths": [b"/f"] * 10_000},
        {"type": "OriginChanged", "paths": [b"/f"] * 10_000},
    ],
)
def test_a_request_of_huge_counts_is_not_decoded(request_: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        peer_frame.decode_request(msgspec.msgpack.encode(request_))


@pytest.mark.parametrize("token", ["written/zz", "written/", "written/-5", "written/" + "9" * 5000])
def test_a_token_of_no_offered_file_is_one_error(token: str) -> None:
    """The log had a trace for each of some."""
    with pytest.raises(PathNotFoundError) as refused:
        ReplicaOffers().open(FileRange(b"/f", **{**WANTED, "token": token}))
    assert len(str(refused.value)) < 200


@given(st.binary(max_size=64).map(lambda tail: b"/" + tail))
@example(b"/a/../..")
def test_what_is_accepted_stays_below_the_root(path: bytes) -> None:
    try:
        check_path(path)
    except ValueError:
        return
    assert os.path.normpath(b"/root" + path).startswith(b"/root")
    assert os.path.normpath(path) == path


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_a_protocol_error(body: bytes) -> None:
    try:
        peer_frame.decode_request(body)
    except ProtocolError:
        pass


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A directory of the host beside the cache, which no peer may read or change."""
    directory = tmp_path / "host/precious"
    directory.mkdir(parents=True)
    (directory / "file").write_bytes(b"precious")
    return directory


def view_of(*nodes: str) -> ClusterView:
    infos = {node: NodeInfo(node, "", "", "", 1 << 30, "", 3) for node in nodes}
    return next_view(None, infos, epoch=1)


def keep(folder: Path, request: Replicate) -> None:
    with ThreadPoolExecutor(1) as threads:
        keeper = ReplicaHost("me", str(folder), cast(Any, None), threads, view=lambda: view_of("me", "evil"))
        asyncio.run(keeper.replicate(request))


STEPS: list[Callable[[], Snapshot]] = [
    lambda: Snapshot(b"/way/file", EntryType.GONE),
    lambda: Snapshot(b"/way", EntryType.GONE),
    lambda: Snapshot(b"/way/file", EntryType.FILE, content=b"pwned", size_bytes=5, mode=0o4755),
    lambda: Snapshot(b"/way/below/file", EntryType.FILE, content=b"pwned", size_bytes=5, mode=0o4755),
    lambda: Snapshot(b"/way", EntryType.DIRECTORY, mode=0o777),
    lambda: Snapshot(b"/way/file", EntryType.WHITEOUT),
]


@pytest.mark.root
@pytest.mark.parametrize("step", range(len(STEPS)))
def test_a_link_that_a_peer_made_leads_no_later_copy_out(tmp_path: Path, precious: Path, step: int) -> None:
    """`Replicate` makes a link to a directory of the host, and then names something below that link."""
    link = Snapshot(b"/way", EntryType.LINK, content=os.fsencode(precious), mode=0o777)
    keep(tmp_path / "copies", Replicate("evil", [link]))
    mode = precious.stat().st_mode
    keep(tmp_path / "copies", Replicate("evil", [STEPS[step]()]))
    assert (precious / "file").read_bytes() == b"precious"
    assert sorted(os.listdir(precious)) == ["file"]
    assert precious.stat().st_mode == mode


@pytest.mark.root
async def test_a_link_that_a_peer_made_shows_no_other_directory(tmp_path: Path, precious: Path) -> None:
    link = Snapshot(b"/way", EntryType.LINK, content=os.fsencode(precious), mode=0o777)
    await asyncio.to_thread(keep, tmp_path / "copies", Replicate("evil", [link]))
    with ThreadPoolExecutor(1) as threads:
        files = DirtyFiles(
            "me",
            threads,
            locate=Root(b"/").at,
            folder_of=lambda writer: str(tmp_path / "copies" / writer),
        )
        assert await files.replica_entries("evil", b"/way") == []
        with pytest.raises(VersionChangedError):
            await files.open(FileRange(b"/way/file", 8, 0, "written-by/evil/1-1", 0, 8))


def test_copies_of_the_node_itself_are_not_taken(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="keeps no copies of its own"):
        keep(tmp_path / "copies", Replicate("me", []))


@pytest.mark.root
def test_the_root_of_a_mirror_can_not_be_replaced(tmp_path: Path, precious: Path) -> None:
    mirror = ReplicaLayer(str(tmp_path / "mirror"))
    mirror.make()
    with pytest.raises(OSError):
        mirror.place(Snapshot(b"/", EntryType.LINK, content=os.fsencode(precious), mode=0o777))
    mirror.place(Snapshot(b"/", EntryType.GONE))
    assert os.path.isdir(mirror.upper.tree.path)
    assert not os.path.islink(mirror.upper.tree.path)
