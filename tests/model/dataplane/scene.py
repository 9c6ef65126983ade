"""A node over a folder, whose origin does as it is told: for tests that play by hand what may happen by chance."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from headrace.base.deadline import Deadline
from headrace.base.errors import OriginUnavailableError
from headrace.origin.origin import ListPage
from tests.model.dataplane.writer_lives import tree_of
from tests.model.dataplane.writer_node import NEVER_S, FlakyLocalOrigin, NodeFixture, Session


class HeldCalls:
    """An origin that holds, or loses the answer of, calls of one kind."""

    def __init__(self, origin: FlakyLocalOrigin) -> None:
        self._origin = origin
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    def lose(self, name: str) -> None:
        """Lose the answer of the next call of that name."""
        real = getattr(self._origin, name)

        async def call(*args: Any, **more: Any) -> Any:
            setattr(self._origin, name, real)
            await real(*args, **more)
            raise OriginUnavailableError(name, why="its answer was lost")

        setattr(self._origin, name, call)

    def hold(self, name: str) -> None:
        """The next call of that name waits for `go_on`, which `begun` says."""
        real = getattr(self._origin, name)

        async def call(*args: Any, **more: Any) -> Any:
            setattr(self._origin, name, real)
            self.begun.set()
            await self.go_on.wait()
            return await real(*args, **more)

        setattr(self._origin, name, call)

    def hold_listing(self) -> None:
        """The next one has read all, and waits with that for `go_on`."""
        real = self._origin.list_directory

        async def listing(key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
            setattr(self._origin, "list_directory", real)  # noqa: B010 - as above
            pages = [page async for page in real(key, deadline=deadline)]
            self.begun.set()
            await self.go_on.wait()
            for page in pages:
                yield page

        setattr(self._origin, "list_directory", listing)  # noqa: B010


class WriterFixture:
    """A node over a directory. `do` runs the calls of a program."""

    def __init__(self, base: Path, modes: str) -> None:
        self.truth = base / "truth"
        self.truth.mkdir(exist_ok=True)
        (base / "cache").mkdir(exist_ok=True)
        self.here = NodeFixture(str(base / "cache"), str(self.truth), Steady(), modes=modes)
        self.held = HeldCalls(self.here.origin)
        self.session = Session(self.here)

    async def do(self, *calls: Callable[[], object]) -> None:
        for call in calls:
            await asyncio.to_thread(call)

    async def write(self, path: bytes, data: bytes) -> None:
        await self.do(lambda: self.session.put_bytes(path, data, os.O_TRUNC))

    async def origin_goes_away(self) -> None:
        """Let the origin go away when all folders have been listed."""
        await asyncio.to_thread(self.session.tree)
        self.here.origin.failing = 1.0

    async def only_when_asked(self) -> None:
        """From now on nothing is persisted by itself. All folders have been listed."""
        await asyncio.to_thread(self.session.tree)
        self.here.write._changes.delay_s = NEVER_S

    async def persisted(self) -> None:
        await self.here.settle()

    async def check(self, wanted: dict[str, str]) -> None:
        """The mount and the origin show this, and nobody speaks of a conflict."""
        await self.persisted()
        assert self.here.write.layer.journal.conflicts() == []
        assert tree_of(self.truth, links=False) == wanted
        assert await asyncio.to_thread(self.session.tree) == wanted


class Steady(random.Random):
    """Chooses always the first of what can be had."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


@contextlib.asynccontextmanager
async def playing(
    base: Path, *, modes: str = "back", before: Callable[[WriterFixture], None] = lambda scene: None
) -> AsyncIterator[WriterFixture]:
    """Once more for the same folder: another life of the node. before: it starts."""
    scene = WriterFixture(base, modes)
    before(scene)
    await scene.here.write.start()
    try:
        yield scene
    finally:
        await scene.here.stop()
