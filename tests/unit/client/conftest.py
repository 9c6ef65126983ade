"""A node in this process, which answers over a real socket as a test says, and an index that a client may read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.base.boot_clock import now_ns
from headrace.base.model import BLOCK_SIZE_BYTES, ROOT_ID, FileId, Version
from headrace.store.store import Store
from headrace.store.volume import Volume
from headrace.wire.messages import Welcome
from tests.unit.client.scripted_node import ScriptedNode

HOUR_NS = 3600 * 10**9


class Cached:
    """A cache folder as a node left it: `files` has the bytes of complete files by path, `ids` the ids of all."""

    def __init__(self, folder: Path) -> None:
        self.volume = str(folder / "volume")
        self.files = {
            b"/whole": os.urandom(5000),
            b"/dir/inner": b"inner bytes",
            b"/empty": b"",
            b"/large": os.urandom(2 * BLOCK_SIZE_BYTES + 3),
        }
        self.ids: dict[bytes, FileId] = {}
        self._store = Store.open(f"{self.volume}/index", [Volume(0, self.volume, 64 << 20)])
        names = self._store.index.names
        self.directories = {b"": ROOT_ID, b"/dir": names.ensure_directory(ROOT_ID, b"dir")}
        for path, data in self.files.items():
            self._put(path, data, filled=len(data))
            self._store.complete(self._writers.pop())
        self._put(b"/partial", bytes(2 * BLOCK_SIZE_BYTES), filled=BLOCK_SIZE_BYTES)
        self.ids[b"/uncached"], _ = names.put_file(ROOT_ID, b"uncached", Version(10, 7, '"t"'))
        for id in self.directories.values():
            names.set_fresh_until(id, now_ns() + HOUR_NS)
        self._store.index.mounts.put("/", {"url": "file:///origin"})
        self._store.close()

    def _put(self, path: bytes, data: bytes, *, filled: int) -> None:
        directory, _, name = path.rpartition(b"/")
        id, _ = self._store.index.names.put_file(
            self.directories[directory], name, Version(len(data), 7, '"t"')
        )
        entry = self._store.index.entry(id)
        assert entry is not None
        writer = self._store.create(entry)
        for start, end in writer.missing(0, filled):
            writer.write(start, data[start:end])
        self.ids[path] = id
        self._writers = [writer]

    def welcome(self, *, generation: int = 1, upper: str = "", write: str = "") -> Welcome:
        return Welcome(2, f"{self.volume}/index", [self.volume], generation, upper, write)


@pytest.fixture(scope="package")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Cached:
    """One that all tests read: to make one takes a second."""
    return Cached(tmp_path_factory.mktemp("cached"))


@pytest.fixture
def own_cached(tmp_path: Path) -> Cached:
    """One that its test may change."""
    return Cached(tmp_path)


StartNode = Callable[..., ScriptedNode]


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    """Call with the welcome of the node; without one it describes nothing that exists."""
    nodes: list[ScriptedNode] = []

    def start(welcome: Welcome | None = None) -> ScriptedNode:
        nodes.append(ScriptedNode(str(tmp_path / "node.sock"), welcome or Welcome(2, "/none", [], 1)))
        nodes[-1].start()
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture
def node(start_node: StartNode) -> ScriptedNode:
    return start_node()
