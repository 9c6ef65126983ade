"""An open file whose cache file is evicted and made again under it: never a hole, whatever the threads do."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.cancel import Cancel
from headrace.base.errors import EvictedError, PathNotFoundError
from headrace.base.model import BLOCK_SIZE_BYTES, ROOT_ID, Entry, Version
from headrace.client.file import READERS_MIN, OpenFile
from headrace.store.reader import CacheReader
from headrace.store.store import Store
from headrace.store.volume import Volume
from headrace.store.writer import CacheWriter
from headrace.wire.message import Message
from headrace.wire.messages import Answer, Filled, FillRange

MIB = BLOCK_SIZE_BYTES
BODY = os.urandom(4 * MIB)


class OneFile:
    """A node in this process: fills what is asked for."""

    def __init__(self, folder: Path) -> None:
        self.store = Store.open(str(folder / "v/index"), [Volume(0, str(folder / "v"), 64 * MIB)])
        id, _ = self.store.index.names.put_file(ROOT_ID, b"f", Version(len(BODY), 1, "t"))
        entry = self.store.index.entry(id)
        assert entry is not None
        self.entry: Entry = entry
        self.writer: CacheWriter = self.store.create(entry)
        self.asked = 0

    def evict(self) -> None:
        self.store.free(self.entry.id)
        self.writer = self.store.create(self.entry)

    def fill(self, start: int, end: int) -> None:
        for low, high in self.writer.missing(start, end):
            self.writer.write(low, BODY[low:high])

    def ask(self, request: Message, _: Cancel | None) -> Answer:
        assert isinstance(request, FillRange)
        self.asked += 1
        self.fill(request.start, request.end)
        return Filled(complete=False)

    def reopen(self, _: object) -> CacheReader | None:
        cached = self.store.index.cached(self.entry.id)
        if cached is None:
            return None
        try:
            return CacheReader.open(self.store.volumes[0].folder, cached)
        except PathNotFoundError:
            return None

    def open(self) -> OpenFile:
        reader = self.reopen(None)
        assert reader is not None
        return OpenFile(self.entry.id, reader, self.ask, self.reopen)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[OneFile]:
    node = OneFile(tmp_path)
    yield node
    node.store.close()


def test_what_one_thread_waited_for_stays_readable_when_another_follows_a_replacement(node: OneFile) -> None:
    file = node.open()
    file.wait(0, MIB)
    node.evict()
    file.wait(2 * MIB, 3 * MIB)  # another thread: the file is now the new one, where block 0 is a hole
    assert file.pread(MIB, 0) == BODY[:MIB]
    assert file.pread(10, 2 * MIB) == BODY[2 * MIB : 2 * MIB + 10]
    assert file.pread(MIB, 3 * MIB + 5) == BODY[3 * MIB + 5 :]
    assert file.pread(10, 4 * MIB) == b""
    file.close()


def test_readers_and_evictions_at_once(node: OneFile) -> None:
    file = node.open()
    stop = threading.Event()
    lock = threading.Lock()
    wrong: list[str] = []
    ask = file._ask

    def locked(request: Message, cancel: Cancel | None) -> Answer:
        with lock:
            return ask(request, cancel)

    file._ask = locked

    def read(block: int) -> None:
        for _ in range(60):
            if file.pread(1000, block * MIB) != BODY[block * MIB : block * MIB + 1000]:
                wrong.append(f"block {block}")

    def evict() -> None:
        while not stop.wait(0.002):
            with lock:
                node.evict()

    threads = [threading.Thread(target=read, args=(block,)) for block in range(4)]
    evicting = threading.Thread(target=evict)
    evicting.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    evicting.join()
    file.close()
    assert not wrong


def test_a_file_that_never_stays_is_an_error_and_not_a_loop(
    node: OneFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.client.file.PAUSE_S_MAX", 0.0)
    file = node.open()
    file._reopen = lambda _: None
    node.evict()
    with pytest.raises(EvictedError):
        file.wait(0, MIB)
    assert node.asked == 100
    file.close()


def test_versions_that_nobody_reads_from_are_let_go(tmp_path: Path) -> None:
    """A file that is larger than the cache has many versions in turn. What a thread was given stays."""
    node = OneFile(tmp_path)
    reader = node.reopen(None)
    assert reader is not None
    file = OpenFile(node.entry.id, reader, node.ask, node.reopen)
    held = file.wait(0, MIB)
    before = len(os.listdir("/proc/self/fd"))
    done: list[bytes] = []

    def others() -> None:
        for turn in range(30):
            node.evict()
            start = (1 + turn % 3) * MIB
            if not file.present(start, start + MIB) or turn % 3 == 0:
                done.append(os.pread(file.wait(start, start + MIB), MIB, start))
                assert done[-1] == BODY[start : start + MIB]

    thread = threading.Thread(target=others)
    thread.start()
    thread.join()
    assert done
    assert len(file._readers) <= READERS_MIN + 1
    assert len(os.listdir("/proc/self/fd")) <= before + 2 * READERS_MIN
    assert os.pread(held, MIB, 0) == BODY[:MIB]
    file.close()
    node.store.close()
