"""A mirror made of snapshots is like the layer that they were taken of, whatever was done to it and in which order."""

from __future__ import annotations

import errno
import os
import random
import shutil
import stat
from pathlib import Path

import pytest

from headrace.base.beneath import SafePath
from headrace.base.model import BLOCK_SIZE_BYTES, ObjectMetadata, Version
from headrace.base.namespace_path import join
from headrace.overlay.hiding import hide
from headrace.overlay.object_metadata import extras_of, note_extras
from headrace.overlay.snapshot import SMALL_BYTES_MAX, EntryType, Snapshot, entry_type_of, take
from headrace.overlay.upper import Upper
from headrace.writeback.replication.replica_layer import ReplicaLayer, copy_of
from tests.plain_paths import plain

NAMES = [b"a", b"b", b"c"]
VERSION = Version(7, 8, '"nine"')


@pytest.fixture
def layers(needs_root: None, tmp_path: Path) -> tuple[Upper, ReplicaLayer]:
    upper, mirror = Upper(str(tmp_path / "upper")), ReplicaLayer(str(tmp_path / "mirror"))
    upper.make()
    mirror.make()
    return upper, mirror


def snapshot(upper: Upper, path: bytes) -> Snapshot:
    try:
        return take(path, upper.at(path), upper.base_of(path))
    except (FileNotFoundError, NotADirectoryError):
        return Snapshot(path, EntryType.GONE)


def send(upper: Upper, mirror: ReplicaLayer, paths: list[bytes]) -> int:
    """Send as a lane and a holder do. Return the bytes of large files that were sent."""
    below = {child for path in paths for child, _ in upper.walk(path)}
    snapshots = [snapshot(upper, path) for path in {*paths, *below}]
    snapshots.sort(key=lambda entry: entry.shape in (EntryType.GONE, EntryType.WHITEOUT))
    sent = 0
    for entry in snapshots:
        if entry.is_large:
            with open(plain(upper.at(entry.path)), "rb") as source:
                for start, end in mirror.missing(entry):
                    source.seek(start)
                    mirror.write(entry.inode, start, source.read(end - start))
                    sent += end - start
        mirror.place(entry)
    return sent


def looks(upper: Upper) -> dict[bytes, tuple[object, ...]]:
    states: dict[bytes, tuple[object, ...]] = {}
    for path, status in upper.walk():
        upper_path = upper.at(path)
        shape = entry_type_of(upper_path, status)
        inside = b""
        if shape is EntryType.FILE:
            inside = Path(os.fsdecode(plain(upper_path))).read_bytes()
        elif shape is EntryType.LINK:
            inside = upper_path.readlink()
        times = status.st_mtime_ns if shape is EntryType.FILE else 0
        states[path] = (shape, inside, stat.S_IMODE(status.st_mode), times, upper.base_of(path))
    return states


def random_path(choose: random.Random) -> bytes:
    path = b"/"
    for _ in range(choose.randrange(1, 4)):
        path = join(path, choose.choice(NAMES))
    return path


def act(choose: random.Random, upper: Upper) -> list[bytes]:
    """One change of the layer; the paths that are told of it."""
    path, other = random_path(choose), random_path(choose)
    source, there = plain(upper.at(path)), plain(upper.at(other))
    kind = choose.randrange(8)
    try:
        if kind == 0:
            os.mkdir(source, 0o755)
        elif kind in (1, 2):
            size = choose.choice([0, 10, SMALL_BYTES_MAX, SMALL_BYTES_MAX + 1, 3 * BLOCK_SIZE_BYTES + 5])
            with open(source, choose.choice(["wb", "ab", "r+b"])) as out:
                out.seek(choose.choice([0, 2 * BLOCK_SIZE_BYTES]), os.SEEK_SET)
                out.write(choose.randbytes(size))
        elif kind == 3:
            os.rename(source, there)
            return [other, path]
        elif kind == 4:
            hide(upper, path, choose.choice([None, VERSION]))
        elif kind == 5:
            os.unlink(source)
        elif kind == 6:
            shutil.rmtree(source)
        else:
            os.symlink(choose.randbytes(3).hex(), source)
    except OSError:
        return []
    return [path]


@pytest.mark.parametrize("seed", range(int(os.environ.get("HEADRACE_EXAMPLES", "20"))))
def test_like_the_layer(layers: tuple[Upper, ReplicaLayer], seed: int) -> None:
    upper, mirror = layers
    choose = random.Random(seed)
    for _ in range(60):
        changed = act(choose, upper)
        if choose.random() < 0.8:
            send(upper, mirror, changed)
        else:  # a holder that comes anew
            mirror.begin()
            send(upper, mirror, [path for path, _ in upper.walk()])
            mirror.end()
        if choose.random() < 0.8:
            continue
        send(upper, mirror, [path for path, _ in upper.walk()])
        mirror.begin()
        send(upper, mirror, [path for path, _ in upper.walk()])
        mirror.end()
        files = {path: state for path, state in looks(upper).items() if state[0] is not EntryType.DIRECTORY}
        assert {
            p: state for p, state in looks(mirror.upper).items() if state[0] is not EntryType.DIRECTORY
        } == files


def test_only_what_changed_is_sent(layers: tuple[Upper, ReplicaLayer]) -> None:
    upper, mirror = layers
    source, size = plain(upper.at(b"/f")), 4 * BLOCK_SIZE_BYTES + 100
    Path(os.fsdecode(source)).write_bytes(os.urandom(size))
    assert send(upper, mirror, [b"/f"]) == size
    with open(source, "r+b") as out:
        out.seek(BLOCK_SIZE_BYTES + 5)
        out.write(b"changed")
    assert send(upper, mirror, [b"/f"]) == BLOCK_SIZE_BYTES
    os.rename(source, plain(upper.at(b"/g")))
    assert send(upper, mirror, [b"/f", b"/g"]) == 0
    assert looks(upper) == looks(mirror.upper)
    status = upper.at(b"/g").lstat()
    assert copy_of(mirror.upper.at(b"/g")) == (status.st_ino, status.st_ctime_ns, status.st_size)


def test_what_was_large_and_small_is_large_again(layers: tuple[Upper, ReplicaLayer]) -> None:
    """The mirror's record of it from when it was large is true no more."""
    upper, mirror = layers
    source, data = plain(upper.at(b"/f")), os.urandom(3 * BLOCK_SIZE_BYTES)
    for size in (len(data), 100, len(data)):
        with open(source, "r+b" if os.path.exists(source) else "xb") as out:
            out.write(data[:size])
            out.truncate(size)
        send(upper, mirror, [b"/f"])
        assert looks(upper) == looks(mirror.upper)


def test_the_old_state_is_whole_until_the_new_one_is(layers: tuple[Upper, ReplicaLayer]) -> None:
    upper, mirror = layers
    source = plain(upper.at(b"/f"))
    first = os.urandom(3 * BLOCK_SIZE_BYTES)
    Path(os.fsdecode(source)).write_bytes(first)
    send(upper, mirror, [b"/f"])
    with open(source, "r+b") as out:
        out.write(os.urandom(2 * BLOCK_SIZE_BYTES))
    wanted = snapshot(upper, b"/f")
    for start, end in mirror.missing(wanted):
        mirror.write(wanted.inode, start, Path(os.fsdecode(source)).read_bytes()[start:end])
    assert Path(os.fsdecode(plain(mirror.upper.at(b"/f")))).read_bytes() == first
    mirror.place(wanted)
    assert looks(upper) == looks(mirror.upper)


def test_what_was_sent_ahead_and_never_finished_goes(layers: tuple[Upper, ReplicaLayer]) -> None:
    """Its file was removed before it was closed: nobody ever tells of it."""
    upper, mirror = layers
    mirror.write(77, 0, bytes(BLOCK_SIZE_BYTES))
    source = plain(upper.at(b"/f"))
    Path(os.fsdecode(source)).write_bytes(os.urandom(3 * BLOCK_SIZE_BYTES))
    wanted = snapshot(upper, b"/f")
    mirror.write(wanted.inode, 0, Path(os.fsdecode(source)).read_bytes()[:BLOCK_SIZE_BYTES])
    assert mirror.drop_idle(60.0) == 0
    assert len(os.listdir(mirror.upper.work.path)) == 2
    assert mirror.drop_idle(-1.0) == 2
    assert os.listdir(mirror.upper.work.path) == []
    assert send(upper, mirror, [b"/f"]) == 3 * BLOCK_SIZE_BYTES  # what is still written is sent anew
    assert looks(upper) == looks(mirror.upper)


def test_the_checksums_of_files_that_left_are_forgotten(layers: tuple[Upper, ReplicaLayer]) -> None:
    """Those of files in their place stay, so that only changed blocks are sent."""
    upper, mirror = layers
    for name in (b"/gone", b"/replaced", b"/stays"):
        Path(os.fsdecode(plain(upper.at(name)))).write_bytes(os.urandom(3 * BLOCK_SIZE_BYTES))
        send(upper, mirror, [name])
    upper.at(b"/gone").unlink()
    upper.at(b"/replaced").unlink()
    upper.at(b"/replaced").mkdir(0o755)
    send(upper, mirror, [b"/gone", b"/replaced"])
    mirror.drop_idle(60.0)
    stays = upper.at(b"/stays")
    assert list(mirror._placed) == [stays.lstat().st_ino]
    with open(plain(stays), "r+b") as out:
        out.write(b"changed")
    assert send(upper, mirror, [b"/stays"]) == BLOCK_SIZE_BYTES
    assert looks(upper) == looks(mirror.upper)


def test_a_crash_of_the_holder_leaves_nothing_in_work(layers: tuple[Upper, ReplicaLayer]) -> None:
    """Nor does one while it persists, which makes folders there."""
    _, mirror = layers
    mirror.write(77, 0, bytes(BLOCK_SIZE_BYTES))
    os.makedirs(plain(mirror.upper.new()) + b"/a/b")
    mirror.make()
    assert os.listdir(mirror.upper.work.path) == []


@pytest.mark.parametrize("size", [10, SMALL_BYTES_MAX + 1])
def test_a_copy_has_what_an_object_has_beside_its_bytes(
    layers: tuple[Upper, ReplicaLayer], size: int
) -> None:
    upper, mirror = layers
    source = plain(upper.at(b"/file"))
    Path(os.fsdecode(source)).write_bytes(b"x" * size)
    for given in (ObjectMetadata({"a": "b"}, {}, {"tag": "1"}), ObjectMetadata({"a": "c"}, {}, {})):
        with open(source, "rb") as file:
            note_extras(file.fileno(), given)
        send(upper, mirror, [b"/file"])
        copied = mirror.upper.at(b"/file")
        assert extras_of(copied, copied.lstat()) == given


def test_a_block_that_a_full_disk_tore_is_missing(
    layers: tuple[Upper, ReplicaLayer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file gets its earlier content back, whose checksum the mirror had before the write that failed."""
    upper, mirror = layers
    source, data = plain(upper.at(b"/f")), os.urandom(3 * BLOCK_SIZE_BYTES)
    Path(os.fsdecode(source)).write_bytes(data)
    wanted = snapshot(upper, b"/f")
    mirror.write(wanted.inode, 0, data)
    assert mirror.missing(wanted) == []
    pwrite, written = os.pwrite, iter([100])

    def tear(fd: int, body: memoryview, position: int) -> int:
        for size in written:
            return pwrite(fd, body[:size], position)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patches:
        patches.setattr(os, "pwrite", tear)
        with pytest.raises(OSError, match="No space"):
            mirror.write(wanted.inode, 0, os.urandom(2 * BLOCK_SIZE_BYTES))
    assert mirror.missing(wanted) == [(0, 2 * BLOCK_SIZE_BYTES)]
    send(upper, mirror, [b"/f"])
    assert looks(upper) == looks(mirror.upper)


@pytest.mark.parametrize("blocks", [2, 3])
def test_a_large_file_that_cannot_be_placed_leaves_the_old_one_and_is_placed_later(
    layers: tuple[Upper, ReplicaLayer], monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    """Its staging is a second name of the old file, because no block of the file changed."""
    upper, mirror = layers
    source, data = plain(upper.at(b"/f")), os.urandom(3 * BLOCK_SIZE_BYTES)
    Path(os.fsdecode(source)).write_bytes(data)
    send(upper, mirror, [b"/f"])

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.truncate(source, blocks * BLOCK_SIZE_BYTES)
    os.utime(source, ns=(1, 1))
    for _ in range(2):
        with monkeypatch.context() as patches, pytest.raises(OSError, match="No space"):
            patches.setattr(SafePath, "rename", fail)
            send(upper, mirror, [b"/f"])
        assert Path(os.fsdecode(plain(mirror.upper.at(b"/f")))).read_bytes() == data
    send(upper, mirror, [b"/f"])
    assert looks(upper) == looks(mirror.upper)


@pytest.mark.parametrize("size", [10, SMALL_BYTES_MAX + 1])
def test_a_file_that_cannot_be_placed_leaves_nothing_in_work(
    layers: tuple[Upper, ReplicaLayer], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The disk is full, and each attempt would take some more of it."""
    upper, mirror = layers
    Path(os.fsdecode(plain(upper.at(b"/f")))).write_bytes(b"x" * size)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patches, pytest.raises(OSError, match="No space"):
        patches.setattr(SafePath, "setxattr", fail)
        send(upper, mirror, [b"/f"])
    assert os.listdir(mirror.upper.work.path) == []
    send(upper, mirror, [b"/f"])
    assert looks(upper) == looks(mirror.upper)


def test_a_closed_mirror_leaves_the_file_to_the_next_one(layers: tuple[Upper, ReplicaLayer]) -> None:
    _, mirror = layers
    mirror.write(7, 0, bytes(BLOCK_SIZE_BYTES))
    mirror.close()
    following = ReplicaLayer(os.path.dirname(os.fsdecode(mirror.upper.tree.path)))
    following.make()
    following.write(7, 0, b"n" * BLOCK_SIZE_BYTES)
    with pytest.raises(OSError, match="Stale"):
        mirror.write(7, 0, bytes(BLOCK_SIZE_BYTES))
    assert Path(os.fsdecode(plain(following.upper.work.at(b"/7")))).read_bytes() == b"n" * BLOCK_SIZE_BYTES


def test_a_complete_list_keeps_the_removals_of_directories(layers: tuple[Upper, ReplicaLayer]) -> None:
    """Without its mark a directory of the origin that the writer removed is there again after a failover."""
    upper, mirror = layers
    for name in (b"/top", b"/top/removed", b"/again", b"/past"):
        upper.at(name).mkdir(0o755)
    for name in (b"/top/removed", b"/again", b"/past"):
        upper.mark_removed(name)
    send(upper, mirror, [b"/"])
    upper.unmark_removed(b"/again")
    upper.at(b"/past").rmdir()  # the origin has this removal
    for _ in range(2):
        mirror.begin()
        send(upper, mirror, [path for path, _ in upper.walk()])
        mirror.end()
        shapes = {path: state[0] for path, state in looks(mirror.upper).items() if path != b"/"}
        assert shapes == {b"/top": EntryType.DIRECTORY, b"/top/removed": EntryType.REMOVED}


def test_a_copy_on_a_full_disk_leaves_nothing_in_work(
    layers: tuple[Upper, ReplicaLayer], monkeypatch: pytest.MonkeyPatch
) -> None:
    upper, mirror = layers
    source = plain(upper.at(b"/f"))
    Path(os.fsdecode(source)).write_bytes(os.urandom(3 * BLOCK_SIZE_BYTES))
    send(upper, mirror, [b"/f"])
    with open(source, "r+b") as out:
        out.write(b"changed")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patches, pytest.raises(OSError, match="No space"):
        patches.setattr(os, "copy_file_range", fail)
        send(upper, mirror, [b"/f"])
    assert [name for name in os.listdir(mirror.upper.work.path) if name.endswith(b".own")] == []
    assert send(upper, mirror, [b"/f"]) == BLOCK_SIZE_BYTES
    assert looks(upper) == looks(mirror.upper)
