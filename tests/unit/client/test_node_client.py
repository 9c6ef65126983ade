"""A client answers hits from the index, and sends its node exactly the requests that remain."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from headrace.base.cancel import Cancel
from headrace.base.errors import (
    CancelledByUserError,
    EvictedError,
    NodeUnavailableError,
    OriginError,
    PathNotFoundError,
)
from headrace.base.model import BLOCK_SIZE_BYTES, ROOT_ID, Entry, FileId, Kind, ObjectMetadata, Version
from headrace.client import node_client
from headrace.client.event_stream import EventsLost
from headrace.client.node_client import MISS, NodeClient
from headrace.store.checksum import block_checksum
from headrace.store.index import Index
from headrace.store.volume import files_folder
from headrace.wire import frame
from headrace.wire.message import Message
from headrace.wire.messages import (
    AcquireLease,
    Answer,
    Completed,
    Describe,
    Described,
    Done,
    FillRange,
    Forgot,
    Hello,
    List,
    Lookup,
    Open,
    Opened,
    OpenedMany,
    OpenMany,
    Report,
    Resolve,
    Resolved,
    Secure,
    StatusAsk,
    Subscribe,
)
from tests.integration.cli.host import wait_until
from tests.unit.client.conftest import Cached
from tests.unit.client.scripted_node import ScriptedNode

StartNode = Callable[..., ScriptedNode]
STATUS: dict[str, object] = {"cache": {"capacity_bytes": 100, "used_bytes": 30}, "index": {"entries": 7}}


@pytest.fixture
def node(start_node: StartNode, cached: Cached) -> ScriptedNode:
    return start_node(cached.welcome(upper="/upper", write="back"))


@pytest.fixture
def client(node: ScriptedNode) -> Iterator[NodeClient]:
    opened = NodeClient(node.path, role="sdk", patience_s=30)
    yield opened
    opened.close()


def requests(node: ScriptedNode) -> list[Message]:
    return [request for request in node.requests if not isinstance(request, Hello)]


def test_a_hit_sends_nothing(node: ScriptedNode, client: NodeClient, cached: Cached) -> None:
    entry = client.lookup_fast(ROOT_ID, b"whole")
    assert isinstance(entry, Entry) and entry.id == cached.ids[b"/whole"]
    assert client.entry(entry.id) == client.lookup_stale(ROOT_ID, b"whole") == entry
    assert client.lookup_fast(ROOT_ID, b"missing") is None
    assert client.path_of(cached.ids[b"/dir/inner"]) == b"/dir/inner"
    assert [child.name for child in client.children(ROOT_ID, b"empty")] == [
        b"large",
        b"partial",
        b"uncached",
        b"whole",
    ]
    assert client.listing_fresh(ROOT_ID)
    assert 3500 < client.name_ttl_s(ROOT_ID) <= 3600
    assert (client.upper, client.write, client.generation, client.socket) == ("/upper", "back", 1, node.path)
    assert requests(node) == []


def test_names_of_a_listing_that_is_not_fresh_are_a_miss(
    node: ScriptedNode, client: NodeClient, cached: Cached
) -> None:
    unlisted = cached.ids[b"/whole"]  # never listed, as it is no directory
    assert client.lookup_fast(unlisted, b"name") is MISS
    assert not client.listing_fresh(unlisted)
    assert client.name_ttl_s(unlisted) == 1.0, "one walk along a path sees one state"
    assert client.lookup(ROOT_ID, b"whole") == client.lookup_fast(ROOT_ID, b"whole")
    assert requests(node) == [Lookup(ROOT_ID, b"whole")]


@pytest.mark.parametrize(
    "call, request_sent",
    [
        (lambda client: client.ensure_listed(FileId(5)), List(5)),
        (lambda client: client.secure(b"/a"), Secure(b"/a")),
        (lambda client: client.acquire_lease(b"/a"), AcquireLease(b"/a")),
        (lambda client: client.acknowledge(9), Forgot(9)),
    ],
)
def test_each_call_is_one_request(
    node: ScriptedNode, client: NodeClient, call: Callable[[NodeClient], None], request_sent: Message
) -> None:
    call(client)
    assert requests(node) == [request_sent]
    node.answer = lambda request: [frame.failure_of(OriginError("/a", why="it broke"))]
    with pytest.raises(OriginError, match="it broke"):
        call(client)


@pytest.mark.parametrize("method", ["lookup", "ensure_listed", "open", "secure", "acquire_lease"])
def test_each_call_that_waits_is_cancelled(node: ScriptedNode, client: NodeClient, method: str) -> None:
    arguments: dict[str, tuple[object, ...]] = {
        "lookup": (ROOT_ID, b"name"),
        "ensure_listed": (ROOT_ID,),
        "open": (FileId(5),),
        "secure": (b"/a",),
        "acquire_lease": (b"/a",),
    }
    cancel = Cancel()

    def hang(request: Message) -> list[Answer]:
        cancel.set()
        return []

    node.answer = hang
    with pytest.raises(CancelledByUserError):
        getattr(client, method)(*arguments[method], cancel)
    assert node.left.acquire(timeout=30), "so the node cancels the request"
    cancel.close()


def test_resolve_returns_what_the_node_says(node: ScriptedNode, client: NodeClient) -> None:
    node.answer = lambda request: [Resolved(5, 1, 10, 20, "t")]
    assert client.resolve(b"/a/b") == Entry(FileId(5), ROOT_ID, b"b", Kind.FILE, Version(10, 20, "t"))
    assert requests(node) == [Resolve(b"/a/b")]
    node.answer = lambda request: [frame.failure_of(PathNotFoundError("/a/b"))]
    with pytest.raises(FileNotFoundError):
        client.resolve(b"/a/b")


def test_describe_tells_a_changed_object_from_one_without_metadata(
    node: ScriptedNode, client: NodeClient
) -> None:
    node.answer = lambda request: [Described(True, {"a": "b"}, {"c": "d"}, None)]
    assert client.describe(FileId(5)) == ObjectMetadata({"a": "b"}, {"c": "d"}, None)
    node.answer = lambda request: [Described(False)]
    assert client.describe(FileId(5)) is None
    assert requests(node) == [Describe(5)] * 2


def test_an_open_file_asks_for_missing_blocks_only(
    node: ScriptedNode, client: NodeClient, cached: Cached
) -> None:
    id = cached.ids[b"/partial"]
    file = client.open(id)
    file.wait(0, BLOCK_SIZE_BYTES)
    assert requests(node) == [Open(id)]
    cancel = Cancel()

    def hang(request: Message) -> list[Answer]:
        cancel.set()
        return []

    node.answer = hang
    with pytest.raises(CancelledByUserError):
        file.wait(BLOCK_SIZE_BYTES - 1, BLOCK_SIZE_BYTES + 1, cancel)
    assert requests(node)[1:] == [FillRange(id, BLOCK_SIZE_BYTES - 1, BLOCK_SIZE_BYTES + 1)]
    cancel.close()
    file.close()


def test_a_file_that_is_evicted_each_time_is_an_error_and_not_a_loop(
    node: ScriptedNode, client: NodeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_client, "OPEN_PAUSE_S_MAX", 0.0)
    node.answer = lambda request: [Opened(True, "/gone")]
    with pytest.raises(EvictedError):
        client.open(FileId(99_999))
    assert requests(node) == [Open(99_999)] * node_client.OPEN_ATTEMPTS


def test_checksums_are_those_of_cached_blocks(client: NodeClient, cached: Cached) -> None:
    data = cached.files[b"/large"]
    sums = [
        block_checksum(data[start : start + BLOCK_SIZE_BYTES])
        for start in range(0, len(data), BLOCK_SIZE_BYTES)
    ]
    assert client.checksums(cached.ids[b"/large"], range(2)) == sums[:2]
    assert client.checksums(cached.ids[b"/partial"], range(2)) is None
    assert client.checksums(FileId(99_999), range(1)) is None


def test_open_many_yields_as_files_become_complete(node: ScriptedNode, client: NodeClient) -> None:
    node.answer = lambda request: [OpenedMany([3], False), OpenedMany([1], False), OpenedMany([], True)]
    assert list(client.open_many([FileId(1), FileId(2), FileId(3)])) == [[3], [1], []]
    assert requests(node) == [OpenMany([1, 2, 3])]
    connections = node.connections
    client.acknowledge(1)
    assert node.connections == connections, "its connection went back to the pool"


def test_open_many_that_is_broken_off_gives_its_connection_to_nobody(
    node: ScriptedNode, client: NodeClient
) -> None:
    node.answer = lambda request: [OpenedMany([3], False)] if isinstance(request, OpenMany) else [Done()]
    opening = client.open_many([FileId(3), FileId(4)])
    assert next(opening) == [3]
    opening.close()  # type: ignore[attr-defined]  # it is a generator
    assert node.left.acquire(timeout=30)
    client.acknowledge(1)
    assert requests(node)[-1] == Forgot(1)


def test_statistics_are_asked_for_every_few_seconds(
    node: ScriptedNode, client: NodeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.answer = lambda request: [Report(STATUS)]
    assert client.statistics() == client.statistics() == (100, 70, 7)
    assert requests(node) == [StatusAsk()]
    monkeypatch.setattr(node_client, "STATUS_MAX_AGE_S", -1.0)
    client.statistics()
    assert requests(node) == [StatusAsk()] * 2


def test_the_longest_mount_answers_for_a_path(start_node: StartNode, own_cached: Cached) -> None:
    index = Index.open(f"{own_cached.volume}/index", writable=True)
    index.mounts.put("/mnt", {"url": "s3://bucket/prefix"})
    index.close(clean=True)
    client = NodeClient(start_node(own_cached.welcome()).path, role="sdk")
    mounts = {b"/": "/", b"/a": "/", b"/mnt": "/mnt", b"/mnt/a": "/mnt", b"/mntx": "/"}
    assert {path: client.mount_of(path) for path in mounts} == mounts
    assert client.mounts() == {"/": "file:///origin", "/mnt": "s3://bucket/prefix"}
    assert client.key_fits(b"/mnt/" + b"k" * (1024 - len("prefix/")))
    assert not client.key_fits(b"/mnt/" + b"k" * (1025 - len("prefix/")))
    client.close()


@pytest.mark.parametrize("path, share", [(b"/whole", "yes"), (b"/partial", "50%")])
def test_the_state_of_a_file_says_how_much_is_cached(
    node: ScriptedNode, client: NodeClient, cached: Cached, path: bytes, share: str
) -> None:
    origin = "file:///origin" + path.decode()
    expected = {"cached": share, "socket": node.path, "version": '"t"', "origin": origin}
    assert client.file_state(cached.ids[path]) == expected
    assert client.file_state(FileId(99_999)) == {"cached": "no", "socket": node.path}


def test_a_client_follows_a_node_with_other_settings(
    node: ScriptedNode, client: NodeClient, cached: Cached
) -> None:
    before = client.local
    client.acknowledge(1)
    node.restart(cached.welcome(upper="/upper", write="back"))
    client.acknowledge(1)
    assert client.local is before, "nothing has another meaning"
    node.restart(cached.welcome(upper="/upper", write="off"))
    client.acknowledge(1)
    assert (client.write, client.local.index) == ("off", before.index)
    node.restart(replace(cached.welcome(write="off"), volumes=[cached.volume, "/more"]))
    client.acknowledge(1)
    assert client.local.volumes == [cached.volume, "/more"]


def test_a_cache_that_was_replaced_closes_its_descriptors_when_nobody_uses_it(
    node: ScriptedNode, client: NodeClient, cached: Cached
) -> None:
    def open_folders() -> int:
        links = []
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
                links.append(os.readlink(f"/proc/self/fd/{fd}"))
        return links.count(files_folder(cached.volume))

    assert open_folders() == 1
    held = client.local
    for write in ("off", "back", "through"):
        node.restart(cached.welcome(upper="/upper", write=write))
        client.acknowledge(1)
    assert client.write == "through"
    opened = held.open_whole(ROOT_ID, b"whole")
    assert opened is not None, "a thread that has it reads on"
    os.close(opened[0])
    assert open_folders() == 2
    del held
    assert open_folders() == 1
    client.local.close()
    client.local.close()
    assert open_folders() == 0


def test_a_node_that_is_away_is_an_error_without_patience(node: ScriptedNode) -> None:
    client = NodeClient(node.path, role="sdk", patience_s=0)
    node.stop()
    with pytest.raises(NodeUnavailableError):
        client.secure(b"/a")
    assert isinstance(client.lookup_fast(ROOT_ID, b"whole"), Entry), "hits go on"
    client.close()


def test_the_events_of_a_closed_client_end(node: ScriptedNode, client: NodeClient) -> None:
    """Its thread waited for ever otherwise, and the node kept its events for it."""
    before = set(threading.enumerate())
    client.subscribe(lambda _: None)
    wait_until(lambda: node.asked(Subscribe))
    client.close()
    for _ in range(node.connections):
        assert node.left.acquire(timeout=60), "a connection stays open"
    new = {thread for thread in threading.enumerate() if thread.name == "events"} - before
    wait_until(lambda: not any(thread.is_alive() for thread in new))


def test_events_are_passed_on_and_their_loss_is_an_event(node: ScriptedNode, client: NodeClient) -> None:
    node.answer = lambda request: [Completed([5])] if isinstance(request, Subscribe) else [Done()]
    events: list[object] = []
    client.subscribe(events.append)
    wait_until(lambda: events == [Completed([5])])
    node.restart()
    wait_until(lambda: len(events) == 3)
    assert isinstance(events[1], EventsLost) and events[2] == Completed([5])
