"""A file that was written here and persisted rots on the disk: the scrub finds it, and the origin's bytes are read."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from headrace.base.model import BLOCK_SIZE_BYTES, Entry, FileId
from headrace.dataplane.scrub import Scrub
from headrace.store.checksum import block_checksum
from headrace.store.disk_reader import DiskReader
from headrace.testing.waiting import until
from tests.model.dataplane.scene import WriterFixture
from tests.model.dataplane.writer_lives import tree_of
from tests.unit.store.conftest import OpenStore, open_store

__all__ = ["open_store"]

FAST = 1 << 34
FILES = {
    b"/small": b"some bytes",
    b"/empty": b"",
    b"/block": bytes(BLOCK_SIZE_BYTES),
    b"/large": os.urandom(3 * BLOCK_SIZE_BYTES + 77),
}


class BadDisk:
    """Gives other bytes than were written, of the files in `rotten`: as the disk does it, no time of a file changes."""

    def __init__(self, scene: WriterFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rotten: set[int] = set()
        self._scene = scene
        real = DiskReader.read

        def read(reader: DiskReader, start: int, length: int) -> memoryview:
            body = real(reader, start, length)
            if os.fstat(reader._fd).st_ino in self.rotten and start + length > 5:
                body[-1] ^= 4
            return body

        monkeypatch.setattr(DiskReader, "read", read)

    def rot(self, path: bytes) -> None:
        status = self._scene.here.upper.at(path).lstat()
        self.rotten.add(status.st_ino)


class Scrubbing:
    def __init__(self, scene: WriterFixture, open_store: OpenStore) -> None:
        self.loaded: list[int] = []
        self._scene = scene
        self._store = open_store()

    async def load(self, entry: Entry) -> None:
        self.loaded.append(entry.version.size_bytes)

    async def passes(self, count: int) -> dict[str, object]:
        """So many whole ones, from here on."""
        scrub = Scrub(
            *(self._store, FAST),
            load=self.load,
            on_damaged=_nobody,
            entry_of=self._scene.here.namespace.tree.entry_at,
            written=self._scene.here.write.for_scrub(),
            pass_s_min=0.0,
        )
        wanted = scrub._progress.passes + count
        scrub.start()
        await until(lambda: scrub._progress.passes >= wanted)
        await scrub.stop()
        return scrub.statistics()


async def _nobody(ids: list[FileId]) -> None:
    raise AssertionError("no cache file is damaged")


async def written(scene: WriterFixture) -> dict[str, str]:
    for path, data in FILES.items():
        await scene.write(path, data)
    await scene.persisted()
    return {os.fsdecode(path): data.hex() for path, data in FILES.items()}


@pytest.mark.expected_warnings("a written file was damaged")
async def test_what_rots_after_it_was_persisted_is_found_and_read_from_the_origin(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, scene: WriterFixture
) -> None:
    wanted = await written(scene)
    disk, scrubbing = BadDisk(scene, monkeypatch), Scrubbing(scene, open_store)
    assert (await scrubbing.passes(2))["files_damaged"] == 0
    disk.rot(b"/small")
    disk.rot(b"/large")
    scrub = await scrubbing.passes(1)
    assert (scrub["files_damaged"], scrub["files_repaired"]) == (2, 2)
    assert scrub["last_damaged"] == ["/large", "/small"]
    assert sorted(scrubbing.loaded) == sorted(len(FILES[path]) for path in (b"/small", b"/large"))
    assert sorted(scene.here.upper.names(b"/")) == [b"block", b"empty"]
    assert (await scrubbing.passes(1))["files_damaged"] == 2
    await scene.check(wanted)


def _open(scene: WriterFixture) -> Callable[[], None]:
    file = os.open(bytes(scene.here.upper.tree.path) + b"/large", os.O_RDWR)
    return lambda: os.close(file)


def _replaced(scene: WriterFixture) -> Callable[[], None]:
    (scene.truth / "large").write_bytes(b"theirs")
    return lambda: None


@pytest.mark.parametrize("why", [_open, _replaced])
@pytest.mark.expected_warnings("a damaged file is kept", "a written file was damaged")
async def test_what_can_not_be_had_again_stays(
    open_store: OpenStore,
    monkeypatch: pytest.MonkeyPatch,
    why: Callable[[WriterFixture], Callable[[], None]],
    scene: WriterFixture,
) -> None:
    """A program has it open, or the origin has another one by now: it is told of, and its bytes stay as they are."""
    await written(scene)
    disk, scrubbing = BadDisk(scene, monkeypatch), Scrubbing(scene, open_store)
    await scrubbing.passes(1)
    disk.rot(b"/large")
    end = why(scene)
    scrub = await scrubbing.passes(1)
    assert (scrub["files_damaged"], scrub["files_repaired"]) == (1, 0)
    assert b"large" in scene.here.upper.names(b"/") and not scrubbing.loaded
    end()


async def test_what_is_written_again_is_left_alone(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, scene: WriterFixture
) -> None:
    """In place, and not persisted yet; when it is, its new bytes are what is compared."""
    wanted = await written(scene)
    scrubbing = Scrubbing(scene, open_store)
    await scrubbing.passes(1)
    await scene.only_when_asked()
    await scene.do(lambda: scene.session.truncate(b"/large", 5000))
    assert (await scrubbing.passes(1))["files_damaged"] == 0
    await scene.persisted()
    assert (await scrubbing.passes(2))["files_damaged"] == 0
    row = scene.here.write.layer.journal.get(b"/large")
    assert row is not None
    assert scene.here.write.layer.journal.sums(row) == [block_checksum(FILES[b"/large"][:5000])]
    wanted["/large"] = FILES[b"/large"][:5000].hex()
    assert tree_of(scene.truth, links=False) == wanted
    await scene.check(wanted)
