"""A node reports its writes, here by records in memory."""

from __future__ import annotations

import asyncio

import pytest

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import PeerError
from headrace.overlay.pending_version import EntryState, PendingEntry
from headrace.ring.view import NodeInfo
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until
from headrace.wire.peer_messages import DirtyNamesChanged, ListPending, RecallLease
from headrace.writeback.coherence import publisher, subscriber
from headrace.writeback.coherence.dirty_scope import DirtyScope
from headrace.writeback.planner import PATHS_PER_TURN
from tests.unit.writeback.publisher_fixture import (
    Answering,
    Paging,
    PublisherFixture,
    RecordingPeers,
    elsewhere_of,
    view_of,
)

pytestmark = pytest.mark.timeout(60)


async def test_a_folder_is_recorded_once() -> None:
    here = PublisherFixture()
    here.registry.start()
    here.write(b"/d/1")
    await here.registry.enter([b"/d/1"])
    assert here.cover() == DirtyScope(frozenset({b"/d"}))
    writes = here.records.writes
    for number in range(200):
        here.write(b"/d/%d" % number)
        await here.registry.enter([b"/d/%d" % number])
    assert here.records.writes == writes
    here.write(b"/d/new", means=EntryState.DIRECTORY)
    await here.registry.enter([b"/d/new"])
    await until(lambda: here.cover().covers(b"/d/new/deep/er"))
    here.names.clear()
    await pass_time(publisher.CLEAN_LINGER_S - 1)
    assert here.cover()
    await pass_time(1 + 2 * publisher.CHECK_INTERVAL_S)
    assert not here.cover()
    assert b"/d" in here.unmarked
    await here.registry.stop()


async def test_answers_build_on_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "NAMES_PER_PAGE_MAX", 3)
    here = PublisherFixture()
    with pytest.raises(PeerError):
        here.ask(b"/d")
    here.registry.start()
    assert here.ask(b"/d")[0] == {}
    here.write(*(b"/d/%d" % number for number in range(7)))
    names: dict[bytes, int] = {}
    state, more = "", True
    while more:
        answer = here.registry.answer(ListPending("n0", b"/d", state))
        assert answer.whole == (state == "")
        names |= {row.name: row.means for row in answer.names}
        state, more = answer.state, answer.more
    assert len(names) == 7
    assert here.ask(b"/d", state) == ({}, state, False)
    here.write(b"/d/3", means=EntryState.HIDDEN)
    names, after, whole = here.ask(b"/d", state)
    assert names == {b"3": EntryState.HIDDEN}
    assert not whole
    here.names.pop(b"/d/3")
    here.registry.note([b"/d/3"])
    assert here.ask(b"/d", after)[0] == {b"3": EntryState.ORIGIN}
    assert here.ask(b"/d", "another:5")[2]
    await here.registry.stop()


async def test_an_answer_from_before_a_directory_was_forgotten_is_not_built_upon() -> None:
    """A node that had the name, and was not asked again before the directory was clean, would show it for ever."""
    here = PublisherFixture()
    here.registry.start()
    here.write(b"/d/a")
    here.write(b"/d/sub", means=EntryState.DIRECTORY)  # the record goes on to cover everything below
    here.write(b"/d/sub/b")
    names, state, _ = here.ask(b"/d/sub")
    assert names == {b"b": EntryState.FILE}
    del here.names[b"/d/sub/b"]
    here.registry.note([b"/d/sub/b"])  # it is persisted
    await until(lambda: b"/d/sub" in here.unmarked)
    await pass_time(2 * publisher.CHECK_INTERVAL_S)
    here.write(b"/d/sub/c")
    assert here.ask(b"/d/sub", state) == ({b"c": EntryState.FILE}, here.ask(b"/d/sub")[1], True)
    await here.registry.stop()


async def test_a_node_that_comes_back_hears_of_everything() -> None:
    """It was cut off from the records alone: it kept its view, and its last answers."""
    here = PublisherFixture()
    here.registry.start()
    here.view = view_of("n0")
    here.registry.on_view()
    here.write(b"/d/a", b"/e/a")
    await pass_time(2 * publisher.PUBLISH_INTERVAL_S)
    assert not here.peers.heard
    for ids in (("n0", "n1"), ("n0", "n1", "n2"), ("n0", "n1", "n2")):
        here.view = view_of(*ids)
        here.registry.on_view()
        await pass_time(2 * publisher.PUBLISH_INTERVAL_S)
    notice = DirtyNamesChanged("n0", [b"/d", b"/e"])
    assert here.peers.heard == [("n1", notice), ("n2", notice)]
    await here.registry.stop()


async def test_a_name_that_can_not_be_read_is_answered_when_it_can() -> None:
    """It may be that of a removed file, and the origin may be away: others would show the file until that is back."""
    here = PublisherFixture()
    here.write(b"/d/written", b"/d/other")
    here.write(b"/d/removed", means=EntryState.HIDDEN)
    here.registry.start()
    await pass_time(1)
    names, state, _ = here.ask(b"/d")
    here.unread = {b"/d/written", b"/d/removed"}
    assert here.ask(b"/d")[0] == {b"other": EntryState.FILE}
    here.write(b"/d/removed", means=EntryState.HIDDEN)
    assert here.ask(b"/d", state)[0] == {}, "the requester keeps what it knows"
    here.unread = set()
    here.peers.heard.clear()
    await pass_time(3)
    assert ("n1", DirtyNamesChanged("n0", [b"/d"], False)) in here.peers.heard
    later, _, whole = here.ask(b"/d", state)
    assert later == {name: names[name] for name in (b"written", b"removed")} and not whole
    await here.registry.stop()


async def test_others_are_told_a_few_times_a_second() -> None:
    here = PublisherFixture()
    here.registry.start()
    began_s = monotonic_s()
    for number in range(300):
        here.write(b"/d/%d" % number)
        await asyncio.sleep(0)
    await until(lambda: here.peers.heard)
    await pass_time(2 * publisher.PUBLISH_INTERVAL_S)  # one more would be said by now
    assert len(here.peers.heard) <= 2 + (monotonic_s() - began_s) / publisher.PUBLISH_INTERVAL_S
    assert here.peers.heard[0] == ("n1", DirtyNamesChanged("n0", [b"/d"]))
    await here.registry.stop()


class SilentPeers(RecordingPeers):
    """Peers of which n1 does not answer, until the time limit."""

    async def notify(
        self, node: NodeInfo, request: DirtyNamesChanged | RecallLease, deadline: Deadline
    ) -> None:
        if node.id == "n1":
            await pass_time(deadline.left_s())
            raise PeerError("node n1", why="the test says so")
        await super().notify(node, request, deadline)


async def test_a_node_that_does_not_answer_delays_no_notice_to_others() -> None:
    here = PublisherFixture(SilentPeers())
    here.view = view_of("n0", "n1", "n2")
    here.registry.start()
    for number in range(5):
        here.write(b"/%d/f" % number)
        await pass_time(2 * publisher.PUBLISH_INTERVAL_S)
        assert here.peers.heard[number:] == [("n2", DirtyNamesChanged("n0", [b"/%d" % number]))]
    await here.registry.stop()


async def test_a_record_that_another_node_removed_is_written_again() -> None:
    """One that took this node for gone, although it lived."""
    here = PublisherFixture()
    elsewhere = elsewhere_of(here, "n0", "n0", "n1")
    elsewhere.own_record_deleted.add(here.registry.record_again)
    await elsewhere.start()
    here.write(b"/d/a")
    here.registry.start()
    await here.registry.enter([b"/d/a"])
    await here.records.delete("written/n0")
    assert not here.cover()
    await here.registry.enter([b"/d/a"])
    assert here.cover().covers(b"/d")
    assert here.records.writes == 2
    await here.registry.stop()


@pytest.mark.parametrize("ends", [False, True])
async def test_an_answer_that_comes_after_the_record_went_counts_for_nothing(*, ends: bool) -> None:
    here = PublisherFixture()

    async def meanwhile() -> None:
        if ends:
            await here.records.delete("written/n0")

    here.peers = Answering(meanwhile)
    elsewhere = elsewhere_of(here, "n1", "n0", "n1")
    await elsewhere.start()
    await here.records.put("written/n0", DirtyScope.of({b"/d"}, set()).encode())
    assert list(await elsewhere.rows(b"/d")) == ([] if ends else [b"x"])


@pytest.mark.expected_warnings("headrace.writeback.coherence.subscriber")
@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'{"folders": [7]}', b'{"folders": ["\xff"]}', b"[" * 5000]
)
async def test_an_invalid_record_hides_no_names_of_its_writer_or_others(
    raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Each acquisition of a directory lease lists the records. The last valid scope of the writer counts on."""
    here = PublisherFixture()
    elsewhere = elsewhere_of(here, "n1", "n0", "n1", "n2", "n3")
    await elsewhere.start()
    await here.records.put("written/n0", DirtyScope.of({b"/d"}, set()).encode())
    await here.records.put("written/n0", raw)
    await here.records.put("written/n3", raw)
    await here.records.put("written/n2", DirtyScope.of({b"/e"}, set()).encode())
    for _ in range(2):
        await elsewhere.catch_up()
        assert (elsewhere.writers(b"/d"), elsewhere.writers(b"/e")) == (["n0"], ["n2"])
        await pass_time(subscriber.LISTED_S + 1)
        assert (elsewhere.writers(b"/d"), elsewhere.writers(b"/e")) == (["n0"], ["n2"])
    assert [sum(f"writer={id} " in text for text in caplog.messages) for id in ("n0", "n3")] == [1, 1]
    await here.records.put("written/n0", DirtyScope.of({b"/f"}, set()).encode())
    assert (elsewhere.writers(b"/d"), elsewhere.writers(b"/f")) == ([], ["n0"])
    await here.records.delete("written/n0")
    await elsewhere.catch_up()
    assert elsewhere.writers(b"/f") == []


@pytest.mark.expected_warnings("headrace.writeback.coherence.subscriber")
async def test_a_record_that_turns_invalid_before_the_watch_sees_it_keeps_its_listed_scope() -> None:
    here = PublisherFixture()
    elsewhere = elsewhere_of(here, "n1", "n0", "n1")  # it does not follow the records
    await here.records.put("written/n0", DirtyScope.of({b"/d"}, set()).encode())
    await elsewhere.catch_up()
    await here.records.put("written/n0", b"{")
    await elsewhere.catch_up()
    assert elsewhere.writers(b"/d") == ["n0"]
    await here.records.put("written/n0", DirtyScope().encode())
    await elsewhere.catch_up()
    assert elsewhere.writers(b"/d") == []


async def test_who_was_persisted_in_its_place_is_gone_for_a_while_yet() -> None:
    """So that folders are listed anew, whatever the last listing says to be good for. Not where a node that lives has
    nothing to tell any more."""
    here = PublisherFixture()
    elsewhere = elsewhere_of(here, "n1", "n1", "n2")
    await elsewhere.start()
    for writer in ("n0", "n2"):
        await here.records.put(f"written/{writer}", DirtyScope.of({f"/{writer}".encode()}, set()).encode())
    assert (elsewhere.any_gone(b"/n0"), elsewhere.any_gone(b"/n2")) == (True, False)
    for writer in ("n0", "n2"):
        await here.records.delete(f"written/{writer}")
    assert elsewhere.writers(b"/n0") == []
    assert (elsewhere.any_gone(b"/n0"), elsewhere.any_gone(b"/n2")) == (True, False)
    await pass_time(subscriber.ENDED_S - 1)
    assert elsewhere.any_gone(b"/n0")
    await pass_time(2)
    assert not elsewhere.any_gone(b"/n0")


@pytest.mark.expected_warnings("headrace.writeback.coherence.publisher")
async def test_while_the_records_are_away_it_goes_on() -> None:
    here = PublisherFixture()
    here.registry.start()
    here.records.away = True
    here.write(b"/d/1")
    await here.registry.enter([b"/d/1"])
    assert not here.cover()
    here.records.away = False
    await until(lambda: here.cover().covers(b"/d"))
    await here.registry.stop()


async def test_a_page_that_fails_leaves_the_last_answer_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "NAMES_PER_PAGE_MAX", 3)
    here = PublisherFixture()
    here.peers = peers = Paging(here)
    here.registry.start()
    names = [b"%d" % number for number in range(7)]
    here.write(*(b"/d/" + name for name in names))
    elsewhere = elsewhere_of(here, "n1", "n0", "n1")
    await elsewhere.start()
    await here.records.put("written/n0", DirtyScope.of({b"/d"}, set()).encode())
    assert sorted(await elsewhere.rows(b"/d")) == names
    for answer in elsewhere._answers.values():
        answer.state = "of an earlier run"  # the next answer begins anew
    peers.pages_left = 1
    assert sorted(await elsewhere.rows(b"/d")) == names
    here.write(b"/d/7", b"/d/8")
    peers.pages_left = 100
    assert sorted(await elsewhere.rows(b"/d")) == [*names, b"7", b"8"]
    await here.registry.stop()


@pytest.mark.parametrize("state", ["²", "²:1", "1:²", "9" * 5000, "x", ":1", "-5"])
async def test_a_state_that_no_answer_had_gets_all_names(state: str) -> None:
    """Some were an exception, and a trace in the log."""
    here = PublisherFixture()
    here.registry.start()
    here.write(b"/d/1")
    instance = here.registry.answer(ListPending("n0", b"/d", "")).state.partition(":")[0]
    page = here.registry.answer(ListPending("n0", b"/d", f"{instance}:{state}"))
    assert [entry.name for entry in page.names] == [b"1"]
    await here.registry.stop()


async def test_a_page_holds_the_loop_for_a_moment_only() -> None:
    """Twenty thousand names took seconds, in which the node answered no ping."""
    here = PublisherFixture()
    here.registry.start()
    here.write(*(b"/d/%d" % number for number in range(2500)))
    pages = [here.registry.answer(ListPending("n0", b"/d", ""))]
    while pages[-1].more:
        pages.append(here.registry.answer(ListPending("n0", b"/d", pages[-1].state)))
    assert [len(page.names) for page in pages] == [1000, 1000, 500]
    assert len({entry.name for page in pages for entry in page.names}) == 2500
    await here.registry.stop()


async def test_a_check_of_many_names_lets_other_tasks_run() -> None:
    """Two thousand names took the loop for up to 0.6 s, once a second."""
    here = PublisherFixture()
    here.registry.start()
    here.write(*(b"/d/%d" % number for number in range(1500)))
    here.names.clear()  # all of them are persisted
    checked: list[int] = [0]
    look = here.look

    def counted(path: bytes) -> PendingEntry:
        if not checked[-1]:
            asyncio.get_running_loop().call_soon(checked.append, 0)
        checked[-1] += 1
        return look(path)

    here.look = counted  # type: ignore[method-assign]
    await until(lambda: not here.registry.has_noted(b"/d/1499"))
    assert sum(checked) == 1500 and max(checked) <= PATHS_PER_TURN
    await here.registry.stop()


async def test_a_name_that_is_written_during_a_check_is_not_forgotten() -> None:
    here = PublisherFixture()
    here.registry.start()
    here.write(*(b"/d/%d" % number for number in range(2 * PATHS_PER_TURN)))
    here.names.clear()
    last, look = b"/d/%d" % (2 * PATHS_PER_TURN - 1), here.look

    def look_and_note(path: bytes) -> PendingEntry:
        if path == b"/d/0":  # the session reports it before the check comes to it; it is as clean as before
            here.registry.note([last])
        return look(path)

    here.look = look_and_note  # type: ignore[method-assign]
    state = here.ask(b"/d")[1]
    await until(lambda: not here.registry.has_noted(b"/d/1"))
    await pass_time(publisher.CHECK_INTERVAL_S / 2)
    assert here.registry.has_noted(last) and here.cover().covers(b"/d")
    assert here.ask(b"/d", state)[0] == {last.removeprefix(b"/d/"): EntryState.ORIGIN}
    await until(lambda: not here.cover())
    await here.registry.stop()


async def test_a_directory_stays_recorded_with_all_below_while_any_below_it_has_names() -> None:
    here = PublisherFixture()
    here.registry.start()
    for top in (b"/a", b"/b"):
        here.write(top, top + b"/c", means=EntryState.DIRECTORY)
        here.write(top + b"/c/file")
    for path in (b"/a", b"/a/c", b"/a/c/file", b"/b", b"/b/c"):
        del here.names[path]
    await here.registry.enter([b"/a/c/file", b"/b/c/file"])
    await until(lambda: not here.registry.is_recorded(b"/a"))
    assert here.registry.is_recorded_below(b"/b/c/any")
    await here.registry.stop()
