"""A node handles reported changes by its receivers, its own listings, and reports to other nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import DeadlineExceededError, OriginDeniedError, PeerError
from headrace.events.changes import OriginChange
from headrace.namespace.reported_paths import Scope
from headrace.node import origin_events
from headrace.node.origin_events import (
    HANDLED_WITHIN_S,
    UNSENT_MAX,
    OriginEvents,
    ReportSender,
    UnsentReports,
)
from headrace.receivers.source import QueuedMessage
from headrace.testing.virtual_loop import pass_time
from headrace.wire.peer_messages import OriginChanged

pytestmark = pytest.mark.timeout(60)

CHANGE = OriginChange("s3", "b", b"d/x")
EVENTS = {"events": "https://sqs.eu-west-1.amazonaws.com/1/q"}


class SilentQueue:
    """A queue without messages."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_closed = False

    async def receive(self) -> Sequence[QueuedMessage]:
        await pass_time(20.0)
        return []

    async def delete(self, messages: Sequence[QueuedMessage]) -> None:
        return None

    async def close(self) -> None:
        self.is_closed = True


class PlannedDirectories:
    """Directories whose listings end as a test decides."""

    def __init__(self) -> None:
        self.listings: list[asyncio.Future[None]] = []
        self.begun = asyncio.Event()
        self.reported = SimpleNamespace(
            targets=lambda changes: {(b"/m/d", Scope.DIRECTORY) for _ in changes}, joined=set
        )

    def add(self, path: bytes, scope: Scope) -> asyncio.Future[None]:
        self.begun.set()
        self.listings.append(asyncio.get_running_loop().create_future())
        return self.listings[-1]


class DeafPeers:
    def __init__(self) -> None:
        self.attempts = 0

    async def report_origin_changes(self, node: object, request: OriginChanged, deadline: Deadline) -> None:
        self.attempts += 1
        raise PeerError("node b", why="the test says so")


def events_of(directories: PlannedDirectories) -> OriginEvents:
    return OriginEvents(directories, None)  # type: ignore[arg-type]


class StuckQueue(SilentQueue):
    """A queue that can't be closed."""

    async def close(self) -> None:
        raise ConnectionError("by plan")


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> list[SilentQueue]:
    """The queues that are built, in their order. The one of a host `stuck` can't be closed."""
    built: list[SilentQueue] = []

    def build(url: str, options: dict[str, str]) -> SilentQueue:
        built.append((StuckQueue if url.endswith("://stuck") else SilentQueue)(url))
        return built[-1]

    monkeypatch.setattr(origin_events, "build_queue", build)
    return built


async def test_a_mount_in_the_place_of_another_has_its_own_queue(queues: list[SilentQueue]) -> None:
    events = events_of(PlannedDirectories())
    events.start()
    events.add("/m", "s3://first", EVENTS)
    await pass_time(2)
    events.remove("/m")
    events.add("/m", "s3://second", EVENTS)
    await pass_time(2)
    assert [(queue.url, queue.is_closed) for queue in queues] == [
        ("s3://first", True),
        ("s3://second", False),
    ]
    events.remove("/m")
    await pass_time(2)
    assert queues[1].is_closed
    await events.stop()


@pytest.mark.expected_warnings("receivers of events were not placed")
async def test_a_queue_that_can_not_be_closed_ends_no_other_events(queues: list[SilentQueue]) -> None:
    events = events_of(PlannedDirectories())
    events.start()
    events.add("/m", "s3://stuck", EVENTS)
    await pass_time(2)
    events.remove("/m")
    events.add("/n", "s3://second", EVENTS)
    await pass_time(5)
    assert [queue.url for queue in queues] == ["s3://stuck", "s3://second"]
    await events.stop()


@pytest.mark.parametrize(
    ("end", "failure"),
    [
        (lambda listing: listing.set_result(None), None),
        (lambda listing: listing.set_exception(OriginDeniedError("d", why="by plan")), OriginDeniedError),
        (lambda listing: listing.cancel(), DeadlineExceededError),
        (lambda listing: None, DeadlineExceededError),
    ],
)
async def test_changes_are_handled_when_their_directories_are_listed(
    end: Callable[[asyncio.Future[None]], Any], failure: type[Exception] | None
) -> None:
    """A message of a queue is deleted after this: not if a listing failed, late or ended by a defect."""
    directories = PlannedDirectories()
    handling = asyncio.ensure_future(events_of(directories).handle([CHANGE]))
    await pass_time(1)
    assert not handling.done()
    (listing,) = directories.listings
    end(listing)
    await pass_time(HANDLED_WITHIN_S if failure else 30)
    error = handling.exception()
    assert error is None if failure is None else isinstance(error, failure)


async def test_changes_of_one_message_let_other_tasks_run() -> None:
    directories = PlannedDirectories()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    events = events_of(directories)
    handling = asyncio.ensure_future(events.handle([CHANGE] * 5000))
    await directories.begun.wait()
    assert turns >= 5000 // origin_events.CHANGES_AT_ONCE
    for task in (counting, handling):
        task.cancel()


async def test_reports_to_a_node_that_never_answers_are_bounded() -> None:
    nodes = {id: SimpleNamespace(id=id) for id in ("a", "b")}
    peers = DeafPeers()
    link = SimpleNamespace(
        info=nodes["a"], peers=peers, view=lambda: SimpleNamespace(nodes=nodes, owners=lambda path: ())
    )
    sender = ReportSender(link, lambda path: b"/m")  # type: ignore[arg-type]
    for number in range(200):
        await sender.send([(b"/m/%d" % (number % 10), Scope.NAME)])
    sending: Any = sender._sending["b"]
    assert sender.unsent == 10
    assert len(sending._callbacks or ()) <= 2, "each report left something in memory"
    assert peers.attempts >= 100
    del nodes["b"]
    await pass_time(5)
    assert sender.unsent == 0
    assert not sender._sending, "nothing is kept of a node that left"
    await sender.stop()


async def test_a_flood_of_one_mount_takes_no_other_along() -> None:
    """A node that does not answer gets the flood as one directory, and the names of the other mount as they are."""
    nodes = {id: SimpleNamespace(id=id) for id in ("a", "b")}
    sent: list[OriginChanged] = []
    is_deaf = True

    async def report_origin_changes(node: object, request: OriginChanged, deadline: Deadline) -> None:
        if is_deaf:
            raise PeerError("node b", why="the test says so")
        sent.append(request)

    peers = SimpleNamespace(report_origin_changes=report_origin_changes)
    link = SimpleNamespace(info=nodes["a"], peers=peers, view=lambda: SimpleNamespace(nodes=nodes))
    sender = ReportSender(link, lambda path: path[:2])  # type: ignore[arg-type]
    await sender.send([(b"/n/d/x", Scope.NAME), (b"/n/y", Scope.NAME)])
    for start in range(0, 3 * UNSENT_MAX, 1000):
        await sender.send((b"/m/d/%d" % number, Scope.NAME) for number in range(start, start + 1000))
        assert sender.unsent <= UNSENT_MAX // 2 + 2
    is_deaf = False
    await pass_time(5)
    assert OriginChanged([b"/n/d/x", b"/n/y"], names=True) in sent
    assert OriginChanged([b"/m/d"], below=True) in sent
    assert all(path.startswith((b"/m/d", b"/n/")) for request in sent for path in request.paths)
    assert sender.unsent == 0
    await sender.stop()


def test_unsent_reports_of_many_mounts_are_bounded_together() -> None:
    unsent = UnsentReports()
    for number in range(20 * UNSENT_MAX):
        mount = b"/%d" % (number % 20)
        unsent.add(mount, [(mount + b"/d/%d" % number, Scope.NAME)])
        assert unsent.count <= UNSENT_MAX + 20
    mounts = set()
    while unsent.count:
        mount, _, paths = unsent.take()
        mounts.add(mount)
        assert all(path.startswith(mount + b"/d") for path in paths)
    assert len(mounts) == 20


async def test_reports_of_all_scopes_reach_the_other_nodes() -> None:
    nodes = {id: SimpleNamespace(id=id) for id in ("a", "b")}
    sent: list[OriginChanged] = []

    async def report_origin_changes(node: object, request: OriginChanged, deadline: Deadline) -> None:
        sent.append(request)

    peers = SimpleNamespace(report_origin_changes=report_origin_changes)
    link = SimpleNamespace(info=nodes["a"], peers=peers, view=lambda: SimpleNamespace(nodes=nodes))
    sender = ReportSender(link, lambda path: b"/m")  # type: ignore[arg-type]
    await sender.send(
        [(b"/m/x", Scope.NAME), (b"/m/d", Scope.DIRECTORY), (b"/m/x", Scope.BELOW), (b"/m/y", Scope.NAME)]
    )
    await pass_time(0.1)
    assert sorted(sent, key=str) == sorted(
        [
            OriginChanged([b"/m/x", b"/m/y"], names=True),
            OriginChanged([b"/m/d"]),
            OriginChanged([b"/m/x"], below=True),
        ],
        key=str,
    )
    assert sender.unsent == 0
    await sender.stop()
