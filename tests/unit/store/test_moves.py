"""Moves between two volumes: what moves, that bytes and records stay right, and kills at each step."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.base import failpoint
from headrace.base.errors import StoreError
from headrace.base.model import BLOCK_SIZE_BYTES, ROOT_ID, FileId, ObjectMetadata
from headrace.store.file_moves import FileMove
from headrace.store.groups import OneGroup
from headrace.store.index import Index
from headrace.store.object_metadata import noted
from headrace.store.space import SpaceRules
from headrace.store.staged_copy import CopyMismatchError
from headrace.store.store import Store
from headrace.store.tiered_files import MISPLACED_MAX
from headrace.store.volume import Volume
from tests import fork_server
from tests.unit.store.conftest import cached, crash, named

KIB, MIB = 1 << 10, 1 << 20
FAILPOINTS = ["move.copied", "move.copied:3", "move.linked", "index.commit", "index.committed", "move.recorded",
              "move.unlinked", "move.unlinked:2"]  # fmt: skip


class RuledDivision(OneGroup):
    """Every file may lie in the tiers that the test sets."""

    def __init__(self) -> None:
        self.tiers: tuple[str, ...] = ()

    def tiers_of(self, id: FileId) -> tuple[str, ...]:
        return self.tiers


Open = Callable[..., Store]


@pytest.fixture
def memory_store(tmp_path: Path) -> Iterator[Store]:
    """A store with a tier in memory, which is not the first volume."""
    volumes = [
        Volume(0, f"{tmp_path}/disk", 64 * MIB, "nvme"),
        Volume(1, f"{tmp_path}/memory", 64 * MIB, "memory"),
    ]
    store = Store.open(f"{tmp_path}/disk/index", volumes, rules=SpaceRules(sinks=True))
    yield store
    crash(store)


@pytest.fixture
def division() -> RuledDivision:
    return RuledDivision()


@pytest.fixture
def open_tiers(tmp_path: Path, division: RuledDivision) -> Iterator[Open]:
    """Open a store of 64 MiB of flash and four times as much on a slow disk."""
    stores: list[Store] = []

    def open(*, boot_id: str = "boot-1", slow_bytes: int = 256 * MIB, writes_a_day: int = 0) -> Store:
        store = open_at(
            str(tmp_path), division, boot_id=boot_id, slow_bytes=slow_bytes, writes_a_day=writes_a_day
        )
        stores.append(store)
        return store

    yield open
    for store in stores:
        crash(store)


def open_at(
    folder: str,
    division: RuledDivision,
    *,
    boot_id: str = "boot-1",
    slow_bytes: int = 256 * MIB,
    writes_a_day: int = 0,
) -> Store:
    volumes = [
        Volume(0, f"{folder}/fast", 64 * MIB, "nvme", writes_a_day=writes_a_day),
        Volume(1, f"{folder}/slow", slow_bytes, "hdd"),
    ]

    def divide(_: Index) -> RuledDivision:
        return division

    return Store.open(
        f"{folder}/fast/index", volumes, boot_id=boot_id, rules=SpaceRules(divide=divide, sinks=True)
    )


def body_of(name: str, size_bytes: int) -> bytes:
    return (name.encode() * (size_bytes // len(name) + 1))[:size_bytes]


def fill_named(store: Store, name: str, size_bytes: int) -> FileId:
    entry = named(store, name.encode(), size_bytes)
    body = body_of(name, size_bytes)
    if size_bytes <= BLOCK_SIZE_BYTES:
        store.complete_small(entry, body)
        return entry.id
    writer = store.create(entry)
    for start in range(0, size_bytes, BLOCK_SIZE_BYTES):
        writer.write(start, body[start : start + BLOCK_SIZE_BYTES])
    store.complete(writer)
    return entry.id


def run_moves(store: Store, moves: list[FileMove]) -> int:
    for move in moves:
        store.moves.copy(move, lambda _: None)
    return store.moves.commit(moves)


def sink_all(store: Store) -> int:
    count = 0
    while moves := store.moves.choose_sinks():
        count += run_moves(store, moves)
    return count


def content_of(store: Store, id: FileId) -> bytes:
    return Path(store.volumes[cached(store, id).volume].data_path(id)).read_bytes()


def is_tidy(store: Store) -> bool:
    """Return whether no copy is left over, and each file is on one volume alone."""
    return all(
        not os.path.exists(f"{v.folder}/moving") or not os.listdir(f"{v.folder}/moving") for v in store.disks
    ) and (sum(len(list(volume.ids())) for volume in store.disks) == store.index.statistics()["files"])


def test_cold_files_sink_and_keep_their_bytes(open_tiers: Open) -> None:
    store = open_tiers()
    names = {f"file-{number}": fill_named(store, f"file-{number}", 2 * MIB + 9) for number in range(30)}
    fast, slow = store.disks
    assert fast.used_bytes > 0.925 * fast.capacity_bytes
    assert slow.used_bytes == 0
    with open(fast.data_path(names["file-0"]), "rb") as reader:
        assert sink_all(store) > 0
        assert reader.read() == body_of("file-0", 2 * MIB + 9)
    assert fast.used_bytes <= 0.9 * fast.capacity_bytes
    assert cached(store, names["file-0"]).volume == 1
    assert cached(store, names["file-0"]).sunk
    assert not cached(store, names["file-29"]).sunk
    for name, id in names.items():
        assert content_of(store, id) == body_of(name, 2 * MIB + 9)
    assert store.statistics()["files_evicted"] == 0
    assert is_tidy(store)
    assert store.fsck(lambda *_: None).sound
    assert slow.written.day_bytes() == sum(
        v for v in [cached(store, i).size_bytes for i in names.values() if cached(store, i).volume]
    )


def test_accounts_agree_with_those_of_the_next_start(open_tiers: Open) -> None:
    store = open_tiers()
    for number in range(61):
        fill_named(store, f"file-{number}", MIB)
    assert sink_all(store) > 0
    used = [volume.used_bytes for volume in store.disks]
    store.close()
    again = open_tiers()
    assert [volume.used_bytes for volume in again.disks] == used
    again.close()


def test_a_file_rises_at_its_second_use(open_tiers: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    now = Now(monkeypatch)
    store = open_tiers()
    ids = [fill_named(store, f"file-{number}", MIB) for number in range(61)]
    sink_all(store)
    low = next(id for id in ids if cached(store, id).volume == 1)
    for id in ids[50:]:
        store.free(id)
    now.pass_s(10)
    store.touch([low])
    moves = store.moves.choose_rises()
    assert [move.cached.id for move in moves] == [low]
    run_moves(store, moves)
    assert cached(store, low).volume == 0
    assert not cached(store, low).sunk
    assert content_of(store, low) == body_of("file-0", MIB)


class Now:
    """The time that the store sees."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.s = 1000.0
        for module in ("tiered_files", "file_moves"):
            monkeypatch.setattr(f"headrace.store.{module}.monotonic_s", lambda: self.s)

    def pass_s(self, seconds: float) -> None:
        self.s += seconds


def test_a_rise_into_a_full_tier_needs_colder_files_there(
    open_tiers: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = Now(monkeypatch)
    store = open_tiers()
    ids = [fill_named(store, f"file-{number}", MIB) for number in range(61)]
    sink_all(store)
    low = next(id for id in ids if cached(store, id).volume == 1)
    high = [id for id in ids if cached(store, id).volume == 0]
    now.pass_s(100)
    store.touch(high)
    now.pass_s(5)
    store.touch([low])  # 105 s after its last use; the others are idle for 5
    assert store.moves.choose_rises() == []
    now.pass_s(95)
    store.touch([low])  # 95 s later, and the others are idle for 100
    assert store.moves.choose_rises() == []
    now.pass_s(5)
    store.touch([low])  # 5 s later, and the others are idle for 105
    moves = store.moves.choose_rises()
    assert moves[-1].cached.id == low
    assert [move.sinks for move in moves] == [True] * (len(moves) - 1) + [False]
    assert run_moves(store, moves) == len(moves)
    assert cached(store, low).volume == 0
    assert is_tidy(store)


def test_a_full_slow_tier_evicts_what_is_colder_there(
    open_tiers: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = Now(monkeypatch)
    store = open_tiers(slow_bytes=64 * MIB)
    first = [fill_named(store, f"first-{number}", MIB) for number in range(59)]
    sink_all(store)
    now.pass_s(10)
    second: list[FileId] = []
    for number in range(70):
        second.append(fill_named(store, f"second-{number}", MIB))
        sink_all(store)
    assert all(volume.used_bytes <= volume.capacity_bytes for volume in store.disks)
    alive = [id for id in second if store.index.cached(id) is not None]
    gone = [id for id in first if store.index.cached(id) is None]
    assert len(alive) == len(second)
    assert gone
    assert is_tidy(store)


def test_what_is_colder_than_the_slow_tier_is_evicted(
    open_tiers: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = Now(monkeypatch)
    store = open_tiers(slow_bytes=64 * MIB)
    store.space.division.tiers = ("hdd",)  # type: ignore[attr-defined]
    hot = [fill_named(store, f"hot-{number}", MIB) for number in range(60)]
    store.space.division.tiers = ()  # type: ignore[attr-defined]
    [fill_named(store, f"cold-{number}", MIB) for number in range(60)]
    now.pass_s(50)
    store.touch(hot)
    sink_all(store)
    assert store.moves.counts.files_dropped > 0
    assert store.moves.counts.files_sunk <= 1
    assert all(store.index.cached(id) is not None for id in hot)


def test_a_file_that_changes_meanwhile_stays(open_tiers: Open) -> None:
    store = open_tiers()
    ids = [fill_named(store, f"file-{number}", MIB) for number in range(61)]
    moves = store.moves.choose_sinks()
    for move in moves:
        store.moves.copy(move, lambda _: None)
    freed, sealed, *others = (move.cached.id for move in moves)
    store.free(freed)
    store.sealed.begin("seal").add(sealed)
    assert store.moves.commit(moves) == len(others)
    assert store.index.cached(freed) is None
    assert cached(store, sealed).volume == 0
    assert content_of(store, sealed) == body_of(f"file-{ids.index(sealed)}", MIB)
    assert is_tidy(store)
    held = store._files.accounts
    assert not held.moving
    used = [volume.used_bytes for volume in store.disks]
    store.close()
    assert [volume.used_bytes for volume in open_tiers().disks] == used


def test_a_pin_stops_the_sinking_of_a_file(open_tiers: Open) -> None:
    """Before its copy, during it, and after it."""
    store = open_tiers()
    ids = [fill_named(store, f"file-{number}", MIB) for number in range(61)]
    moves = store.moves.choose_sinks()
    early, during, late, *others = moves

    def pin_during(_: int) -> None:
        store.pin(during.cached.id, True)

    store.pin(early.cached.id, True)
    with pytest.raises(StoreError, match="it was pinned"):
        store.moves.copy(early, lambda _: None)
    with pytest.raises(StoreError, match="it was pinned"):
        store.moves.copy(during, pin_during)
    store.moves.abandon([early, during])
    for move in (late, *others):
        store.moves.copy(move, lambda _: None)
    store.pin(late.cached.id, True)
    assert store.moves.commit([late, *others]) == len(others)
    for move in (early, during, late):
        assert (cached(store, move.cached.id).volume, cached(store, move.cached.id).pinned) == (0, True)
        assert content_of(store, move.cached.id) == body_of(f"file-{ids.index(move.cached.id)}", MIB)
    assert is_tidy(store)
    assert not store._files.accounts.moving
    store.pin(late.cached.id, False)
    assert cached(store, late.cached.id).volume == 0


def test_wrong_bytes_do_not_move(open_tiers: Open) -> None:
    store = open_tiers()
    [fill_named(store, f"file-{number}", MIB) for number in range(61)]
    move, *rest = store.moves.choose_sinks()
    with open(store.disks[0].data_path(move.cached.id), "r+b") as file:
        file.write(b"rotten")
    with pytest.raises(CopyMismatchError, match="does not match its checksum"):
        store.moves.copy(move, lambda _: None)
    store.moves.abandon([move, *rest])
    assert not store._files.accounts.moving
    assert cached(store, move.cached.id).volume == 0
    assert is_tidy(store)


def test_a_copy_that_is_stopped_leaves_nothing(open_tiers: Open) -> None:
    class StopError(Exception):
        pass

    def stop(_: int) -> None:
        raise StopError

    store = open_tiers()
    [fill_named(store, f"file-{number}", 2 * MIB) for number in range(31)]
    moves = store.moves.choose_sinks()
    with pytest.raises(StopError):
        store.moves.copy(moves[0], stop)
    store.moves.abandon(moves)
    assert is_tidy(store)


def test_attributes_of_the_object_move_along(open_tiers: Open, division: RuledDivision) -> None:
    store = open_tiers()
    entry = named(store, b"file", 1000)
    extras = ObjectMetadata({"owner": "me"}, {}, None)
    store.complete_small_many([(entry, bytes(1000))], extras={entry.id: extras})
    division.tiers = ("hdd",)
    assert run_moves(store, store.moves.choose_misplaced([entry.id])) == 1
    assert cached(store, entry.id).volume == 1
    assert noted(store.volumes, cached(store, entry.id)) == extras


def test_a_rule_places_files(open_tiers: Open, division: RuledDivision) -> None:
    store = open_tiers()
    division.tiers = ("hdd", "nvme")
    assert cached(store, fill_named(store, "preferred", MIB)).volume == 1
    division.tiers = ("memory",)
    assert cached(store, fill_named(store, "bound to nothing here", MIB)).volume == 0
    division.tiers = ("nvme",)
    ids = [fill_named(store, f"only-fast-{number}", MIB) for number in range(80)]
    here = [id for id in ids if store.index.cached(id) is not None]
    assert {cached(store, id).volume for id in here} == {0}
    assert len(here) < 64
    store.space.evict_if_needed()
    assert sink_all(store) == 0
    assert store.disks[0].used_bytes <= 0.925 * store.disks[0].capacity_bytes


def test_a_changed_rule_moves_files_or_drops_them(open_tiers: Open, division: RuledDivision) -> None:
    store = open_tiers()
    ids = [fill_named(store, f"file-{number}", MIB) for number in range(5)]
    partial = store.create(named(store, b"partial", 4 * MIB))
    partial.write(0, bytes(MIB))
    idle = store.create(named(store, b"idle", 4 * MIB))
    idle.write(0, bytes(MIB))
    idle.close()
    too_large = fill_named(store, "large", 6 * MIB)
    store.pin(ids[0], True)
    store.sealed.begin("seal").add(ids[1])
    division.tiers = ("hdd",)
    everything = [file.id for file in store.index.cached_files()]
    assert run_moves(store, store.moves.choose_misplaced(everything)) == 5
    assert [cached(store, id).volume for id in ids] == [1, 0, 1, 1, 1]
    assert cached(store, ids[0]).pinned
    assert not cached(store, ids[2]).sunk
    assert cached(store, partial.id).volume == 0
    assert store.index.cached(idle.id) is None
    division.tiers = ("nvme",)
    store.disks[0].capacity_bytes = 4 * MIB + 512 * KIB
    run_moves(store, store.moves.choose_misplaced([too_large, ids[2]]))
    assert store.index.cached(too_large) is None
    assert cached(store, ids[2]).volume == 0


def test_writes_of_a_day_send_files_elsewhere(open_tiers: Open, division: RuledDivision) -> None:
    store = open_tiers(writes_a_day=3 * MIB)
    ids = [fill_named(store, f"file-{number}", MIB) for number in range(5)]
    assert [cached(store, id).volume for id in ids] == [0, 0, 0, 1, 1]
    assert store.disks[0].is_spent
    store.touch([ids[4]])
    assert store.moves.choose_rises() == []
    assert store.space.tiered.may_write(ids[4])
    division.tiers = ("nvme",)
    assert not store.space.tiered.may_write(ids[4])
    assert cached(store, fill_named(store, "loaded", MIB)).volume == 0


# ------------------------------------------------------------ kills


def scenario(folder: str) -> None:
    """Three files sink, one of them in more than one block, while the failpoint is armed from here on."""
    store = open_at(folder, RuledDivision())
    names = ["large-a", "small-b", "large-c"]
    sizes = [2 * MIB + 9, 1000, 3 * MIB]
    ids = [fill_named(store, name, size) for name, size in zip(names, sizes, strict=True)]
    failpoint._ARMED, _, count = os.environ["MOVE_FAILPOINT"].partition(":")
    failpoint._left = int(count or 1)
    division = store.space.division
    division.tiers = ("hdd",)  # type: ignore[attr-defined]
    run_moves(store, store.moves.choose_misplaced(ids))


@pytest.mark.parametrize("step", FAILPOINTS)
def test_kill(tmp_path: Path, step: str) -> None:
    folder = str(tmp_path)
    code = "import sys; from tests.unit.store.test_moves import scenario; scenario(sys.argv[1])"
    done = fork_server.run(
        [sys.executable, "-c", code, folder],
        env={**os.environ, "MOVE_FAILPOINT": step},
        cwd=Path(__file__).parents[3],
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, "the failpoint was not reached"
    check_files(folder, boot_id="boot-1", trusted=True)


def check_files(folder: str, *, boot_id: str, trusted: bool) -> None:
    store = open_at(folder, RuledDivision(), boot_id=boot_id)
    try:
        assert is_tidy(store)
        for name, size in (("large-a", 2 * MIB + 9), ("small-b", 1000), ("large-c", 3 * MIB)):
            entry = store.index.lookup(ROOT_ID, name.encode())
            assert entry is not None
            record = cached(store, entry.id)
            assert record.trusted or (not trusted and store.verifier.verify(entry.id))
            assert content_of(store, entry.id) == body_of(name, size)
        assert store.fsck(lambda *_: None).sound
    finally:
        store.close()


def test_a_move_survives_a_power_loss(tmp_path: Path) -> None:
    """The index goes back to its checkpoint, and the files were moved after that."""
    store = open_at(str(tmp_path), RuledDivision())
    ids = [
        fill_named(store, "large-a", 2 * MIB + 9),
        fill_named(store, "small-b", 1000),
        fill_named(store, "large-c", 3 * MIB),
    ]
    store.sync()
    store.space.division.tiers = ("hdd",)  # type: ignore[attr-defined]
    assert run_moves(store, store.moves.choose_misplaced(ids)) == 3
    crash(store)
    check_files(str(tmp_path), boot_id="boot-2", trusted=False)


def test_files_in_memory_are_forgotten_after_a_restart(tmp_path: Path) -> None:
    def open() -> Store:
        volumes = [
            Volume(0, f"{tmp_path}/disk", 64 * MIB, "nvme"),
            Volume(1, f"{tmp_path}/shm", 64 * MIB, "memory"),
        ]
        return Store.open(f"{tmp_path}/disk/index", volumes)

    store = open()
    id = fill_named(store, "file", 1000)
    move = FileMove(cached(store, id), store.disks[1])
    store._files.accounts.hold(move.target, move.size_bytes)
    store._files.accounts.moving.add(id)
    assert run_moves(store, [move]) == 1
    assert cached(store, id).volume == 1
    store.close()
    shutil.rmtree(f"{tmp_path}/shm")
    store = open()
    assert store.index.cached(id) is None
    assert store.disks[1].used_bytes == 0
    store.close()


def test_names_in_the_staging_place_that_are_no_copies_are_left_alone(open_tiers: Open) -> None:
    store = open_tiers()
    id = fill_named(store, "file", 1000)
    os.makedirs(f"{store.disks[1].folder}/moving")
    for name in ("readme", f"{id:012x}.bak"):
        Path(f"{store.disks[1].folder}/moving/{name}").write_text("mine")
    crash(store)
    again = open_tiers()
    assert sorted(os.listdir(f"{again.disks[1].folder}/moving")) == [f"{id:012x}.bak", "readme"]
    assert content_of(again, id) == body_of("file", 1000)


# ------------------------------------------------------------ failures


def nothing_is_held(store: Store, used: list[int]) -> bool:
    """Return whether no move is under way, and the volumes have as many bytes as before."""
    return not store._files.accounts.moving and [volume.used_bytes for volume in store.disks] == used


def test_a_commit_that_fails_ends_its_moves(open_tiers: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_tiers()
    ids = [fill_named(store, f"file-{number}", MIB) for number in range(61)]
    used = [volume.used_bytes for volume in store.disks]
    moves = store.moves.choose_sinks()
    for move in moves:
        store.moves.copy(move, lambda _: None)

    def fail(_: object) -> None:
        raise StoreError("the index", why="its disk is full")

    monkeypatch.setattr(store.index, "put_cached", fail)
    with pytest.raises(StoreError):
        store.moves.commit(moves)
    assert nothing_is_held(store, used)
    assert is_tidy(store)
    monkeypatch.undo()
    assert sink_all(store) == len(moves)
    assert content_of(store, moves[0].cached.id) == body_of(f"file-{ids.index(moves[0].cached.id)}", MIB)


def test_a_staging_place_that_can_not_be_used_holds_nothing(open_tiers: Open) -> None:
    store = open_tiers()
    [fill_named(store, f"file-{number}", MIB) for number in range(61)]
    used = [volume.used_bytes for volume in store.disks]
    Path(f"{store.disks[1].folder}/moving").write_text("no directory")
    moves = store.moves.choose_sinks()
    assert len(moves) > 1
    for move in moves:
        with pytest.raises(StoreError):
            store.moves.copy(move, lambda _: None)
    store.moves.abandon(moves)
    assert nothing_is_held(store, used)


def test_a_choice_that_fails_ends_its_moves(open_tiers: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_tiers()
    [fill_named(store, f"file-{number}", MIB) for number in range(61)]
    used = [volume.used_bytes for volume in store.disks]

    def place(*_: object) -> Volume:
        if store._files.accounts.moving:
            raise StoreError("the other disk", why="it is gone")
        return store.disks[1]

    monkeypatch.setattr(store.moves, "_place_below", place)
    with pytest.raises(StoreError):
        store.moves.choose_sinks()
    assert nothing_is_held(store, used)


def test_an_old_name_in_the_staging_place_is_not_written_to(
    open_tiers: Open, division: RuledDivision
) -> None:
    """Such a name is left if it can't be removed. It may be one of a file that somebody reads."""
    store = open_tiers()
    id = fill_named(store, "file", MIB)
    other = Path(f"{store.disks[1].folder}/read")
    other.write_bytes(b"somebody reads this")
    os.makedirs(f"{store.disks[1].folder}/moving")
    os.link(other, f"{store.disks[1].folder}/moving/{id:012x}")
    division.tiers = ("hdd",)
    assert run_moves(store, store.moves.choose_misplaced([id])) == 1
    assert other.read_bytes() == b"somebody reads this"
    assert content_of(store, id) == body_of("file", MIB)


# ------------------------------------------------------------ what else must stay as it was


@pytest.mark.parametrize("size_bytes", [1000, 2 * MIB + 9])
def test_the_times_of_a_file_stay(open_tiers: Open, division: RuledDivision, size_bytes: int) -> None:
    """The time to live of `fetched+12h` counts from the mtime, and after a restart the last use is the atime."""
    store = open_tiers()
    id = fill_named(store, "file", size_bytes)
    os.utime(store.disks[0].data_path(id), ns=(5_000_000_007, 3_000_000_009))
    division.tiers = ("hdd",)
    assert run_moves(store, store.moves.choose_misplaced([id])) == 1
    status = os.stat(store.disks[1].data_path(id))
    assert (status.st_atime_ns, status.st_mtime_ns) == (5_000_000_007, 3_000_000_009)


def test_a_rule_that_changes_during_a_fill_holds_for_it(open_tiers: Open, division: RuledDivision) -> None:
    store = open_tiers()
    writer = store.create(named(store, b"file", 2 * MIB))
    division.tiers = ("hdd",)
    for start in (0, MIB):
        writer.write(start, bytes(MIB))
    store.complete(writer)
    assert list(store.space.tiered.misplaced) == [writer.id]


def test_few_misplaced_files_are_remembered_while_nothing_moves_them(
    open_tiers: Open, division: RuledDivision
) -> None:
    store = open_tiers()
    tiered = store.space.tiered
    division.tiers = ("hdd",)
    for number in range(MISPLACED_MAX + 100):
        tiered.note_placed(FileId(number), store.disks[0])
        tiered.note_placed(FileId(number), store.disks[1])
    assert len(tiered.misplaced) == MISPLACED_MAX


def test_a_choice_of_risers_holds_the_lock_for_a_batch(
    open_tiers: Open, division: RuledDivision, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = Now(monkeypatch)
    store = open_tiers()
    division.tiers = ("hdd",)
    low = [fill_named(store, f"low-{number}", 1000) for number in range(300)]
    division.tiers = ("nvme", "hdd")
    [fill_named(store, f"high-{number}", MIB) for number in range(61)]
    store.moves.choose_sinks()
    now.pass_s(10)
    store.touch(low)
    waiting = store.space.tiered.choice.waiting
    assert waiting == 300
    store.moves.choose_rises()
    assert waiting - 64 <= store.space.tiered.choice.waiting < waiting


def test_of_the_disks_of_a_tier_the_spent_one_gets_no_file(tmp_path: Path) -> None:
    volumes = [
        Volume(0, f"{tmp_path}/a", 64 * MIB, "nvme", writes_a_day=3 * MIB),
        Volume(1, f"{tmp_path}/b", 32 * MIB, "nvme"),
    ]
    store = Store.open(f"{tmp_path}/a/index", volumes)
    ids = [fill_named(store, f"file-{number}", MIB) for number in range(50)]
    there = [record.volume for record in map(store.index.cached, ids) if record is not None]
    assert there.count(0) == 3, "no more is written to the first disk than its limit"
    assert there.count(1) > 20
    store.pin(ids[-1], True)
    large = fill_named(store, "does not fit the other disk", 40 * MIB)
    assert cached(store, large).volume == 0
    store.close()


def test_sealed_files_leave_memory_and_stay_on_the_disk(memory_store: Store) -> None:
    store = memory_store
    id = fill_named(store, "a", 3 * MIB)
    assert store.volumes[cached(store, id).volume].tier == "memory"
    assert store.moves.choose_misplaced([id]) == []
    store.sealed.begin("s@1").add(id)
    store.sealed.leave_memory(id)
    assert list(store.space.tiered.misplaced) == [id]
    assert run_moves(store, store.moves.choose_misplaced([id])) == 1
    assert store.volumes[cached(store, id).volume].tier == "nvme"
    assert content_of(store, id) == body_of("a", 3 * MIB)
    assert store.moves.choose_misplaced([id]) == []
    after = fill_named(store, "b", 1000)
    assert store.volumes[cached(store, after).volume].tier == "memory"


def test_a_misplaced_file_that_is_noted_twice_moves_once(memory_store: Store) -> None:
    store = memory_store
    id = fill_named(store, "a", 3 * MIB)
    store.sealed.begin("s@1").add(id)
    used_bytes = store.space.used_bytes
    assert run_moves(store, store.moves.choose_misplaced([id, id])) == 1
    assert (store.space.used_bytes, store.volumes[1].used_bytes) == (used_bytes, 0)


def test_a_file_that_is_sealed_while_it_moves_up_stays(memory_store: Store) -> None:
    store = memory_store
    kept = store.sealed.begin("s@1")
    entry = named(store, b"a", 1000)
    kept.add(entry.id)
    store.complete_small(entry, body_of("a", 1000))
    id = entry.id
    assert store.volumes[cached(store, id).volume].tier == "nvme"
    store.sealed.end("s@1")
    store.sealed.leave_memory(id)
    assert list(store.space.tiered.misplaced) == []
    store.space.tiered.choice.plan(id, 1.0)
    moves = store.moves.choose_rises()
    assert [move.target.tier for move in moves] == ["memory"]
    store.sealed.begin("s@2").add(id)
    assert run_moves(store, moves) == 0
    assert store.volumes[cached(store, id).volume].tier == "nvme"
