"""A receiver of a queue: at least once, in spite of failures, and without hurry for what is no event."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from headrace.base.clock import monotonic_s
from headrace.base.errors import HeadraceError, MissingExtraError, OriginError, OriginUnavailableError
from headrace.events.changes import EventFormatError, OriginChange, ReportedChanges
from headrace.receivers.deliveries import HANDLED_MAX, Deliveries
from headrace.receivers.receiver import BACKOFF_S_MAX, BATCHES_MAX, RECEIVES_S, QueueReceiver
from headrace.receivers.source import QueuedMessage
from headrace.testing.virtual_loop import pass_time

pytestmark = pytest.mark.timeout(60)


class FakeQueue:
    """Delivers messages that are not deleted again after VISIBILITY_S."""

    VISIBILITY_S = 30.0

    def __init__(self) -> None:
        self.messages: dict[str, ReportedChanges | EventFormatError] = {}
        self.hidden_until_s: dict[str, float] = {}
        self.failure: Exception | None = None
        self.calls: list[float] = []
        self.deleted: list[str] = []
        self.closed = False

    def put(self, receipt: str, key: bytes = b"a") -> None:
        self.messages[receipt] = ReportedChanges([OriginChange("s3", "b", key)])

    async def receive(self) -> Sequence[QueuedMessage]:
        self.calls.append(monotonic_s())
        if self.failure is not None:
            raise self.failure
        for _ in range(20):
            visible = [r for r in self.messages if self.hidden_until_s.get(r, 0.0) <= monotonic_s()][:10]
            if visible:
                break
            await pass_time(1.0)
        for receipt in visible:
            self.hidden_until_s[receipt] = monotonic_s() + self.VISIBILITY_S
        return [QueuedMessage(receipt, self.messages[receipt]) for receipt in visible]

    async def delete(self, messages: Sequence[QueuedMessage]) -> None:
        for message in messages:
            del self.messages[message.receipt]
            self.deleted.append(message.receipt)

    async def close(self) -> None:
        self.closed = True


class StrictQueue(FakeQueue):
    """Deletes a message only by the receipt of its last delivery, as Azure does. has_ids: whether it names ids."""

    def __init__(self, *, has_ids: bool = True) -> None:
        super().__init__()
        self.has_ids = has_ids
        self.deliveries: dict[str, int] = {}
        self.refusals = 0

    async def receive(self) -> Sequence[QueuedMessage]:
        messages = []
        for message in await super().receive():
            id = message.receipt
            number = self.deliveries[id] = self.deliveries.get(id, 0) + 1
            messages.append(QueuedMessage(f"{id} {number}", message.content, id if self.has_ids else ""))
        return messages

    async def delete(self, messages: Sequence[QueuedMessage]) -> None:
        for message in messages:
            id, _, number = message.receipt.partition(" ")
            if self.refusals or int(number) != self.deliveries[id]:
                self.refusals = max(0, self.refusals - 1)
                raise OriginError("queue", why="another receipt")
            del self.messages[id]
            self.deleted.append(id)


class Handled:
    def __init__(self) -> None:
        self.changes: list[OriginChange] = []
        self.whole: list[str] = []
        self.failure: HeadraceError | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.running = self.most = 0

    async def __call__(self, changes: Sequence[OriginChange], *, everything_of: str = "") -> None:
        self.whole += [everything_of] if everything_of else []
        self.running += 1
        self.most = max(self.most, self.running)
        await self.gate.wait()
        self.running -= 1
        if self.failure is not None:
            raise self.failure
        self.changes += changes


async def test_a_message_is_deleted_after_it_was_handled_and_not_before() -> None:
    queue, handled = FakeQueue(), Handled()
    handled.gate.clear()
    receiver = QueueReceiver("/m", lambda: queue, handled)
    receiver.start()
    queue.put("1")
    await pass_time(5)
    assert queue.deleted == []
    handled.gate.set()
    await pass_time(1)
    assert queue.deleted == ["1"]
    assert [change.key for change in handled.changes] == [b"a"]
    await receiver.stop()
    assert queue.closed


async def test_what_could_not_be_handled_is_delivered_again() -> None:
    queue, handled = FakeQueue(), Handled()
    handled.failure = OriginUnavailableError("listing", why="the test says so")
    receiver = QueueReceiver("/m", lambda: queue, handled)
    receiver.start()
    queue.put("1")
    await pass_time(2)
    assert queue.deleted == []
    handled.failure = None
    await pass_time(queue.VISIBILITY_S + 2)
    assert queue.deleted == ["1"]
    assert receiver.status()["errors"] == 1
    await receiver.stop()


async def test_a_message_that_takes_longer_than_its_visibility_is_handled_once() -> None:
    queue, handled = StrictQueue(), Handled()
    handled.gate.clear()
    receiver = QueueReceiver("/m", lambda: queue, handled)
    receiver.start()
    queue.put("1", b"a")
    await pass_time(5)
    queue.put("2", b"b")
    await pass_time(9.7 * queue.VISIBILITY_S)  # between two deliveries
    assert queue.deliveries["1"] >= 9 and queue.deliveries["2"] >= 9
    assert handled.running == 2
    handled.gate.set()
    await pass_time(1)
    assert sorted(queue.deleted) == ["1", "2"]
    assert [change.key for change in handled.changes] == [b"a", b"b"]
    assert (receiver.status()["changes"], receiver.status()["errors"]) == (2, 0)
    await receiver.stop()


async def test_a_message_that_is_not_deleted_is_not_handled_again() -> None:
    queue, handled = StrictQueue(), Handled()
    queue.refusals = 3
    receiver = QueueReceiver("/m", lambda: queue, handled)
    receiver.start()
    queue.put("1")
    await pass_time(5 * queue.VISIBILITY_S)
    assert (queue.deleted, queue.deliveries["1"]) == (["1"], 4)
    assert len(handled.changes) == 1
    await receiver.stop()


async def test_a_message_that_failed_after_its_visibility_is_handled_again() -> None:
    queue, handled = StrictQueue(), Handled()
    handled.gate.clear()
    handled.failure = OriginUnavailableError("listing", why="the test says so")
    receiver = QueueReceiver("/m", lambda: queue, handled)
    receiver.start()
    queue.put("1")
    await pass_time(2.5 * queue.VISIBILITY_S)
    handled.gate.set()
    await pass_time(1)
    assert (queue.deleted, receiver.status()["errors"]) == ([], 1)
    handled.failure = None
    await pass_time(queue.VISIBILITY_S)
    assert queue.deleted == ["1"]
    await receiver.stop()


async def test_messages_without_ids_are_handled_each_time() -> None:
    queue, handled = StrictQueue(has_ids=False), Handled()
    queue.refusals = 1
    receiver = QueueReceiver("/m", lambda: queue, handled)
    receiver.start()
    queue.put("1")
    await pass_time(2 * queue.VISIBILITY_S)
    assert queue.deleted == ["1"]
    assert len(handled.changes) == 2
    await receiver.stop()


async def test_what_is_remembered_of_messages_is_bounded() -> None:
    deliveries = Deliveries()
    messages = [QueuedMessage(str(n), ReportedChanges([]), str(n)) for n in range(2 * HANDLED_MAX)]
    fresh, handled = deliveries.begin(messages)
    assert (fresh, handled) == (messages, [])
    assert deliveries.begin(messages) == ([], [])
    assert deliveries.end(messages, are_handled=True) == messages
    assert deliveries.begin(messages) == (messages[:HANDLED_MAX], messages[HANDLED_MAX:])


async def test_a_burst_is_handled_by_some_batches_at_a_time() -> None:
    queue, handled = FakeQueue(), Handled()
    for number in range(1000):
        queue.put(str(number))
    handled.gate.clear()
    receiver = QueueReceiver("/m", lambda: queue, handled)
    receiver.start()
    await pass_time(2)
    assert handled.running == BATCHES_MAX
    assert len(queue.calls) == BATCHES_MAX
    handled.gate.set()
    await pass_time(2)
    assert len(queue.deleted) == 1000
    assert handled.most == BATCHES_MAX
    await receiver.stop()


@pytest.mark.expected_warnings("events of a mount can't be received", "events of a mount are received again")
async def test_a_queue_that_fails_is_asked_less_and_less_often() -> None:
    queue, handled = FakeQueue(), Handled()
    queue.failure = OriginUnavailableError("queue", why="the test says so")
    receiver = QueueReceiver("/m", lambda: queue, handled)
    receiver.start()
    await pass_time(3600)
    pauses = [later - earlier for earlier, later in zip(queue.calls, queue.calls[1:], strict=False)]
    assert 60 <= len(queue.calls) <= 140
    assert all(BACKOFF_S_MAX / 2 <= pause <= BACKOFF_S_MAX for pause in pauses[7:])
    assert receiver.status()["error"] == "queue: the test says so"
    queue.failure = None
    queue.put("1")
    await pass_time(BACKOFF_S_MAX + 1)
    assert queue.deleted == ["1"]
    assert receiver.status()["error"] == ""
    await receiver.stop()


@pytest.mark.expected_warnings("a message of a queue is no event")
async def test_what_is_no_event_stays_in_the_queue_and_costs_little() -> None:
    queue, handled = FakeQueue(), Handled()
    for number in range(5000):
        queue.messages[str(number)] = EventFormatError("it is no event of a known form")
    receiver = QueueReceiver("/m", lambda: queue, handled)
    receiver.start()
    await pass_time(100)
    assert len(queue.calls) <= 102
    assert len(queue.messages) == 5000
    assert handled.changes == []
    refused = receiver.status()["refused"]
    assert isinstance(refused, int)
    assert refused >= 900
    await receiver.stop()


@pytest.mark.expected_warnings("events of a mount can't be received", "events of a mount are received again")
async def test_a_defect_does_not_end_the_receiver() -> None:
    queue, handled = FakeQueue(), Handled()
    queue.failure = RuntimeError("a defect")
    receiver = QueueReceiver("/m", lambda: queue, handled)
    receiver.start()
    await pass_time(10)
    assert receiver.status()["error"] == "RuntimeError: a defect, see the log"
    queue.failure = None
    queue.put("1")
    await pass_time(BACKOFF_S_MAX)
    assert queue.deleted == ["1"]
    await receiver.stop()


async def test_a_gap_means_the_whole_mount() -> None:
    queue, handled = FakeQueue(), Handled()
    queue.messages["1"] = ReportedChanges([], is_everything=True)
    receiver = QueueReceiver("/m", lambda: queue, handled)
    receiver.start()
    await pass_time(1)
    assert (handled.whole, handled.changes, queue.deleted) == (["/m"], [], ["1"])
    await receiver.stop()


async def test_a_service_that_always_has_something_is_not_asked_all_the_time() -> None:
    class Endless(FakeQueue):
        async def receive(self) -> Sequence[QueuedMessage]:
            self.calls.append(monotonic_s())
            return [QueuedMessage(str(len(self.calls)), ReportedChanges([]))]

        async def delete(self, messages: Sequence[QueuedMessage]) -> None:
            return None

    queue = Endless()
    receiver = QueueReceiver("/m", lambda: queue, Handled())
    receiver.start()
    await pass_time(10)
    assert len(queue.calls) <= 12 * RECEIVES_S
    await receiver.stop()


async def test_a_service_that_does_not_wait_is_asked_once_a_second() -> None:
    class Hasty(FakeQueue):
        async def receive(self) -> Sequence[QueuedMessage]:
            self.calls.append(monotonic_s())
            return []

    queue = Hasty()
    receiver = QueueReceiver("/m", lambda: queue, Handled())
    receiver.start()
    await pass_time(100)
    assert 99 <= len(queue.calls) <= 102
    await receiver.stop()


@pytest.mark.expected_warnings("events of a mount can't be received", "events of a mount are received again")
async def test_a_queue_that_cannot_be_built_is_built_later() -> None:
    queue, handled = FakeQueue(), Handled()
    queue.put("r1")
    attempts: list[float] = []
    is_installed = False

    def build() -> FakeQueue:
        attempts.append(monotonic_s())
        if not is_installed:
            raise MissingExtraError("queue q", why="the extra events is missing")
        return queue

    receiver = QueueReceiver("/m", build, handled)
    receiver.start()
    await pass_time(300)
    status = receiver.status()
    assert "the extra events is missing" in str(status["error"])
    assert 0 < float(str(status["retry_s"])) <= BACKOFF_S_MAX
    assert 6 <= len(attempts) <= 20
    is_installed = True
    await pass_time(BACKOFF_S_MAX + 1)
    assert (receiver.status()["error"], receiver.status()["retry_s"]) == ("", None)
    assert queue.deleted == ["r1"]
    await receiver.stop()
    assert queue.closed


@pytest.mark.expected_warnings("events of a mount can't be received")
async def test_a_receiver_without_a_queue_ends() -> None:
    def build() -> FakeQueue:
        raise OriginUnavailableError("queue q", why="there is no such profile")

    receiver = QueueReceiver("/m", build, Handled())
    receiver.start()
    await pass_time(2)
    await receiver.stop()
