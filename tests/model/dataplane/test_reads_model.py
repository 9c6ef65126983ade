"""Readers against a tiny cache, with an origin that changes and fails: every byte is that of one version.

What may happen to a read is known: it succeeds, or it says that the origin failed (only when the test made it
fail), or that the file is another by now (only when it is). Anything else is a bug: another error, an exception in
a callback of the loop, a read that does not end, a byte of another version, a hole.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, OriginUnavailableError, PathNotFoundError, VersionChangedError
from headrace.base.model import BLOCK_SIZE_BYTES, Arrived, FileId, ObjectInfo, Version
from headrace.dataplane.concurrency import Gate, Window
from headrace.dataplane.intent import ReadIntent
from headrace.dataplane.read import ReadPath
from headrace.dataplane.settings import ReadSettings
from headrace.dataplane.source import SourceFactory
from headrace.namespace.mounts import Mount, MountTable
from headrace.namespace.namespace import Namespace
from headrace.origin.memory import MemoryOrigin
from headrace.origin.origin import ListPage
from headrace.store.reader import CacheReader
from headrace.store.store import Store
from headrace.store.volume import Volume
from tests.random_bytes import random_bytes

MIB = BLOCK_SIZE_BYTES
CAPACITY = 21 * MIB
"""The index may take half of it, the more of it the more often a slow machine lists the directory. The largest file
fits the other half, with a range that two fills of it write."""
NAMES = [f"f{n}" for n in range(14)]
SIZES = [0, 1, 5000, MIB - 1, MIB, MIB + 1, 3 * MIB, 5 * MIB + 17, 7 * MIB, 8 * MIB + 1]


class FlakyOrigin(MemoryOrigin):
    """An origin in memory whose calls are delayed, and fail at random."""

    def __init__(self, chance: random.Random, failing: float) -> None:
        super().__init__("model")
        self._chance = chance
        self.failing = failing

    async def _delay_or_fail(self, key: str) -> None:
        for _ in range(self._chance.randrange(4)):
            await asyncio.sleep(self._chance.choice([0, 0, 0.001]))
        if self._chance.random() < self.failing:
            raise OriginUnavailableError(key, why="the test says so")

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        await self._delay_or_fail(key)
        return await super().head(key, deadline=deadline)

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        await self._delay_or_fail(key)
        return await super().read_range(key, start, end, version=version, deadline=deadline)

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        await self._delay_or_fail(key)
        async for page in super().list_directory(key, deadline=deadline):
            yield page


class ReadsModel:
    def __init__(self, folder: Path, seed: int, *, failing: float, small_bytes_max: int = MIB) -> None:
        self.chance = random.Random(seed)
        self.origin = FlakyOrigin(self.chance, failing)
        self.bodies: dict[str, bytes] = {}  # by token: what each version ever was
        self.now: dict[str, Version] = {}
        self.volume = Volume(0, str(folder / "volume"), CAPACITY)
        self.store = Store.open(str(folder / "volume/index"), [self.volume])
        mounts = MountTable()
        self.namespace = Namespace.build(self.store.index, mounts, timeout_s=20, on_changed=lambda _: None)
        self.namespace.mount_points.attach(Mount("/", "memory://model", self.origin, 0.02))
        self.disk = ThreadPoolExecutor(4)
        self.reads = ReadPath(
            self.namespace,
            self.store,
            SourceFactory(Gate(Window(maximum=16), bytes_max=64 << 20), timeout_s=20),
            self.disk,
            ReadSettings(
                range_bytes=2 * MIB,
                small_file_bytes_max=small_bytes_max,
                readahead_bytes=4 * MIB,
                whole_file_after_bytes=4 * MIB,
            ),
            on_complete=lambda _: None,
            on_damaged=lambda _: asyncio.sleep(0),
        )
        self.store.space.evicted.add(self.reads.forget)
        self.complaints: list[str] = []
        self.compared_bytes = 0
        for name in NAMES:
            self.put(name)

    def put(self, name: str) -> None:
        body = random_bytes(self.chance.getrandbits(64), self.chance.choice(SIZES))
        self.now[name] = self.origin.hold(name, body)
        self.bodies[self.now[name].token] = body

    def grow_index(self) -> None:
        """Let the index take as much of the cache as it may: its file does not shrink."""
        self.store.index.state.put(b"filler", bytes(CAPACITY // 2))
        self.store.index.state.put(b"filler", b"")
        assert self.store.index.size_bytes >= CAPACITY // 2
        self.store.space.evict_if_needed()

    def heard(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.complaints.append(f"{context['message']}: {context.get('exception')!r}")

    async def reader(self, steps: int) -> None:
        for _ in range(steps):
            name = self.chance.choice(NAMES)
            try:
                entry = await self.namespace.resolver.resolve(b"/" + name.encode())
            except PathNotFoundError:
                continue
            except OriginUnavailableError:
                assert self.origin.failing
                continue
            await self._read_some(name, entry.id, entry.version)

    async def _read_some(self, name: str, id: FileId, version: Version) -> None:
        body = self.bodies[version.token]
        whole = self.chance.random() < 0.4
        for _ in range(1 if whole else self.chance.randrange(1, 4)):
            start = 0 if whole else self.chance.randrange(len(body) + 1)
            end = len(body) if whole else min(len(body), start + self.chance.randrange(1, 3 * MIB))
            try:
                data = await asyncio.wait_for(self._read(id, start, end), 30)
            except OriginUnavailableError:
                assert self.origin.failing
                return
            except (VersionChangedError, PathNotFoundError):
                assert self.now.get(name) != version, "it is still that version"
                return
            assert data == body[start:end], f"wrong bytes of {name} {start}..{end}"
            self.compared_bytes += len(data)

    async def _read(self, id: FileId, start: int, end: int) -> bytes:
        """Read as a client does: the cache file when the bytes are there, else by a request."""
        while True:
            cached = self.store.index.cached(id)
            if cached is not None and not cached.unverified:
                try:
                    reader = CacheReader.open(self.volume.folder, cached)
                except PathNotFoundError:
                    reader = None
                if reader is not None:
                    try:
                        if reader.present(start, end):
                            return os.pread(reader.fd, end - start, start)
                    finally:
                        reader.close()
            await self.reads.fill(id, start, end, ReadIntent(is_sequential=self.chance.random() < 0.7))

    async def trouble(self, steps: int) -> None:
        """Do what the origin and the operator may do."""
        for _ in range(steps):
            await asyncio.sleep(0.004)
            name, draw = self.chance.choice(NAMES), self.chance.random()
            if draw < 0.3:
                self.put(name)
            elif draw < 0.4:
                self.origin.delete(name)
                self.now.pop(name, None)
            elif draw < 0.6:
                entry = self.store.index.lookup(FileId(1), name.encode())
                if entry is not None:
                    self.reads.forget([entry.id])
                    self.store.free(entry.id)
            elif draw < 0.7:
                entry = self.store.index.lookup(FileId(1), name.encode())
                if entry is not None:
                    try:
                        await self.reads.load(entry)
                    except HeadraceError:
                        pass
            else:
                self.store.space.evict_if_needed()

    async def run(self, readers: int, steps: int) -> None:
        asyncio.get_running_loop().set_exception_handler(self.heard)
        async with asyncio.TaskGroup() as group:
            for _ in range(readers):
                group.create_task(self.reader(steps))
            group.create_task(self.trouble(3 * steps))
        await self.reads.close()
        self.disk.shutdown()
        assert self.store.used_bytes <= CAPACITY
        self.store.close()
        assert not self.complaints, self.complaints


@pytest.mark.parametrize("small_bytes_max", [MIB, 0])
@pytest.mark.parametrize("failing", [0.0, 0.08])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.expected_warnings("old listings stay in use")
def test_every_byte_is_of_its_version(
    tmp_path: Path, seed: int, failing: float, small_bytes_max: int
) -> None:
    world = ReadsModel(tmp_path, seed, failing=failing, small_bytes_max=small_bytes_max)
    asyncio.run(world.run(readers=6, steps=25))
    assert world.compared_bytes > 10 * MIB
    world = ReadsModel(tmp_path, seed + 100, failing=failing)  # over what the first one left
    assert world.store.unverified_found == 0
    world.store.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_large_index_refuses_no_reader(tmp_path: Path, seed: int) -> None:
    world = ReadsModel(tmp_path, seed, failing=0.0, small_bytes_max=0)
    world.grow_index()
    asyncio.run(world.run(readers=6, steps=25))
    assert world.compared_bytes > 10 * MIB
    assert world.store.space.evicted_files > 0
