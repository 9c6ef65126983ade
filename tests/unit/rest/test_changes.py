"""The feed of changes for far clusters: nothing is lost without a word."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import NodeUnavailableError
from headrace.client.event_stream import EventsLost
from headrace.rest import changes, waiters
from headrace.rest.changes import ChangeFeed
from headrace.testing.waiting import wait_for
from headrace.wire.api import CHANGES_A_PAGE, ApiChanges, ChangesQuery
from headrace.wire.messages import Evicted, Invalidated, Written

pytestmark = pytest.mark.timeout(60)


class FakeClient:
    """A client whose index has directories by their ids."""

    def __init__(self, directories: dict[int, bytes]) -> None:
        self.local = SimpleNamespace(index=SimpleNamespace(path_of=directories.get))
        self.subscribed: list[Callable[[Any], None]] = []
        self.acknowledged: list[int] = []
        self.asked = 0

    def subscribe(self, on_event: Callable[[Any], None], *, on_subscribed: Callable[[], None]) -> None:
        self.subscribed.append(on_event)
        on_subscribed()

    def ask(self, request: object) -> None:
        self.asked += 1

    def acknowledge(self, receipt: int) -> None:
        self.acknowledged.append(receipt)


class SilentClient(FakeClient):
    """A client of a node that takes the subscription, and answers to nothing before `answers` is set."""

    def __init__(self) -> None:
        super().__init__({})
        self.answers = threading.Event()

    def subscribe(self, on_event: Callable[[Any], None], *, on_subscribed: Callable[[], None]) -> None:
        self.subscribed.append(on_event)
        threading.Thread(target=on_subscribed, daemon=True).start()

    def ask(self, request: object) -> None:
        self.answers.wait()
        super().ask(request)


class LateClient(FakeClient):
    """A client that leaves the call of `on_subscribed` to the test, and whose node is away at first."""

    def __init__(self) -> None:
        super().__init__({})
        self.on_subscribed: list[Callable[[], None]] = []
        self.is_away = True

    def subscribe(self, on_event: Callable[[Any], None], *, on_subscribed: Callable[[], None]) -> None:
        self.on_subscribed.append(on_subscribed)

    def ask(self, request: object) -> None:
        if self.is_away:
            raise NodeUnavailableError("node", why="it went away")
        super().ask(request)


def feed_of(directories: dict[int, bytes]) -> tuple[ChangeFeed, FakeClient]:
    client = FakeClient(directories)
    return ChangeFeed(client), client  # type: ignore[arg-type]


def after(page: ApiChanges, *, path: str = "/", wait_s: float = 0.0) -> ChangesQuery:
    return ChangesQuery(path=path, feed=page.feed, after=page.next, wait_s=wait_s)


def test_a_client_gets_what_changed_since_it_asked_first() -> None:
    feed, client = feed_of({5: b"/d", 6: b"/other"})
    feed.on_event(Invalidated([(5, b"before")]))
    start = feed.page(ChangesQuery())
    assert (start.names, start.is_complete, len(client.subscribed)) == ([], False, 1)
    assert client.asked == 2, "by then the node has read the subscription"
    feed.on_event(Invalidated([(5, b"a"), (5, b"b"), (6, b"\xff"), (7, b"of a removed directory")]))
    feed.on_event(Written([b"/d/w"], 3))
    page = feed.page(after(start))
    assert page.names == ["/d/b", os.fsdecode(b"/other/\xff"), "/d/w"]
    assert feed.page(after(page)).names == []
    assert feed.page(after(start, path="/d")).names == ["/d/b", "/d/w"]
    assert feed.page(after(start, path="/oth")).names == []
    assert len(client.subscribed) == 1


def test_long_feeds_have_pages() -> None:
    feed, _ = feed_of({})
    page = feed.page(ChangesQuery())
    names = [f"/d/{number}" for number in range(2 * CHANGES_A_PAGE + 5)]
    feed.on_event(Written([name.encode() for name in names], 0))
    received: list[str] = []
    for _ in range(3):
        page = feed.page(after(page))
        received += page.names
    assert received == names


def test_a_request_waits_for_a_change_below_its_path() -> None:
    feed, _ = feed_of({})
    start = feed.page(ChangesQuery())
    pages: list[ApiChanges] = []
    thread = threading.Thread(target=lambda: pages.append(feed.page(after(start, path="/d", wait_s=30.0))))
    thread.start()
    feed.on_event(Written([b"/elsewhere/x"], 0))
    feed.on_event(Written([b"/d/x"], 0))
    thread.join(60)
    assert [page.names for page in pages] == [["/d/x"]]
    begun_s = time.monotonic()
    assert feed.page(after(pages[0], wait_s=0.05)).names == []
    assert time.monotonic() - begun_s >= 0.05


def test_a_gap_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "KEPT_MAX", 10)
    feed, _ = feed_of({})
    start = feed.page(ChangesQuery())
    feed.on_event(Written([b"/d/%d" % number for number in range(10)], 0))
    assert feed.page(after(start)).is_complete
    feed.on_event(Written([b"/d/x"], 0))
    gap = feed.page(after(start))
    assert (gap.is_complete, gap.names) == (False, [])
    assert feed.page(after(gap)).is_complete


def test_a_node_that_restarted_and_another_node_have_other_feeds() -> None:
    feed, _ = feed_of({})
    start = feed.page(ChangesQuery())
    pages: list[ApiChanges] = []
    thread = threading.Thread(target=lambda: pages.append(feed.page(after(start, wait_s=30.0))))
    thread.start()
    feed.on_event(EventsLost())
    thread.join(60)
    assert [page.is_complete for page in pages] == [False]
    assert pages[0].feed != start.feed
    other, _ = feed_of({})
    assert not other.page(after(start)).is_complete
    assert not feed.page(ChangesQuery(feed="forged", after=1 << 50)).is_complete
    assert feed.page(ChangesQuery(feed=pages[0].feed, after=1 << 50)).names == []


def test_damaged_files_do_not_wait_for_a_process_that_opens_none() -> None:
    feed, client = feed_of({})
    feed.page(ChangesQuery())
    feed.on_event(Evicted(ids=[5], damaged=True, receipt=7))
    feed.on_event(Evicted(ids=[5]))
    wait_for(lambda: client.acknowledged == [7])


def test_requests_that_wait_leave_threads_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "WAITING_MAX", 3)
    feed, _ = feed_of({})
    start = feed.page(ChangesQuery())
    pages: list[ApiChanges] = []
    threads = [
        threading.Thread(target=lambda: pages.append(feed.page(after(start, wait_s=30.0)))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    wait_for(lambda: feed._waiters.count == 3)
    begun_s = time.monotonic()
    assert feed.page(after(start, wait_s=30.0)) == ApiChanges(start.feed, start.next, [])
    assert time.monotonic() - begun_s < 10
    feed.on_event(Written([b"/d/x"], 0))
    for thread in threads:
        thread.join(60)
    assert [page.names for page in pages] == [["/d/x"]] * 3
    assert feed._waiters.count == 0


def test_a_silent_node_holds_few_requests_and_none_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "WAITING_MAX", 3)
    client = SilentClient()
    feed = ChangeFeed(client)  # type: ignore[arg-type]
    monkeypatch.setattr(changes, "SUBSCRIBE_LIMIT_S", 0.01)
    with pytest.raises(NodeUnavailableError):
        feed.page(ChangesQuery())
    monkeypatch.setattr(changes, "SUBSCRIBE_LIMIT_S", 600.0)
    pages: list[ApiChanges] = []
    refused: list[NodeUnavailableError] = []

    def request() -> None:
        try:
            pages.append(feed.page(ChangesQuery()))
        except NodeUnavailableError as error:
            refused.append(error)

    threads = [threading.Thread(target=request, daemon=True) for _ in range(4)]
    for thread in threads[:3]:
        thread.start()
    wait_for(lambda: feed._waiters.count == 3, limit_s=60)
    threads[3].start()
    wait_for(lambda: len(refused) == 1, limit_s=60)
    client.answers.set()
    for thread in threads:
        thread.join(60)
    assert [page.is_complete for page in pages] == [False] * 3
    assert len({page.feed for page in pages}) == 1
    assert (client.asked, len(client.subscribed), feed._waiters.count) == (2, 1, 0)
    assert feed.page(after(pages[0])).is_complete


def test_a_subscription_that_fails_is_repeated() -> None:
    """The thread of the events calls `on_subscribed` again after an error."""
    client = LateClient()
    feed = ChangeFeed(client)  # type: ignore[arg-type]
    thread = threading.Thread(target=lambda: feed.page(ChangesQuery()), daemon=True)
    thread.start()
    wait_for(lambda: client.on_subscribed, limit_s=60)
    with pytest.raises(NodeUnavailableError):
        client.on_subscribed[0]()
    assert feed._feed == ""
    client.is_away = False
    client.on_subscribed[0]()
    thread.join(60)
    assert not thread.is_alive()
