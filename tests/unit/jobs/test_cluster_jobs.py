"""Jobs of several nodes over records that they share: who does what, and what is told of it."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import ClusterUnavailableError, OriginDeniedError, PathNotFoundError, UsageError
from headrace.cluster.embedded import EmbeddedRecords
from headrace.cluster.records import Followers, Records
from headrace.jobs.job_records import DONE, JobRecord, job_key
from headrace.jobs.task import CarriedProgress, JobTask
from headrace.origin.origin import Origin
from headrace.ring.ring import Ring
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until
from headrace.wire.messages import JobState
from tests.faulty_origin import FaultyOrigin
from tests.unit.jobs.many_runners import MIB, JobClusterFixture, RecordsOfNode

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[JobClusterFixture]:
    async with JobClusterFixture(tmp_path).running() as world:
        yield world


def size_of(world: JobClusterFixture, names: list[str]) -> int:
    return sum(len(world.bodies[name]) for name in names)


async def test_each_file_is_loaded_by_its_owner_alone_and_counted_once(world: JobClusterFixture) -> None:
    names = [*world.put_many(60), *world.put_many(20, folder="e/f")]
    world.put("large", os.urandom(3 * MIB + 7))
    world.put("empty", b"")
    names += ["large", "empty"]
    id = await world.runners["b"].jobs.submit("load", "/", {})
    row = await world.agree(id)
    assert (row.state, row.files_done, row.files_total, row.failed_files) == ("done", 82, 82, 0)
    assert row.bytes_done == row.bytes_total == size_of(world, names)
    primaries = Counter(world.owners(name)[0] for name in names)
    assert row.files_by_node.items() <= primaries.items()  # each node drops its part some time after the end
    await world.check_loaded(names)
    assert set(world.origin.reads) == set(names) - {"empty"}
    assert all(count == 1 for name, count in world.origin.reads.items() if name != "large")


async def test_replicas_are_loaded_and_not_counted(tmp_path: Path) -> None:
    async with JobClusterFixture(tmp_path, nodes="abcd").running() as w:
        names = w.put_many(40)
        id = await w.runners["a"].jobs.submit("load", "/d", {"replicas": "2"})
        row = await w.agree(id)
        assert (row.files_done, row.bytes_done) == (40, size_of(w, names))
        await w.check_loaded(names, copies=2)


async def test_segments_of_a_large_file_go_to_their_owners(tmp_path: Path) -> None:
    async with JobClusterFixture(tmp_path, segment_bytes=2 * MIB).running() as w:
        w.put("large", os.urandom(8 * MIB + 3))
        id = await w.runners["a"].jobs.submit("load", "/large", {})
        row = await w.agree(id)
        assert (row.files_done, row.files_total) == (1, 1)
        assert row.bytes_done == row.bytes_total == 8 * MIB + 3
        for segment in range(5):
            start, end = segment * 2 * MIB, min(8 * MIB + 3, (segment + 1) * 2 * MIB)
            for id, runner in w.runners.items():
                entry = await runner.entry("large")
                writer = runner.store.writer(entry.id)
                there = writer is not None and writer.present(start, end)
                assert there == (id in w.owners("large", segment=segment)), (segment, id)


async def test_what_fails_is_told_by_path_and_tried_again(tmp_path: Path) -> None:
    world = JobClusterFixture(tmp_path)
    world.outer = outer = FaultyKeys(world.origin, "d/003", "d/017")
    async with world.running():
        names = world.put_many(30)
        id = await world.runners["c"].jobs.submit("load", "/d", {})
        row = await world.agree(id)
        assert (row.state, row.files_done, row.files_total, row.failed_files) == ("failed", 28, 30, 2)
        assert {path for path, _ in row.failed} == {"/d/003", "/d/017"}
        assert all("denied" in reason for _, reason in row.failed)
        outer.fail_keys.clear()
        before = dict(world.origin.reads)
        await world.runners["a"].jobs.retry(id)
        row = await world.agree(id)
        assert (row.state, row.attempt, row.files_done, row.files_total) == ("done", 2, 2, 2)
        assert {name for name in world.origin.reads if world.origin.reads[name] != before.get(name)} == {
            "d/003",
            "d/017",
        }
        await world.check_loaded(names)


class FaultyKeys(FaultyOrigin):
    """Fails the reads of some keys."""

    def __init__(self, inner: Origin, *keys: str) -> None:
        super().__init__(inner)
        self.fail_keys = set(keys)

    def _next(self, call: str, key: str) -> OriginDeniedError | None:
        self.asked.append((call, key))
        return (
            OriginDeniedError(key, why="denied by plan") if call == "read" and key in self.fail_keys else None
        )


async def test_a_failure_of_both_owners_is_one(tmp_path: Path) -> None:
    world = JobClusterFixture(tmp_path)
    world.outer = FaultyKeys(world.origin, "d/005")
    async with world.running():
        world.put_many(10)
        id = await world.runners["a"].jobs.submit("load", "/d", {"replicas": "3"})
        row = await world.agree(id)
        assert (row.files_done, row.files_total, row.failed_files) == (9, 10, 1)


async def test_a_node_that_dies_in_the_middle_is_made_up_for(world: JobClusterFixture) -> None:
    names = world.put_many(80)
    world.origin.hold_after = 30
    id = await world.runners["a"].jobs.submit("load", "/d", {})
    await world.origin.held.wait()
    states: list[JobState] = []

    async def watch() -> None:
        async for state in world.runners["c"].jobs.states(id):
            states.append(state)

    watching = asyncio.ensure_future(watch())
    await world.until("c", id, lambda row: not row.listing)
    world.origin.release()
    await world.kill("a")  # that took the job, and would have ended it
    row = await world.agree(id)
    await watching
    assert (row.state, row.files_done, row.files_total, row.failed_files) == ("done", 80, 80, 0)
    assert row.bytes_done == size_of(world, names)
    assert max(state.files_done for state in states) <= 80
    for name in names:
        assert await world.runners[world.owners(name)[0]].has(name)


async def test_a_node_that_joins_in_the_middle_does_its_share(world: JobClusterFixture) -> None:
    names = world.put_many(80)
    world.origin.hold_after = 40
    id = await world.runners["b"].jobs.submit("load", "/d", {})
    await world.origin.held.wait()
    await world.until("a", id, lambda row: not row.listing)
    counts: list[int] = []

    async def watch() -> None:
        async for state in world.runners["a"].jobs.states(id):
            counts.append(state.files_done)

    watching = asyncio.ensure_future(watch())
    await world.join("d")
    world.origin.release()
    row = await world.agree(id)
    await watching
    assert (row.state, row.files_done, row.bytes_done) == ("done", 80, size_of(world, names))
    assert max(counts) <= 80
    mine = [name for name in names if world.owners(name) == ["d"]]
    assert mine
    for name in mine:
        assert await world.runners["d"].has(name)


async def test_the_counts_of_a_part_are_carried_over_a_change_of_the_ring(world: JobClusterFixture) -> None:
    """The old nodes do not claim what moved to the new one, and the rest continues counting."""
    names = world.put_many(60)
    world.origin.hold_after = 40
    id = await world.runners["a"].jobs.submit("load", "/d", {})
    await world.origin.held.wait()
    await world.until("a", id, lambda row: row.files_done == 40 and not row.listing)
    loaded = {name for name in names if any([await runner.has(name) for runner in world.runners.values()])}
    await world.join("d")
    kept = sum(world.owners(name) != ["d"] for name in loaded)
    assert kept < 40
    row = await world.until("b", id, lambda row: not row.listing and len(row.files_by_node) == 4)
    assert row.files_done == kept
    world.origin.release()
    assert (await world.agree(id)).files_done == 60


async def test_a_ring_that_changes_while_a_task_restarts_leaves_no_file_out(
    world: JobClusterFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that joined leaves while another one counts what it keeps of its task."""
    names = world.put_many(80)
    world.origin.hold_after = 10
    id = await world.runners["b"].jobs.submit("load", "/d", {})
    await world.origin.held.wait()
    await world.until("a", id, lambda row: not row.listing and len(row.files_by_node) == 3)
    carried = JobTask.carried
    left = asyncio.Event()

    async def carried_while_one_leaves(task: JobTask, ring: Ring) -> CarriedProgress:
        if not left.is_set():
            left.set()
            await world.kill("d")
        return await carried(task, ring)

    monkeypatch.setattr(JobTask, "carried", carried_while_one_leaves)
    await world.join("d")
    await left.wait()
    world.origin.release()
    row = await world.agree(id)
    assert (row.state, row.files_done, row.files_total) == ("done", 80, 80)
    await world.check_loaded(names)


async def test_an_answer_that_comes_late_takes_no_job_back_in_time(tmp_path: Path) -> None:
    """The end of a job is known before the write that began it again is answered."""

    class LateRecords(RecordsOfNode):
        async def replace(self, key: str, old: bytes, new: bytes, *, leased: bool = False) -> bool:
            is_replaced = await super().replace(key, old, new, leased=leased)
            await until(lambda: is_again_done("c"))
            return is_replaced

    def records_of(node: str) -> Records:
        return LateRecords(w.records, node) if node == "c" else w.records.of(node)

    def is_again_done(node: str) -> bool:
        (row,) = w.runners[node].jobs.rows(id)
        return (row.state, row.attempt) == ("done", 2)

    w = JobClusterFixture(tmp_path, records=records_of)
    async with w.running():
        names = w.put_many(20)
        id = await w.runners["a"].jobs.submit("load", "/d", {})
        await w.agree(id)
        await w.runners["c"].jobs.retry(id)
        assert all(map(is_again_done, w.runners))
        await w.check_loaded(names)


async def test_a_job_that_is_cancelled_while_its_end_is_written_stays_cancelled(
    world: JobClusterFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = world.put_many(5)
    pins, reached, cancelled = world.runners["a"].jobs.pins, asyncio.Event(), asyncio.Event()
    add = pins.add

    async def add_late(path: str, options: dict[str, str]) -> None:
        reached.set()
        await cancelled.wait()
        await add(path, options)

    monkeypatch.setattr(pins, "add", add_late)
    id = await world.runners["b"].jobs.submit("pin", "/d", {})
    await reached.wait()
    await world.runners["b"].jobs.cancel(id)
    await until(lambda: world.runners["a"].jobs.rows(id)[0].state == "cancelled")
    cancelled.set()
    assert (await world.agree(id)).state == "cancelled"
    await pass_time(5.0)
    assert world.runners["a"].jobs.rows(id)[0].state == "cancelled"
    await world.check_loaded(names)


async def test_cancel_stops_all_nodes_and_a_retry_ends_it(world: JobClusterFixture) -> None:
    names = world.put_many(50)
    world.origin.hold_after = 20
    id = await world.runners["a"].jobs.submit("load", "/d", {})
    await world.origin.held.wait()
    await world.until("b", id, lambda row: row.files_done == 20 and not row.listing)
    await world.runners["b"].jobs.cancel(id)
    row = await world.agree(id)
    assert (row.state, row.files_done) == ("cancelled", 20)
    assert row.files_total == 50
    world.origin.release()
    await world.runners["c"].jobs.cancel(id)  # it is over: nothing
    assert len(world.origin.reads) < 50
    await world.runners["c"].jobs.retry(id)
    row = await world.agree(id)
    assert (row.state, row.files_done, row.attempt) == ("done", 50, 2)
    await world.check_loaded(names)


async def test_two_jobs_at_once(world: JobClusterFixture) -> None:
    first, other = world.put_many(30, folder="x"), world.put_many(20, folder="y")
    ids = await asyncio.gather(
        world.runners["a"].jobs.submit("load", "/x", {}), world.runners["b"].jobs.submit("load", "/y", {})
    )
    assert sorted(ids) == ["1", "2"]
    rows = {row.path: row for row in [await world.agree(id) for id in ids]}
    assert (rows["/x"].files_done, rows["/y"].files_done) == (30, 20)
    await world.check_loaded([*first, *other])
    assert [row.id for row in world.runners["c"].jobs.rows()] == ["1", "2"]


async def test_a_job_of_high_priority_goes_first(tmp_path: Path) -> None:
    async with JobClusterFixture(tmp_path, nodes="a").running() as w:
        low, high = w.put_many(200, folder="low"), w.put_many(20, folder="high")
        w.origin.hold_after = 0
        first = await w.runners["a"].jobs.submit("load", "/low", {"priority": "low"})
        await w.origin.held.wait()
        await w.until("a", first, lambda row: not row.listing)
        second = await w.runners["a"].jobs.submit("load", "/high", {"priority": "high"})
        await w.until("a", second, lambda row: not row.listing)
        w.origin.release()
        await w.agree(first)
        await w.agree(second)
        last_high = max(w.origin.order.index(name) for name in high)
        assert last_high < 64 + 20 + 8  # those that had their turn already go on
        await w.check_loaded([*low, *high])


async def test_verify_fetches_again_what_does_not_match(world: JobClusterFixture) -> None:
    names = world.put_many(5)
    await world.agree(await world.runners["a"].jobs.submit("load", "/d", {}))
    owner = world.runners[world.owners("d/002")[0]]
    owner.path_of(await owner.entry("d/002")).write_bytes(b"?" * len(world.bodies["d/002"]))
    await world.agree(await world.runners["a"].jobs.submit("load", "/d", {}))
    assert world.origin.reads["d/002"] == 1
    row = await world.agree(await world.runners["a"].jobs.submit("load", "/d", {"verify": "true"}))
    assert (row.state, row.files_done) == ("done", 5)
    assert world.origin.reads["d/002"] == 2
    await world.check_loaded(names)


async def test_free_drops_what_every_node_has_borrowed_copies_too(world: JobClusterFixture) -> None:
    names, others = world.put_many(30), world.put_many(3, folder="e")
    await world.agree(await world.runners["a"].jobs.submit("load", "/", {}))
    for runner in world.runners.values():  # one of them owns it
        await runner.reads.load(await runner.entry("d/000"))
    row = await world.agree(await world.runners["c"].jobs.submit("free", "/d", {}))
    assert (row.state, row.files_done, row.files_total) == ("done", 32, 32)
    assert row.bytes_done == size_of(world, names) + 2 * len(world.bodies["d/000"])
    for runner in world.runners.values():
        assert [name for name in names if await runner.has(name)] == []
    await world.check_loaded(others)


async def test_wrong_words_and_paths_are_refused_at_once(world: JobClusterFixture) -> None:
    jobs = world.runners["a"].jobs
    with pytest.raises(PathNotFoundError):
        await jobs.submit("load", "/nothing", {})
    for options in ({"replicas": "many"}, {"priority": "urgent"}, {"colour": "red"}):
        with pytest.raises(UsageError):
            await jobs.submit("load", "/", options)
    with pytest.raises(UsageError, match="no such option"):
        await jobs.submit("free", "/", {"replicas": "2"})
    for call in (jobs.cancel, jobs.retry):
        with pytest.raises(UsageError, match="no such job"):
            await call("7")
    assert world.records.values == {}


async def test_work_goes_on_while_etcd_is_away(world: JobClusterFixture) -> None:
    names = world.put_many(40)
    world.origin.hold_after = 10
    id = await world.runners["a"].jobs.submit("load", "/d", {})
    await world.origin.held.wait()
    await world.until("a", id, lambda row: len(row.files_by_node) == 3)
    world.records.away = True
    with pytest.raises(ClusterUnavailableError):
        await world.runners["b"].jobs.submit("load", "/d", {})
    world.origin.release()
    await until(lambda: len(world.origin.reads) >= 40)
    assert world.runners["b"].jobs.rows(id)[0].state == "running"
    world.records.away = False
    row = await world.agree(id)
    assert (row.state, row.files_done) == ("done", 40)
    await world.check_loaded(names)


async def test_a_job_that_etcd_lost_goes_on(world: JobClusterFixture) -> None:
    names = world.put_many(40)
    world.origin.hold_after = 10
    id = await world.runners["a"].jobs.submit("load", "/d", {})
    await world.origin.held.wait()
    await world.until("a", id, lambda row: len(row.files_by_node) == 3)
    world.records.lose()
    world.origin.release()
    row = await world.agree(id)
    assert (row.state, row.files_done) == ("done", 40)
    await world.check_loaded(names)


async def test_progress_is_written_once_a_second_and_the_end_cleans_up(world: JobClusterFixture) -> None:
    world.put_many(100)
    await world.agree(await world.runners["a"].jobs.submit("load", "/d", {}))
    await until(lambda: set(world.records.values) == {"jobs/1"})
    assert all(count <= 3 for key, count in world.records.puts.items() if "/parts/" in key), (
        world.records.puts
    )


async def test_old_jobs_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.jobs.cluster_jobs.ENDED_KEPT_MAX", 3)
    async with JobClusterFixture(tmp_path).running() as w:
        w.put_many(2)
        for _ in range(6):
            await w.end_of("b", await w.runners["b"].jobs.submit("load", "/d", {}))
        await until(lambda: [row.id for row in w.runners["c"].jobs.rows()] == ["4", "5", "6"])


async def test_a_node_that_was_cut_off_begins_no_job_again_that_is_over_and_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its watch tells the difference at once: what is gone, then what is new."""
    monkeypatch.setattr("headrace.jobs.cluster_jobs.ENDED_KEPT_MAX", 3)
    async with JobClusterFixture(tmp_path, nodes="a").running() as w:
        w.put_many(2)
        w.origin.hold_after = 0
        id = await w.runners["a"].jobs.submit("load", "/d", {})
        await w.until("a", id, lambda row: len(row.files_by_node) == 1)
        w.records.change(job_key(id), None)
        later = [JobRecord(str(number), "free", "/d", {}, "b", state=DONE) for number in (2, 3, 4)]
        for record in later:
            w.records.change(job_key(record.id), msgspec.json.encode(record))
        await until(lambda: [row.id for row in w.runners["a"].jobs.rows()] == ["2", "3", "4"])
        await until(lambda: set(w.records.values) == {"jobs/2", "jobs/3", "jobs/4"})


async def test_records_that_tell_at_once(tmp_path: Path) -> None:
    """Records of one process do so: what is written is heard before the write returns."""
    shared = Followers()
    async with JobClusterFixture(tmp_path, records=lambda _: EmbeddedRecords(shared)).running() as w:
        names = w.put_many(30)
        id = await w.runners["b"].jobs.submit("load", "/d", {"replicas": "2"})
        assert (await w.agree(id)).files_done == 30
        await w.check_loaded(names, copies=2)
        await w.join("d")
        await w.agree(await w.runners["d"].jobs.submit("load", "/d", {"replicas": "2"}))
        assert await w.agree(await w.runners["d"].jobs.submit("free", "/d", {}))
        assert not any([await runner.has(name) for runner in w.runners.values() for name in names])


async def test_a_version_is_loaded_by_its_path_on_all_nodes(world: JobClusterFixture) -> None:
    names = world.put_many(30)
    first = world.runners["a"].jobs.local
    for kind in ("seal", "push-seal"):
        states = [state async for state in first.run(kind, "/d", {"seal": "data@3"})]
        assert states[-1].failed_files == 0
    world.put("d/new", b"later")
    id = await world.runners["b"].jobs.submit("load", "/data@3", {})
    row = await world.agree(id)
    assert (row.state, row.files_done, row.failed_files, row.path) == ("done", 30, 0, "/data@3")
    (seal_row,) = await first.shared_seals.own_rows()
    assert row.data == {"data@3": seal_row.id}
    for name in names:
        assert await world.runners[world.owners(name)[0]].has(name)
    assert not world.origin.reads["d/new"]
    with pytest.raises(PathNotFoundError):
        await world.runners["b"].jobs.submit("pin", "/data@3", {})


@pytest.mark.expected_warnings("job record is invalid")
@pytest.mark.parametrize(
    "change",
    [
        {"id": "8"},
        {"kind": "seal"},
        {"state": "paused"},
        {"options": {"replicas": "-1"}},
        {"options": {"replicas": "9" * 5000}},
        {"options": {"priority": "most"}},
        {"options": {"seal": "a@1"}},
    ],
    ids=lambda change: "-".join(str(part)[:30] for part in change.items()),
)
async def test_a_record_that_no_node_could_run_is_ignored_with_one_warning(
    world: JobClusterFixture, change: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    names = world.put_many(2)
    record = msgspec.structs.replace(JobRecord("7", "load", "/d", {}, "b"), **change)
    world.records.change(job_key("7"), msgspec.json.encode(record))
    with pytest.raises(UsageError, match="no such job"):
        await world.runners["a"].jobs.cancel("7")
    id = await world.runners["a"].jobs.submit("load", "/d", {})
    assert (await world.agree(id)).state == DONE  # each node has seen the record before
    await pass_time(5)
    await world.check_loaded(names)
    assert not [row.id for runner in world.runners.values() for row in runner.jobs.rows() if row.id != id]
    assert not any(runner.jobs._away for runner in world.runners.values())
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
    assert len(warnings) == len(world.runners)
    assert all("key=jobs/7" in warning for warning in warnings)
