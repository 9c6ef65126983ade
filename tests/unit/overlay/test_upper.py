"""The upper layer as a folder: what hides, what is placed, what is kept of names that went. Needs root: whiteouts are
devices, marks are trusted attributes."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.base import boot_clock
from headrace.base.beneath import SafePath
from headrace.base.model import Version
from headrace.base.namespace_path import join, split
from headrace.overlay import workdir
from headrace.overlay.given_mode import give_mode, make_device
from headrace.overlay.hiding import (
    defer_removal,
    hide,
    hide_missing,
    pending_removals,
    rename_leaving_whiteout,
)
from headrace.overlay.mark_names import MARKS
from headrace.overlay.marks import base_version, is_removed, is_whiteout, set_base
from headrace.overlay.moves import clear_work, move_in
from headrace.overlay.upper import HIDDEN, Upper
from tests.plain_paths import plain
from tests.unit.writeback.failing_disk import FailingMarks

pytestmark = pytest.mark.root
ONE, TWO = Version(1, 2, "one"), Version(3, 4, "two")


@pytest.fixture
def upper(tmp_path: Path) -> Upper:
    layer = Upper(str(tmp_path / "upper"))
    layer.make()
    return layer


def put(upper: Upper, path: bytes, data: bytes = b"x") -> None:
    os.makedirs(plain(upper.at(split(path)[0])), exist_ok=True)
    with open(plain(upper.at(path)), "wb") as file:
        file.write(data)


def test_paths() -> None:
    assert split(b"/a") == (b"/", b"a")
    assert split(b"/a/b/c") == (b"/a/b", b"c")
    assert join(b"/", b"a") == b"/a"
    assert join(b"/a", b"b") == b"/a/b"


def test_whiteouts_and_removed_folders_hide(upper: Upper) -> None:
    put(upper, b"/f")
    upper.at(b"/d").mkdir(0o755)
    assert isinstance(upper.lookup(b"/f"), os.stat_result)
    assert upper.lookup(b"/none") is None
    hide(upper, b"/f", ONE)
    upper.mark_removed(b"/d")
    assert upper.lookup(b"/f") is HIDDEN
    assert upper.lookup(b"/d") is HIDDEN
    assert upper.base_of(b"/f") == ONE
    assert upper.names(b"/") == {b"f": False, b"d": False}


def test_a_whiteout_that_disappears_during_a_listing_takes_no_other_name_with_it(
    upper: Upper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node clears whiteouts at any time, and a listing holds no lock."""
    for number in range(20):
        put(upper, b"/file-%d" % number)
        put(upper, b"/removed-%d" % number)
        hide(upper, b"/removed-%d" % number, ONE)

    def is_whiteout_now(status: os.stat_result) -> bool:
        for number in range(10, 20):
            with contextlib.suppress(FileNotFoundError):
                upper.at(b"/removed-%d" % number).unlink()
        return is_whiteout(status)

    monkeypatch.setattr("headrace.overlay.upper.is_whiteout", is_whiteout_now)
    names = upper.names(b"/")
    assert {name for name, is_visible in names.items() if is_visible} == {b"file-%d" % n for n in range(20)}
    assert {b"removed-%d" % n for n in range(10)} <= names.keys()


def test_a_rename_leaves_a_whiteout_that_knows_its_base(upper: Upper) -> None:
    put(upper, b"/a", b"data")
    rename_leaving_whiteout(upper, b"/a", b"/b", TWO)
    assert upper.lookup(b"/a") is HIDDEN
    assert upper.base_of(b"/a") == TWO
    assert Path(os.fsdecode(plain(upper.at(b"/b")))).read_bytes() == b"data"


def test_place_takes_a_whiteouts_place_and_nothing_elses(upper: Upper) -> None:
    put(upper, b"/taken")
    hide(upper, b"/hidden", None)
    for path, placed in ((b"/taken", False), (b"/hidden", True), (b"/free", True)):
        work_path = upper.new()
        Path(os.fsdecode(plain(work_path))).write_bytes(b"new")
        assert upper.place(work_path, path) is placed
        assert work_path.exists() is not placed


def test_a_base_belongs_to_one_path(upper: Upper) -> None:
    put(upper, b"/f")
    upper_path = upper.at(b"/f")
    set_base(upper_path, b"/f", ONE)
    set_base(upper_path, b"/g", TWO)
    assert base_version(upper_path, b"/f") == ONE
    assert base_version(upper_path, b"/g") == TWO
    assert base_version(upper_path, b"/h") is None
    set_base(upper_path, b"/f", TWO)
    assert base_version(upper_path, b"/f") == TWO
    for number in range(100):  # of many, the newest stay
        set_base(upper_path, b"/%d" % number, ONE)
    assert base_version(upper_path, b"/99") == ONE


def test_what_went_with_the_folders_above_it_is_hidden(upper: Upper) -> None:
    assert hide_missing(upper, b"/a/b/c", ONE) == b"/a"
    assert is_removed(upper.at(b"/a"))
    assert is_removed(upper.at(b"/a/b"))
    assert is_whiteout(upper.at(b"/a/b/c").lstat())
    assert upper.base_of(b"/a/b/c") == ONE
    assert hide_missing(upper, b"/a/b/c", ONE) is None
    upper.at(b"/here").mkdir(0o755)
    assert hide_missing(upper, b"/here/d", None, directory=True) == b"/here/d"
    assert is_removed(upper.at(b"/here/d"))


def test_what_went_below_a_file_is_put_aside(upper: Upper) -> None:
    put(upper, b"/d")  # a file, where a folder was
    assert hide_missing(upper, b"/d/e/f", TWO) == b"/d"
    ((where, was),) = pending_removals(upper)
    assert was == b"/d"
    assert is_whiteout((where / b"e" / b"f").lstat())
    assert base_version(where / b"e" / b"f", b"/d/e/f") == TWO


def test_put_away_makes_room(upper: Upper) -> None:
    upper.at(b"/d").mkdir(0o755)
    upper.mark_removed(b"/d")
    hide(upper, b"/d/x", ONE)
    set_base(upper.at(b"/d"), b"/d", TWO)
    defer_removal(upper, b"/d")
    assert upper.lookup(b"/d") is HIDDEN
    assert upper.base_of(b"/d") == TWO
    ((where, was),) = pending_removals(upper)
    assert was == b"/d"
    assert base_version(where / b"x", b"/d/x") == ONE


def test_walk_tells_hidden_things_too(upper: Upper) -> None:
    put(upper, b"/a/b/f")
    hide(upper, b"/a/gone", None)
    statuses = dict(upper.walk())
    assert statuses.keys() == {b"/", b"/a", b"/a/b", b"/a/b/f", b"/a/gone"}
    assert stat.S_ISCHR(statuses[b"/a/gone"].st_mode)
    assert dict(upper.walk(b"/a/b")).keys() == {b"/a/b", b"/a/b/f"}
    assert dict(upper.walk(b"/none")) == {}


def test_the_lock_is_between_processes_and_may_be_taken_twice(upper: Upper, tmp_path: Path) -> None:
    code = f"""
import sys
from headrace.overlay.lock import LayerLock
with LayerLock({str(tmp_path / "upper/lock")!r}):
    print('held', flush=True)
    sys.stdin.readline()
print('free', flush=True)
"""
    words = [sys.executable, "-c", code]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdin is not None
    assert other.stdout.readline() == "held\n"
    other.stdin.write("go\n")
    other.stdin.flush()
    with upper.lock, upper.lock:  # waits for the other one
        pass
    assert other.stdout.readline() == "free\n"
    other.wait(60)
    other.stdin.close()
    other.stdout.close()
    upper.lock.close()


LEAVES = """
import os, sys
from headrace.overlay.mark_names import MARKS
from headrace.overlay.upper import Upper
upper = Upper(sys.argv[1])
new = lambda: upper.work.path + upper.new().path
open(new(), "wb").close()
os.mkdir(new())
was = new()
os.mkdir(was)
os.setxattr(was, "trusted.headrace.path", b"/removed")
os.makedirs(new() + b"/of/a/folder")
os.mknod(new(), 0o020000, 0)
moving = new()
os.makedirs(moving + b"/deep")
os.setxattr(moving, MARKS.moving, b"/target")
lost = new()
os.mkdir(lost)
os.setxattr(lost, MARKS.moving, b"/no/such/parent")
print(os.path.basename(lost).decode())
"""


@pytest.mark.expected_warnings("a directory that was being renamed can't be moved")
@pytest.mark.parametrize("uptime_s", [60, workdir.FOREIGN_ORPHAN_AGE_S + 1])
def test_what_a_dead_process_left_in_work_goes(
    upper: Upper, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, uptime_s: float
) -> None:
    """A name of an unknown kind may be of a running process until the machine has run for a day."""
    monkeypatch.setattr(boot_clock, "now_s", lambda: uptime_s)
    done = subprocess.run(
        [sys.executable, "-c", LEAVES, os.fsdecode(os.path.dirname(upper.work.path))],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    mine = plain(upper.new())
    os.close(os.open(mine, os.O_CREAT | os.O_WRONLY))
    foreign = upper.work.path + b"/another-naming"
    os.close(os.open(foreign, os.O_CREAT | os.O_WRONLY))
    assert clear_work(upper) == [b"/target"]
    assert upper.at(b"/target").names() == [b"deep"]
    assert upper.at(b"/target").listxattr() == []
    left = {os.path.basename(mine), os.fsencode(done.stdout.strip())}
    if uptime_s < workdir.FOREIGN_ORPHAN_AGE_S:
        left.add(os.path.basename(foreign))
    assert set(os.listdir(upper.work.path)) == left
    assert "can't be moved to its new name" in caplog.text
    assert [where for _, where in pending_removals(upper)] == [b"/removed"]
    assert clear_work(upper) == []


@pytest.mark.expected_warnings("an entry of a dead process can't be read")
@pytest.mark.parametrize("why", [errno.EMFILE, errno.ENOMEM, errno.EIO])
def test_a_directory_that_was_being_renamed_stays_while_its_mark_is_not_readable(
    upper: Upper, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    """It would be deleted with everything in it, as if it were garbage. The others go on."""
    moving, garbage = upper.new(), upper.new()
    os.makedirs(plain(moving) + b"/within")
    moving.setxattr(MARKS.moving, b"/target")
    garbage.mkdir(0o755)
    getxattr = SafePath.getxattr

    def fail(path: SafePath, attribute: str | bytes) -> bytes:
        if path.path == moving.path:
            raise OSError(why, os.strerror(why))
        return getxattr(path, attribute)

    monkeypatch.setattr(workdir, "is_orphaned", lambda name: True)
    with monkeypatch.context() as patches:
        patches.setattr(SafePath, "getxattr", fail)
        assert clear_work(upper) == []
    assert os.listdir(upper.work.path) == [os.path.basename(plain(moving))]
    assert clear_work(upper) == [b"/target"]
    assert upper.at(b"/target").names() == [b"within"]


@pytest.mark.parametrize("why", [errno.EMFILE, errno.EIO])
def test_a_mode_that_cannot_be_read_is_no_other_mode(
    upper: Upper, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    """A chmod would make a fifo of a device for ever, and drop the bits of a program."""
    device, program = upper.at(b"/null"), upper.at(b"/program")
    make_device(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    put(upper, b"/program")
    give_mode(program, 0o4755)
    put(upper, b"/plain")
    before = {path: dict(upper.walk(path)) for path in (b"/null", b"/program")}
    with monkeypatch.context() as patches:
        FailingMarks(patches, b"", why)
        for path in before:
            with pytest.raises(OSError, match=os.strerror(why)):
                upper.lookup(path)
        for file in (device, program):
            with pytest.raises(OSError, match=os.strerror(why)):
                give_mode(file, 0o600)
        unread: dict[bytes, OSError] = {}
        assert [path for path, _ in upper.walk(unread=unread)] == [b"/", b"/plain"]
        assert set(unread) == {b"/null", b"/program"}
    assert {path: dict(upper.walk(path)) for path in before} == before


@pytest.mark.parametrize("there", ["nothing", "whiteout", "removed", "empty"])
def test_a_folder_of_work_comes_to_its_place(upper: Upper, there: str) -> None:
    target = plain(upper.at(b"/target"))
    if there == "whiteout":
        hide(upper, b"/target", None)
    elif there != "nothing":
        os.mkdir(target)
        os.setxattr(target, MARKS.moving, b"/elsewhere")  # of how it came there
        hide(upper, b"/target/hidden", None)
        if there == "removed":
            upper.mark_removed(b"/target")
    moving = upper.new()
    os.makedirs(plain(moving) + b"/within")
    moving.setxattr(MARKS.moving, b"/target")
    move_in(upper, moving, b"/target")
    assert os.listdir(target) == [b"within"]
    assert os.listxattr(target) == []
    assert os.listdir(upper.work.path) == []


@pytest.mark.parametrize("there", ["file", "folder"])
def test_a_folder_of_work_replaces_nothing_that_shows(upper: Upper, there: str) -> None:
    target = plain(upper.at(b"/target"))
    os.mkdir(target)
    Path(os.fsdecode(target), "one").write_bytes(b"theirs")
    if there == "file":
        os.rename(target + b"/one", target + b"/../one")
        os.rmdir(target)
        os.rename(plain(upper.at(b"/one")), target)
    moving = upper.new()
    moving.mkdir(0o755)
    with pytest.raises(FileExistsError):
        move_in(upper, moving, b"/target")
    assert moving.is_directory()
    assert Path(os.fsdecode(target if there == "file" else target + b"/one")).read_bytes() == b"theirs"


def test_a_killed_parent_of_nobody_is_dead_before_it_is_waited_for(upper: Upper) -> None:
    folder = os.path.dirname(upper.work.path)
    code = f"from headrace.overlay.upper import Upper; Upper({folder!r}.decode()).new().open(65)"
    process = subprocess.Popen([sys.executable, "-c", code])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert len(os.listdir(upper.work.path)) == 1
    clear_work(upper)
    assert os.listdir(upper.work.path) == []
    process.wait(60)


def test_a_child_that_was_forked_has_names_of_its_own(upper: Upper) -> None:
    mine = upper.new()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, upper.new().path)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    theirs = os.read(read, 4096)
    os.close(read)
    os.close(write)
    assert theirs.rpartition(b"-")[0] != mine.path.rpartition(b"-")[0]
