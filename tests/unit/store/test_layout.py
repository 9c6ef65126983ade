"""Cache files lie in directories by their ids: their directories come and go, and files of the older layout move."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from headrace.base.model import Entry, FileId
from headrace.store.store import Store
from headrace.store.volume import Volume, data_path
from tests.unit.store.conftest import OpenStore, crash, named

OLD = [(0x1, ""), (0x101, ""), (0x1FF, ".part"), (0x1FF, ".map"), (0xABCDEF012345, "")]


def put(store: Store, name: bytes, size_bytes: int = 100) -> Entry:
    entry = named(store, name, size_bytes)
    store.complete_small(entry, os.urandom(size_bytes))
    return entry


def folders(volume: Path) -> list[str]:
    return sorted(os.listdir(volume / "files"))


def write_old(volume: Path) -> dict[str, bytes]:
    """Write files as the older layout had them; return the bytes by the present paths below files/."""
    bodies = {}
    for id, ending in OLD:
        folder = volume / "files" / f"{id & 255:02x}"
        folder.mkdir(parents=True, exist_ok=True)
        body = os.urandom(50)
        (folder / f"{id:012x}{ending}").write_bytes(body)
        bodies[f"{id >> 8:010x}/{id:012x}{ending}"] = body
    return bodies


def present(volume: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(volume / "files")): path.read_bytes()
        for path in (volume / "files").rglob("*")
        if path.is_file()
    }


def test_consecutive_ids_share_a_directory_that_goes_with_its_last_file(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    assert folders(tmp_path / "volume") == []
    entries = [put(store, b"%d" % number) for number in range(300)]
    assert folders(tmp_path / "volume") == sorted({f"{entry.id >> 8:010x}" for entry in entries})
    for entry in entries:
        store.free(entry.id)
    assert folders(tmp_path / "volume") == []


def test_a_file_is_created_while_the_last_other_one_of_its_directory_goes(tmp_path: Path) -> None:
    volume = Volume(0, str(tmp_path), 1 << 30)
    volume.open()
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            os.close(volume.create(volume.data_path(FileId(1)), os.O_WRONLY))
            volume.unlink(FileId(1))

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(2000):
            os.close(volume.create(volume.data_path(FileId(2)), os.O_WRONLY | os.O_EXCL))
            volume.unlink(FileId(2))
    finally:
        stop.set()
        thread.join()
        volume.close()


def test_files_of_the_older_layout_move_and_a_killed_start_goes_on(tmp_path: Path) -> None:
    bodies = write_old(tmp_path)
    moved = tmp_path / "files" / "0000000000"
    moved.mkdir()
    (tmp_path / "files/01/000000000001").rename(moved / "000000000001")  # as if killed after the first one
    (tmp_path / "files/01/notes.txt").write_text("of an administrator")
    volume = Volume(0, str(tmp_path), 1 << 30)
    volume.open()
    assert sorted(volume.ids()) == sorted({id for id, _ in OLD})
    volume.close()
    assert (tmp_path / "files/01/notes.txt").read_text() == "of an administrator"
    os.unlink(tmp_path / "files/01/notes.txt")
    assert present(tmp_path) == bodies
    again = Volume(0, str(tmp_path), 1 << 30)
    again.open()
    again.close()
    assert present(tmp_path) == bodies and not (tmp_path / "files/01").exists()


def test_a_cache_of_the_older_layout_is_read(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    entries = [put(store, b"%d" % number) for number in range(3)]
    paths = [Path(data_path(str(tmp_path / "volume"), entry.id)) for entry in entries]
    bodies = [path.read_bytes() for path in paths]
    store.close()
    for entry, path in zip(entries, paths, strict=True):
        old = tmp_path / "volume/files" / f"{entry.id & 255:02x}"
        old.mkdir()
        path.rename(old / path.name)
    paths[0].parent.rmdir()
    again = open_store()
    assert [path.read_bytes() for path in paths] == bodies
    records = [again.index.cached(entry.id) for entry in entries]
    assert all(cached is not None and cached.trusted for cached in records)


def test_an_empty_directory_of_a_kill_goes_at_the_next_start(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    put(store, b"a")
    before = folders(tmp_path / "volume")
    (tmp_path / "volume/files/00000000ff").mkdir()
    crash(store)
    open_store()
    assert folders(tmp_path / "volume") == before


@pytest.mark.parametrize("name", ["zz", "00000000ffff", "-000000001", "00000000FF"])
def test_other_names_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "files" / name).mkdir(parents=True)
    (tmp_path / "files" / name / "000000000001").write_text("x")
    volume = Volume(0, str(tmp_path), 1 << 30)
    volume.open()
    assert list(volume.ids()) == []
    volume.remove_empty_folders()
    volume.close()
    assert (tmp_path / "files" / name / "000000000001").exists()
