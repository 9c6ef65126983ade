"""The read path where threads, evictions and a failing disk meet: what each waiter hears."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import NoSpaceError, StaleIdError, StoreError, VersionChangedError
from headrace.base.model import ROOT_ID, Arrived, FileId, Version
from headrace.dataplane.intent import FOR_PEER, FOREGROUND
from headrace.namespace.mounts import Mount
from headrace.origin.memory import MemoryOrigin
from headrace.store.writer import CacheWriter
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until
from tests.unit.dataplane.read_fixture import MIB, ReadPathFixture
from tests.unit.store.broken_disk import broken_disk

pytestmark = pytest.mark.timeout(60)

BODY = os.urandom(6 * MIB + 5)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ReadPathFixture]:
    async with ReadPathFixture(tmp_path).running() as world:
        yield world


@pytest.mark.expected_warnings("headrace.dataplane.fill")
async def test_a_commit_that_fails_is_heard_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, world: ReadPathFixture
) -> None:
    world.origin.hold("f", BODY)
    id = (await world.entry("f")).id
    real = os.rename
    with monkeypatch.context() as broken:

        def rename(source: str, target: str) -> None:
            if source.endswith(".part"):
                raise OSError(5, "Input/output error")
            real(source, target)

        broken.setattr(os, "rename", rename)
        with pytest.raises(StoreError, match="Input/output"):
            await world.reads.fill(id, 0, len(BODY))
    assert world.whole == []
    assert await world.reads.open(id)
    assert world.whole == [id]
    assert world.content(id) == BODY


def part_of(world: ReadPathFixture, id: FileId) -> bytes:
    return Path(world.store.volumes[0].part_path(id)).read_bytes()


@pytest.mark.parametrize("has_digest", [False, True])
async def test_a_file_for_whose_record_there_is_no_space_is_read_and_committed_later(
    monkeypatch: pytest.MonkeyPatch, world: ReadPathFixture, *, has_digest: bool
) -> None:
    """The error went to the loop, which nobody reads, and each attempt kept a descriptor."""
    token = f'"{hashlib.md5(BODY, usedforsecurity=False).hexdigest()}"' if has_digest else ""
    world.origin.hold("f", BODY, token=token)
    entry = await world.entry("f")
    descriptors = len(os.listdir("/proc/self/fd"))
    await world.reads.fill(entry.id, 0, MIB, FOREGROUND)

    def refuse(*_: object) -> None:
        raise NoSpaceError("index", why="the filesystem is full")

    with monkeypatch.context() as full:
        full.setattr(world.store.index, "put_cached", refuse)
        for _ in range(3):
            assert not await world.reads.fill(entry.id, 0, len(BODY))
            assert part_of(world, entry.id) == BODY
            with pytest.raises(NoSpaceError):
                await world.reads.load(entry)
            world.reads.close_idle()
            world.reads.close_idle()
            assert world.reads._fills.get(entry.id) is None
            assert len(os.listdir("/proc/self/fd")) == descriptors
    assert world.whole == []
    await world.reads.load(entry)
    assert world.whole == [entry.id]
    assert world.content(entry.id) == BODY


class TwoTiersFixture(ReadPathFixture):
    memory_bytes = 64 * MIB


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS])
async def test_a_file_whose_disk_fails_is_fetched_to_another_one(tmp_path: Path, error: int) -> None:
    """Its readers would get EIO as long as it has its part there."""
    async with TwoTiersFixture(tmp_path).running() as w:
        for name in "fgs":
            w.origin.hold(name, BODY if name != "s" else b"small")
        f, g, s = [(await w.entry(name)).id for name in "fgs"]
        for id in (f, g):
            await w.reads.fill(id, 0, MIB, FOREGROUND)
        broken = w.store.volumes[1]
        assert w.reads._fills.get(f).volume is broken  # type: ignore[union-attr]
        w.reads.forget([g])  # as after a restart
        with broken_disk(broken, error):
            await asyncio.gather(*(w.reads.fill(f, start, len(BODY)) for start in (0, MIB, 3 * MIB)))
            await w.reads.load(await w.entry("g"))
            assert await w.reads.open(s)
            await w.reads.load(await w.entry("f"))
        assert w.content(f) == w.content(g) == BODY
        assert w.content(s) == b"small"


async def test_a_file_is_not_fetched_again_and_again_where_all_disks_fail(world: ReadPathFixture) -> None:
    world.origin.hold("f", BODY)
    id = (await world.entry("f")).id
    await world.reads.fill(id, 0, MIB, FOREGROUND)
    with broken_disk(world.store.volumes[0], errno.EIO), pytest.raises(StoreError):
        await world.reads.fill(id, 0, len(BODY))
    await world.reads.load(await world.entry("f"))
    assert world.content(id) == BODY


async def test_a_file_that_was_whole_before_a_kill_is_committed_at_its_open(tmp_path: Path) -> None:
    async with ReadPathFixture(tmp_path).running() as w:
        w.origin.hold("f", BODY)
        entry = await w.entry("f")
        writer = w.store.create(entry)
        writer.write(0, BODY)
        writer.close()
        assert await w.reads.open(entry.id)
        assert w.whole == [entry.id]


async def test_one_small_file_too_many_is_not_the_others_trouble(tmp_path: Path) -> None:
    async with ReadPathFixture(tmp_path).running() as w:
        for name, size in (("a", 10), ("b", MIB), ("c", 20)):
            w.origin.hold(name, os.urandom(size))
        entries = [await w.entry(name) for name in "abc"]
        w.store.volumes[0].capacity_bytes = MIB // 2
        results = await asyncio.gather(*(w.reads.open(entry.id) for entry in entries), return_exceptions=True)
        assert results[0] is True
        assert isinstance(results[1], NoSpaceError)
        assert results[2] is True


async def test_a_cache_file_that_somebody_deleted_is_fetched_again(world: ReadPathFixture) -> None:
    world.origin.hold("f", BODY)
    world.origin.hold("s", b"small")
    for name in "fs":
        entry = await world.entry(name)
        await world.reads.load(entry)
        os.unlink(world.store.volumes[0].data_path(entry.id))
        await world.reads.fill(entry.id, 0, 5)
        await world.reads.load(entry)
        assert len(world.content(entry.id)) == entry.version.size_bytes


async def test_eviction_under_a_reader_is_not_its_trouble(world: ReadPathFixture) -> None:
    world.origin.hold("f", BODY)
    id = (await world.entry("f")).id

    async def evict() -> None:
        for _ in range(5):
            await pass_time(0.001)
            world.reads.forget([id])
            world.store.free(id)

    evicting = asyncio.ensure_future(evict())
    await asyncio.gather(*(world.reads.fill(id, n * MIB, (n + 1) * MIB) for n in range(6)))
    await evicting
    await world.reads.fill(id, 0, len(BODY))
    assert world.content(id) == BODY


async def test_after_a_change_the_next_open_sees_the_new_version(world: ReadPathFixture) -> None:
    world.origin.hold("f", BODY)
    old = await world.entry("f")
    await world.reads.fill(old.id, 0, MIB, FOREGROUND)
    world.origin.hold("f", BODY[::-1])
    with pytest.raises(VersionChangedError):
        await world.reads.fill(old.id, 4 * MIB, 5 * MIB, FOREGROUND)
    with pytest.raises(StaleIdError):
        await world.reads.fill(old.id, 5 * MIB, 6 * MIB, FOREGROUND)
    new = await world.entry("f")
    assert new.id != old.id
    await world.reads.load(new)
    assert world.content(new.id) == BODY[::-1]


async def test_a_small_file_that_changed_at_its_open(world: ReadPathFixture) -> None:
    world.origin.hold("s", b"old")
    old = await world.entry("s")
    world.origin.hold("s", b"new!")
    with pytest.raises(VersionChangedError):
        await world.reads.open(old.id)
    new = world.store.index.lookup(ROOT_ID, b"s")
    assert new is not None
    assert await world.reads.open(new.id)
    assert world.content(new.id) == b"new!"


async def test_a_cancelled_caller_leaves_the_others_their_read(world: ReadPathFixture) -> None:
    world.origin.hold("f", BODY)
    world.origin.hold("s", b"small")
    large, small = (await world.entry("f")).id, (await world.entry("s")).id
    first = [
        asyncio.ensure_future(world.reads.open(small)),
        asyncio.ensure_future(world.reads.fill(large, 0, MIB)),
    ]
    second = [
        asyncio.ensure_future(world.reads.open(small)),
        asyncio.ensure_future(world.reads.fill(large, 0, MIB)),
    ]
    await asyncio.sleep(0)
    for task in first:
        task.cancel()
    assert await second[0]
    await second[1]
    writer = world.store.writer(large)
    if writer is None:  # the rest was fetched meanwhile
        cached = world.store.index.cached(large)
        assert cached is not None and cached.complete and world.content(large) == BODY
    else:
        assert writer.present(0, MIB)


class HeldOrigin(MemoryOrigin):
    """Range reads wait until they are let go."""

    def __init__(self) -> None:
        super().__init__("held")
        self.asked = 0
        self.let_go = asyncio.Event()

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        self.asked += 1
        await self.let_go.wait()
        return await super().read_range(key, start, end, version=version, deadline=deadline)


@pytest.mark.parametrize("others", ["nobody", "a load", "a reader"])
async def test_a_cancelled_load_ends_unless_others_want_the_file(world: ReadPathFixture, others: str) -> None:
    body = os.urandom(60 * MIB)
    ranges = len(body) // (2 * MIB)
    origin = HeldOrigin()
    world.namespace.mount_points.attach(Mount("/held", "memory://", origin, 3600.0))
    origin.hold("f", body)
    entry = await world.entry("held/f")
    load = asyncio.ensure_future(world.reads.load(entry))
    await until(lambda: origin.asked)
    other = asyncio.ensure_future(world.reads.load(entry)) if others == "a load" else None
    fill = world.reads._fills.get(entry.id)
    assert fill is not None
    if others == "a reader":
        fill.start_whole(0)
    await asyncio.sleep(0)
    load.cancel()
    await asyncio.gather(load, return_exceptions=True)
    assert load.cancelled()
    origin.let_go.set()
    await until(lambda: fill.is_idle)
    if others == "nobody":
        assert origin.asked < ranges / 2
        assert not fill.is_committed
        other = asyncio.ensure_future(world.reads.load(entry))  # and it can begin anew
    if other is not None:
        assert await other == len(body)
    assert origin.asked == ranges
    assert world.content(entry.id) == body


async def test_a_cancelled_load_leaves_readers_the_ranges_in_flight(world: ReadPathFixture) -> None:
    """All ranges of the file are in flight: so the file is committed, too."""
    body = os.urandom(5 * MIB)
    origin = HeldOrigin()
    world.namespace.mount_points.attach(Mount("/held", "memory://", origin, 3600.0))
    origin.hold("f", body)
    entry = await world.entry("held/f")
    load = asyncio.ensure_future(world.reads.load(entry))
    await until(lambda: origin.asked == 3)
    read = asyncio.ensure_future(world.reads.fill(entry.id, 0, MIB))
    await asyncio.sleep(0)
    load.cancel()
    await asyncio.gather(load, return_exceptions=True)
    origin.let_go.set()
    await read
    await until(lambda: world.reads._fills.get(entry.id) is None)
    cached = world.store.index.cached(entry.id)
    assert cached is not None and cached.complete and world.content(entry.id) == body
    assert origin.asked == 3


async def test_a_load_waits_for_blocks_that_are_being_written(
    world: ReadPathFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are in the cache file; the file is not committed before the threads have ended."""
    written = threading.Event()
    write = CacheWriter.write

    def slow(writer: CacheWriter, *arguments: Any) -> None:
        write(writer, *arguments)
        written.wait(30)

    monkeypatch.setattr(CacheWriter, "write", slow)
    body = BODY[: 2 * MIB]  # of one range
    world.origin.hold("f", body)
    entry = await world.entry("f")
    read = asyncio.ensure_future(world.reads.serve(entry.id, 0, len(body), FOR_PEER))
    await until(lambda: (fill := world.reads._fills.get(entry.id)) is not None and fill.writer.complete)
    load = asyncio.ensure_future(world.reads.load(entry))
    try:
        assert not (await asyncio.wait([load], timeout=0.5))[0]
    finally:
        written.set()
    await asyncio.gather(read, load)
    cached = world.store.index.cached(entry.id)
    assert cached is not None and cached.complete and world.content(entry.id) == body


def _has_begun(world: ReadPathFixture, id: FileId, blocks: int) -> bool:
    """Return whether reads of so many blocks of a file are in flight, or wait at the gate."""
    fill = world.reads._fills.get(id)
    return fill is not None and len(fill._in_flight) == blocks


class CountedOrigin(MemoryOrigin):
    """Range reads are noted, and wait until each is let go."""

    def __init__(self) -> None:
        super().__init__("counted")
        self.asked: list[tuple[str, int]] = []
        self.turns = asyncio.Semaphore(0)

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        self.asked.append((key, start // MIB))
        await self.turns.acquire()
        return await super().read_range(key, start, end, version=version, deadline=deadline)


async def test_a_reader_does_not_wait_for_loads_before_the_one_it_joins(world: ReadPathFixture) -> None:
    """It waits for a range of a load, which waits behind other loads: then that range is the next one."""
    origin = CountedOrigin()
    world.namespace.mount_points.attach(Mount("/counted", "memory://", origin, 3600.0))
    world.gate.window.maximum, world.gate.window.limit = 1, 1.0
    bodies = {name: os.urandom(6 * MIB) for name in ("a", "b", "c")}
    loads = []
    for name, body in bodies.items():
        origin.hold(name, body)
    for name in bodies:
        entry = await world.entry(f"counted/{name}")
        loads.append(asyncio.ensure_future(world.reads.load(entry)))
        await until(partial(_has_begun, world, entry.id, 6))
    reader = asyncio.ensure_future(world.reads.fill(entry.id, 4 * MIB, 4 * MIB + 10, FOREGROUND))
    await asyncio.sleep(0)
    assert origin.asked == [("a", 0)]
    origin.turns.release()
    await until(lambda: len(origin.asked) == 2)
    assert origin.asked[1] == ("c", 4)
    for _ in range(8):
        origin.turns.release()
    await reader
    await asyncio.gather(*loads)
    assert sorted(origin.asked) == [(name, start) for name in bodies for start in (0, 2, 4)], "none twice"
    for name, body in bodies.items():
        assert world.content((await world.entry(f"counted/{name}")).id) == body


@pytest.mark.parametrize("many", [False, True])
async def test_a_reader_of_a_small_file_does_not_wait_for_loads_before_the_one_it_joins(
    world: ReadPathFixture, many: bool
) -> None:
    origin = CountedOrigin()
    world.namespace.mount_points.attach(Mount("/counted", "memory://", origin, 3600.0))
    world.gate.window.maximum, world.gate.window.limit = 1, 1.0
    bodies = {f"s{number}": os.urandom(1000 + number) for number in range(10)}
    for name, body in bodies.items():
        origin.hold(name, body)
    entries = [await world.entry(f"counted/{name}") for name in bodies]
    async with world.gate.enter(1, background=False):
        loads = [asyncio.ensure_future(world.reads.load(entry)) for entry in entries]
        await until(lambda: sum(queue._count for queue in world.gate._background.values()) == len(loads))

        async def read() -> None:
            if many:
                assert [ids async for ids in world.reads.open_many([entries[-1].id])] == [[entries[-1].id]]
            else:
                assert await world.reads.open(entries[-1].id)

        reader = asyncio.ensure_future(read())
        await asyncio.sleep(0)
    for _ in bodies:
        origin.turns.release()
    await reader
    await asyncio.gather(*loads)
    assert origin.asked[0] == ("s9", 0)
    assert sorted(origin.asked) == [(name, 0) for name in bodies], "none twice"
    for name, entry in zip(bodies, entries, strict=True):
        assert world.content(entry.id) == bodies[name]


async def test_writers_nobody_uses_are_closed(world: ReadPathFixture) -> None:
    world.origin.hold("f", BODY)
    world.origin.hold("g", BODY)
    f, g = (await world.entry("f")).id, (await world.entry("g")).id
    for id in (f, g):
        await world.reads.fill(id, 0, MIB, FOREGROUND)
    world.reads.close_idle()
    await world.reads.fill(g, 2 * MIB, 3 * MIB, FOREGROUND)
    world.reads.close_idle()
    assert [id for id in (f, g) if world.reads._fills.get(id)] == [g]
    await world.reads.fill(f, 0, 2 * MIB, FOREGROUND)


async def test_many_small_files_at_once(world: ReadPathFixture) -> None:
    bodies = {f"s{number}": os.urandom(1000 + number) for number in range(50)}
    for name, body in bodies.items():
        world.origin.hold(name, body)
    world.origin.hold("large", BODY)
    entries = {name: await world.entry(name) for name in [*bodies, "large"]}
    assert await world.reads.open(entries["s7"].id)  # that one is there
    world.origin.delete("s9")
    ids = [entry.id for entry in entries.values()]
    whole: list[FileId] = []
    async for some in world.reads.open_many([*ids, *ids[:5]]):
        assert some
        whole += some
    named = {name for name, entry in entries.items() if entry.id in whole}
    assert named == {*bodies} - {"s9"}  # neither what is gone nor what is large
    assert len(whole) == len(named)
    for name in named:
        assert world.content(entries[name].id) == bodies[name]


async def test_who_leaves_in_the_midst_of_many_ends_nothing(world: ReadPathFixture) -> None:
    for number in range(40):
        world.origin.hold(f"s{number}", b"x" * (10 + number))
    ids = [(await world.entry(f"s{number}")).id for number in range(40)]
    some = world.reads.open_many(ids)
    await anext(some)
    await some.aclose()  # type: ignore[attr-defined]
    for id in ids:
        assert await world.reads.open(id)
