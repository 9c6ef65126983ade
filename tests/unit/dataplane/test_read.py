"""The read path where threads, evictions and a failing disk meet: what each waiter hears."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import NoSpaceError, StaleIdError, StoreError, VersionChangedError
from headrace.base.model import BLOCK_SIZE_BYTES, ROOT_ID, Arrived, Entry, FileId, Version
from headrace.dataplane.concurrency import Gate, Window
from headrace.dataplane.intent import FOREGROUND
from headrace.dataplane.read import ReadPath
from headrace.dataplane.settings import ReadSettings
from headrace.dataplane.source import SourceFactory
from headrace.namespace.mounts import Mount, MountTable
from headrace.namespace.tree import Namespace
from headrace.origin.memory import MemoryOrigin
from headrace.store.store import Store
from headrace.store.volume import Volume

MIB = BLOCK_SIZE_BYTES
BODY = os.urandom(6 * MIB + 5)


class ReadPathFixture:
    def __init__(
        self,
        folder: Path,
        *,
        capacity_bytes: int = 64 * MIB,
        boot_id: str = "1",
        origin: MemoryOrigin | None = None,
        verify_origin: bool = True,
    ) -> None:
        self.origin = origin or MemoryOrigin("reads")
        self.store = Store.open(
            str(folder / "v/index"), [Volume(0, str(folder / "v"), capacity_bytes)], boot_id=boot_id
        )
        mounts = MountTable()
        self.namespace = Namespace(self.store.index, mounts, timeout_s=5, on_changed=lambda _: None)
        self.namespace.attach(Mount("/", "memory://", self.origin, 3600.0))
        self.disk = ThreadPoolExecutor(2)
        self.whole: list[int] = []
        self.damaged: list[int] = []
        settings = ReadSettings(
            range_bytes=2 * MIB,
            small_file_bytes_max=MIB,
            readahead_bytes=MIB,
            whole_file_after_bytes=64 * MIB,
            verify_origin=verify_origin,
        )
        self.reads = ReadPath(
            self.namespace,
            self.store,
            SourceFactory(Gate(Window(maximum=8), bytes_max=64 * MIB), timeout_s=5),
            self.disk,
            settings,
            on_complete=self.whole.extend,
            on_damaged=self._damaged,
        )
        self.store.space.evicted.add(self.reads.forget)
        self.heard: list[object] = []

    async def _damaged(self, ids: list[FileId]) -> None:
        self.damaged += ids

    async def entry(self, name: str) -> Entry:
        return await self.namespace.resolve(b"/" + name.encode())

    def content(self, id: FileId) -> bytes:
        return Path(self.store.volumes[0].data_path(id)).read_bytes()

    async def run(self, test: Callable[[ReadPathFixture], Awaitable[None]]) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.heard.append(context))
        try:
            await asyncio.wait_for(test(self), 60)
        finally:
            await self.reads.close()
            self.disk.shutdown()
            self.store.close()
        assert not self.heard


@pytest.fixture
def world(tmp_path: Path) -> ReadPathFixture:
    return ReadPathFixture(tmp_path)


def test_a_commit_that_fails_is_heard_and_tried_again(
    world: ReadPathFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(w: ReadPathFixture) -> None:
        w.origin.hold("f", BODY)
        id = (await w.entry("f")).id
        real = os.rename
        with monkeypatch.context() as broken:

            def rename(source: str, target: str) -> None:
                if source.endswith(".part"):
                    raise OSError(5, "Input/output error")
                real(source, target)

            broken.setattr(os, "rename", rename)
            with pytest.raises(StoreError, match="Input/output"):
                await w.reads.fill(id, 0, len(BODY))
        assert w.whole == []
        assert await w.reads.open(id)
        assert w.whole == [id]
        assert w.content(id) == BODY

    asyncio.run(world.run(test))


def test_a_file_that_was_whole_before_a_kill_is_committed_at_its_open(tmp_path: Path) -> None:
    async def begin(w: ReadPathFixture) -> None:
        w.origin.hold("f", BODY)
        entry = await w.entry("f")
        writer = w.store.create(entry)
        writer.write(0, BODY)
        writer.close()
        assert await w.reads.open(entry.id)
        assert w.whole == [entry.id]

    asyncio.run(ReadPathFixture(tmp_path).run(begin))


def test_one_small_file_too_many_is_not_the_others_trouble(tmp_path: Path) -> None:
    async def test(w: ReadPathFixture) -> None:
        for name, size in (("a", 10), ("b", MIB), ("c", 20)):
            w.origin.hold(name, os.urandom(size))
        entries = [await w.entry(name) for name in "abc"]
        w.store.volumes[0].capacity_bytes = MIB // 2
        found = await asyncio.gather(*(w.reads.open(entry.id) for entry in entries), return_exceptions=True)
        assert found[0] is True
        assert isinstance(found[1], NoSpaceError)
        assert found[2] is True

    asyncio.run(ReadPathFixture(tmp_path).run(test))


def test_a_cache_file_that_somebody_deleted_is_fetched_again(world: ReadPathFixture) -> None:
    async def test(w: ReadPathFixture) -> None:
        w.origin.hold("f", BODY)
        w.origin.hold("s", b"small")
        for name in "fs":
            entry = await w.entry(name)
            await w.reads.load(entry)
            os.unlink(w.store.volumes[0].data_path(entry.id))
            await w.reads.fill(entry.id, 0, 5)
            await w.reads.load(entry)
            assert len(w.content(entry.id)) == entry.version.size_bytes

    asyncio.run(world.run(test))


def test_eviction_under_a_reader_is_not_its_trouble(world: ReadPathFixture) -> None:
    async def test(w: ReadPathFixture) -> None:
        w.origin.hold("f", BODY)
        id = (await w.entry("f")).id

        async def evict() -> None:
            for _ in range(5):
                await asyncio.sleep(0.001)
                w.reads.forget([id])
                w.store.free(id)

        evicting = asyncio.ensure_future(evict())
        await asyncio.gather(*(w.reads.fill(id, n * MIB, (n + 1) * MIB) for n in range(6)))
        await evicting
        await w.reads.fill(id, 0, len(BODY))
        assert w.content(id) == BODY

    asyncio.run(world.run(test))


def test_after_a_change_the_next_open_sees_the_new_version(world: ReadPathFixture) -> None:
    async def test(w: ReadPathFixture) -> None:
        w.origin.hold("f", BODY)
        old = await w.entry("f")
        await w.reads.fill(old.id, 0, MIB, FOREGROUND)
        w.origin.hold("f", BODY[::-1])
        with pytest.raises(VersionChangedError):
            await w.reads.fill(old.id, 4 * MIB, 5 * MIB, FOREGROUND)
        with pytest.raises(StaleIdError):
            await w.reads.fill(old.id, 5 * MIB, 6 * MIB, FOREGROUND)
        new = await w.entry("f")
        assert new.id != old.id
        await w.reads.load(new)
        assert w.content(new.id) == BODY[::-1]

    asyncio.run(world.run(test))


def test_a_small_file_that_changed_at_its_open(world: ReadPathFixture) -> None:
    async def test(w: ReadPathFixture) -> None:
        w.origin.hold("s", b"old")
        old = await w.entry("s")
        w.origin.hold("s", b"new!")
        with pytest.raises(VersionChangedError):
            await w.reads.open(old.id)
        new = w.store.index.lookup(ROOT_ID, b"s")
        assert new is not None
        assert await w.reads.open(new.id)
        assert w.content(new.id) == b"new!"

    asyncio.run(world.run(test))


def test_a_cancelled_caller_leaves_the_others_their_read(world: ReadPathFixture) -> None:
    async def test(w: ReadPathFixture) -> None:
        w.origin.hold("f", BODY)
        w.origin.hold("s", b"small")
        large, small = (await w.entry("f")).id, (await w.entry("s")).id
        first = [
            asyncio.ensure_future(w.reads.open(small)),
            asyncio.ensure_future(w.reads.fill(large, 0, MIB)),
        ]
        second = [
            asyncio.ensure_future(w.reads.open(small)),
            asyncio.ensure_future(w.reads.fill(large, 0, MIB)),
        ]
        await asyncio.sleep(0)
        for task in first:
            task.cancel()
        assert await second[0]
        await second[1]
        writer = w.store.writer(large)
        assert writer is not None
        assert writer.present(0, MIB)

    asyncio.run(world.run(test))


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
def test_a_cancelled_load_ends_unless_others_want_the_file(world: ReadPathFixture, others: str) -> None:
    body = os.urandom(60 * MIB)
    ranges = len(body) // (2 * MIB)

    async def test(w: ReadPathFixture) -> None:
        origin = HeldOrigin()
        w.namespace.attach(Mount("/held", "memory://", origin, 3600.0))
        origin.hold("f", body)
        entry = await w.entry("held/f")
        load = asyncio.ensure_future(w.reads.load(entry))
        while not origin.asked:  # noqa: ASYNC110
            await asyncio.sleep(0)
        other = asyncio.ensure_future(w.reads.load(entry)) if others == "a load" else None
        fill = w.reads._fills.get(entry.id)
        assert fill is not None
        if others == "a reader":
            fill.start_whole(0)
        await asyncio.sleep(0)
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        assert load.cancelled()
        origin.let_go.set()
        while not fill.is_idle:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        if others == "nobody":
            assert origin.asked < ranges / 2
            assert not fill.is_committed
            other = asyncio.ensure_future(w.reads.load(entry))  # and it can begin anew
        if other is not None:
            assert await other == len(body)
        assert origin.asked == ranges
        assert w.content(entry.id) == body

    asyncio.run(world.run(test))


def test_writers_nobody_uses_are_closed(world: ReadPathFixture) -> None:
    async def test(w: ReadPathFixture) -> None:
        w.origin.hold("f", BODY)
        w.origin.hold("g", BODY)
        f, g = (await w.entry("f")).id, (await w.entry("g")).id
        for id in (f, g):
            await w.reads.fill(id, 0, MIB, FOREGROUND)
        w.reads.close_idle()
        await w.reads.fill(g, 2 * MIB, 3 * MIB, FOREGROUND)
        w.reads.close_idle()
        assert [id for id in (f, g) if w.reads._fills.get(id)] == [g]
        await w.reads.fill(f, 0, 2 * MIB, FOREGROUND)

    asyncio.run(world.run(test))


def test_many_small_files_at_once(world: ReadPathFixture) -> None:
    async def test(w: ReadPathFixture) -> None:
        bodies = {f"s{number}": os.urandom(1000 + number) for number in range(50)}
        for name, body in bodies.items():
            w.origin.hold(name, body)
        w.origin.hold("large", BODY)
        entries = {name: await w.entry(name) for name in [*bodies, "large"]}
        assert await w.reads.open(entries["s7"].id)  # that one is there
        w.origin.delete("s9")
        ids = [one.id for one in entries.values()]
        whole: list[FileId] = []
        async for some in w.reads.open_many([*ids, *ids[:5]]):
            assert some
            whole += some
        named = {name for name, one in entries.items() if one.id in whole}
        assert named == {*bodies} - {"s9"}  # neither what is gone nor what is large
        assert len(whole) == len(named)
        for name in named:
            assert w.content(entries[name].id) == bodies[name]

    asyncio.run(world.run(test))


def test_who_leaves_in_the_midst_of_many_ends_nothing(world: ReadPathFixture) -> None:
    async def test(w: ReadPathFixture) -> None:
        for number in range(40):
            w.origin.hold(f"s{number}", b"x" * (10 + number))
        ids = [(await w.entry(f"s{number}")).id for number in range(40)]
        some = w.reads.open_many(ids)
        await anext(some)
        await some.aclose()  # type: ignore[attr-defined]
        for id in ids:
            assert await w.reads.open(id)

    asyncio.run(world.run(test))
