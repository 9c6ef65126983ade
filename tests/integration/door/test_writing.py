"""Writing by `headrace://`: whole or not at all, seen by the mount, and at the origin."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from headrace.base.errors import NotSupportedError, ReadOnlyError
from headrace.vfs.local_vfs import LocalVfs
from tests.fork_server import ForkingPopen
from tests.integration.door.conftest import MakeDoor, Writer, left_in_work, settled, tree_of, wait_until

pytestmark = pytest.mark.timeout(120)


def seen_by(fs: Any) -> dict[str, str]:
    """Return what tree_of returns, through the door."""
    files = {}
    for path, about in fs.find("/", withdirs=True, detail=True).items():
        if path != "/":
            files[path[1:]] = "dir" if about["type"] == "directory" else fs.cat(path).hex()
    return files


@pytest.mark.fuse
def test_door_and_mount_of_a_host_see_each_other(make_door: MakeDoor) -> None:
    host, fs = make_door(mounted=True, write="back")
    mount = Writer(host.mount)
    fs.pipe("/out/new", b"by the door")
    fs.mv("/folder/small", "/out/small")
    fs.mv("/folder/deeper", "/out/deeper")
    fs.rm("/one")
    with fs.open("/more", "ab") as stream:
        stream.write(b"behind")
    assert mount.tree() == seen_by(fs)
    assert mount.run("print(open('out/new').read())") == "by the door\n"
    mount.run(
        "os.rename('out/new', 'out/newer'); os.mkdir('made'); open('made/x', 'w').write('by the mount')"
    )
    mount.run("os.remove('block'); os.symlink('newer', 'out/link')")
    assert fs.cat("/made/x") == b"by the mount"
    assert fs.cat("/out/link") == b"by the door"
    assert fs.info("/out/link")["islink"]
    assert fs.info("/out/link")["size"] == 11
    assert not fs.exists("/block")
    fs.rm("/out/link")
    assert fs.cat("/out/newer") == b"by the door"
    assert mount.tree() == seen_by(fs)
    settled(host)
    assert tree_of(host.truth) == seen_by(fs)


@pytest.mark.fuse
def test_a_name_that_the_mount_believes_absent_or_other_is_corrected(make_door: MakeDoor) -> None:
    """The session is told by the node; the kernel's belief would end by itself after a second, too."""
    host, fs = make_door(mounted=True, write="local")
    watch = Writer(host.mount).start(
        """
import time
for line in sys.stdin:
    name, wanted = line.split()
    while True:
        try:
            text = open(name).read()
        except FileNotFoundError:
            text = "-"
        if text == wanted:
            break
        time.sleep(0.001)
    print("seen")
"""
    )
    assert watch.stdin is not None
    assert watch.stdout is not None

    def look(name: str, wanted: str) -> str:
        assert watch.stdin is not None
        assert watch.stdout is not None
        watch.stdin.write(f"{name} {wanted}\n")
        watch.stdin.flush()
        return watch.stdout.readline()

    try:
        for number in range(5):
            assert look("new", "-" if number == 0 else f"bytes{number - 1}") == "seen\n"
            fs.pipe("/new", f"bytes{number}".encode())
            assert look("new", f"bytes{number}") == "seen\n"
        fs.rm("/new")
        assert look("new", "-") == "seen\n"
    finally:
        watch.stdin.close()
        assert watch.wait(60) == 0


def test_a_file_is_there_whole_when_it_is_closed(make_door: MakeDoor) -> None:
    host, fs = make_door(write="back")
    data = random.Random(1).randbytes(3 << 20)
    with fs.open("/deep/new/file", "wb") as stream:
        stream.write(data)
        stream.flush()
        assert not fs.exists("/deep")
    assert fs.cat("/deep/new/file") == data
    with fs.open("/small") as before, fs.open("/small", "wb") as stream:
        stream.write(b"other")
        stream.flush()
        assert fs.cat("/small") == (host.truth / "small").read_bytes()
        stream.close()
        assert fs.cat("/small") == b"other"
        assert before.read() == (host.truth / "small").read_bytes()
    assert left_in_work(host) == []
    settled(host)
    assert tree_of(host.truth) == seen_by(fs)


def break_off(opened: Any, piece: Any) -> None:
    with pytest.raises(KeyError), opened as stream:
        stream.write(piece * 300_000)
        raise KeyError


def test_a_write_that_an_exception_ends_leaves_nothing(make_door: MakeDoor) -> None:
    host, fs = make_door(write="back")
    before = seen_by(fs)
    break_off(fs.open("/deep/new", "wb"), b"x")  # fsspec.open would make the folder, beforehand
    break_off(fs.open("/deep/new", "w"), "x")
    for path in ("/new", "/small"):
        break_off(fs.open(path, "wb"), b"x")
        break_off(fs.open(path, "w"), "x")
        break_off(fs.open(path, "ab"), b"x")
        break_off(fsspec.open(f"headrace://{path}", "wb"), b"x")
        break_off(fsspec.open(f"headrace://{path}", "wt"), "x")
        break_off(fsspec.open(f"headrace://{path}", "wb", compression="gzip"), b"x")
    with pytest.raises(KeyError), fs.transaction:
        fs.pipe("/new", b"x")
        raise KeyError
    assert seen_by(fs) == before
    assert left_in_work(host) == []
    settled(host)
    assert tree_of(host.truth) == before
    try:  # an exception that has nothing to do with the file
        raise KeyError
    except KeyError:
        with fsspec.open("headrace:///after", "w") as stream:
            stream.write("said")
    with fsspec.open("headrace:///zipped", "wt", compression="gzip") as stream:
        stream.write("said")
    with fs.transaction:
        fs.pipe("/together", b"x")
        assert not fs.exists("/together")
    with fsspec.open("headrace:///zipped", "rt", compression="gzip") as stream:
        assert (fs.cat("/after"), stream.read(), fs.cat("/together")) == (b"said", "said", b"x")


@pytest.mark.parametrize("nameless", [True, False])
def test_of_a_killed_writer_nothing_is_seen(
    make_door: MakeDoor, nameless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nameless: the file system has files without names (O_TMPFILE); else what was begun lies in `work`."""
    host, fs = make_door(write="back")
    before = seen_by(fs)
    code = """
import os, sys, fsspec
if sys.argv[1] == "False":
    os.O_TMPFILE = 0
stream = fsspec.open("headrace:///new", "wb").open()
stream.write(b"x" * 3_000_000)
stream.flush()
print("ready", flush=True)
sys.stdin.read()
"""
    program: subprocess.Popen[bytes] = ForkingPopen(
        [sys.executable, "-c", code, str(nameless)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with program as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
    assert seen_by(fs) == before
    assert len(left_in_work(host)) == (0 if nameless else 1)
    if not nameless:
        monkeypatch.setattr(os, "O_TMPFILE", 0)
        fs.pipe("/new", b"x")
        assert fs.cat("/new") == b"x"
        assert len(left_in_work(host)) == 1


def test_exclusive_loses_also_at_the_end(make_door: MakeDoor) -> None:
    host, fs = make_door(write="back")
    with pytest.raises(FileExistsError):
        fs.open("/small", "xb")
    with pytest.raises(FileExistsError, match=r"^/new: "), fs.open("/new", "xb") as stream:
        stream.write(b"late")
        fs.pipe("/new", b"first")
    host.put("come", 10)
    host.ok("sync", "/")
    with pytest.raises(FileExistsError):
        fs.pipe_file("/come", b"x", mode="create")
    assert (fs.cat("/new"), fs.cat("/come")) == (b"first", (host.truth / "come").read_bytes())
    assert left_in_work(host) == []


def test_in_mode_through_the_origin_has_it_when_the_call_returns(make_door: MakeDoor) -> None:
    host, fs = make_door(write="through")
    fs.pipe({f"/out/{number}": b"%d" % number for number in range(20)})
    assert tree_of(host.truth) == seen_by(fs)
    steps: list[Callable[[], object]] = [
        lambda: fs.pipe("/small", b"other"),
        lambda: fs.mv("/out/1", "/out/renamed"),
        lambda: fs.mv("/folder/deeper", "/moved"),
        lambda: fs.rm("/out/2"),
        lambda: fs.rm("/folder", recursive=True),
        lambda: fs.cp("/out/", "/copied", recursive=True),
        lambda: fs.mkdir("/made"),
        lambda: fs.put(str(host.base / "config.toml"), "/made/put"),
        lambda: fs.open("/out/3", "ab").__exit__(None, None, None),
    ]
    for step in steps:
        step()
        assert tree_of(host.truth) == seen_by(fs)
    with fs.open("/out/3", "ab") as stream:
        stream.write(b" and more")
    assert (host.truth / "out/3").read_bytes() == b"3 and more"


@pytest.mark.fuse
def test_a_node_that_is_started_again_is_waited_for(make_door: MakeDoor) -> None:
    host, fs = make_door(mounted=True, write="through")
    assert fs.exists("/small")
    for number in range(3):
        killed = host.kill("node")
        fs.pipe(f"/out/{number}", b"%d" % number)
        assert (host.truth / f"out/{number}").read_bytes() == b"%d" % number
        assert fs.cat("/large.tar") == (host.truth / "large.tar").read_bytes()
        host.wait_pid("node", other_than=killed)
    assert fs.find("/out") == [f"/out/{number}" for number in range(3)]


def test_renames_move_no_bytes(make_door: MakeDoor) -> None:
    host, fs = make_door(write="back")
    tree = host.cache / "upper/tree"
    fs.pipe("/a/file", b"x" * 100_000)
    inode = (tree / "a/file").stat().st_ino
    fs.mv("/a/file", "/a/other")
    fs.mv("/a", "/b")
    fs.mv("/b/other", "/small")  # over one of the origin's
    assert (tree / "small").stat().st_ino == inode
    fs.mv("/small", "/folder")  # into it
    assert (tree / "folder/small").stat().st_ino == inode
    fs.mv("/folder/*", "/many/")
    assert fs.ls("/folder") == []
    assert fs.cat("/many/small") == b"x" * 100_000
    with pytest.raises(FileNotFoundError):
        fs.mv("/nothing", "/other/b")
    assert not fs.exists("/other")
    for path in ("/more/new", "/b/more", "/many/small/new/er"):
        fs.pipe("/b/more", b"x")
        with pytest.raises((NotADirectoryError, FileNotFoundError)):
            fs.pipe(f"{path}/new", b"x")
    fs.mv("/b", "headrace:///b/")
    before = seen_by(fs)
    calls: list[Callable[[], object]] = [
        lambda: fs.rm("/", recursive=True),
        lambda: fs.rmdir("/"),
        lambda: fs.mv("/", "/b"),
    ]
    for call in calls:
        with pytest.raises(NotSupportedError, match="the root can't be removed"):
            call()
    assert seen_by(fs) == before
    settled(host)
    assert tree_of(host.truth) == seen_by(fs)


def test_what_is_appended_stays_behind_what_was_there(make_door: MakeDoor) -> None:
    host, fs = make_door(write="back")
    small = (host.truth / "small").read_bytes()
    with fs.open("/small", "ab") as stream:
        assert stream.tell() == len(small)
        stream.write(b"first ")
    with fs.open("/log", "ab") as appender, fs.open("/log", "ab") as other:
        for number in range(50):
            for stream, name in ((appender, b"one"), (other, b"other")):
                stream.write(b"%s %d\n" % (name, number))
                stream.flush()
    assert fs.cat("/small") == small + b"first "
    lines = fs.cat("/log").splitlines()
    assert lines == [b"%s %d" % (name, number) for number in range(50) for name in (b"one", b"other")]
    with pytest.raises(KeyError), fs.open("/log", "ab") as appender:
        appender.write(b"is not cut off\n")
        appender.flush()
        with fs.open("/log", "ab") as other:
            other.write(b"of somebody else\n")
        raise KeyError
    assert fs.cat("/log").splitlines()[100:] == [b"is not cut off", b"of somebody else"]
    with pytest.raises(KeyError), fs.open("/log", "ab") as appender:
        with fs.open("/log", "ab") as other:
            other.write(b"of somebody before\n")
        appender.write(b"is not cut off, either\n")
        appender.flush()
        raise KeyError
    assert fs.cat("/log").splitlines()[102:] == [b"of somebody before", b"is not cut off, either"]
    with pytest.raises(KeyError), fs.open("/log", "ab") as appender:
        appender.write(b"is cut off")
        appender.flush()
        raise KeyError
    assert len(fs.cat("/log").splitlines()) == 104
    settled(host)
    assert tree_of(host.truth) == seen_by(fs)


def test_a_descriptor_has_all_bytes_to_be_synced(make_door: MakeDoor) -> None:
    _, fs = make_door(write="back")
    with fs.open("/new", "wb") as stream:
        stream.write(b"not flushed by hand")
        os.fsync(stream.fileno())
        assert os.fstat(stream.fileno()).st_size == 19
    assert fs.cat("/new") == b"not flushed by hand"


def test_a_program_that_ends_has_told_the_node(make_door: MakeDoor) -> None:
    """By itself the node would look in half a minute."""
    host, _ = make_door(write="back", persist_delay_s=0.1)
    code = """
import fsspec
fs = fsspec.filesystem("headrace")
for number in range(300):
    fs.pipe(f"/out/{number}", b"%d" % number)
never_closed = fs.open("/late", "wb")
never_closed.write(b"late")
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0
    expected = {str(number): (b"%d" % number).hex() for number in range(300)}
    wait_until(lambda: tree_of(host.truth / "out") == expected, 20)
    host.ok("persist", "/")
    assert (host.truth / "late").read_bytes() == b"late"


def test_many_writers_and_readers_at_once(make_door: MakeDoor) -> None:
    """Threads of this process and others; a file is one writer's, or another's, never a mixture."""
    host, fs = make_door(write="back")

    def work(number: int, door: Any) -> None:
        for turn in range(15):
            door.pipe(f"/many/{number}/{turn}", b"%d %d" % (number, turn))
            door.pipe("/many/shared", b"%d" % number * 100_000)
            body = door.cat("/many/shared")
            assert len(body) == 100_000
            assert len(set(body)) == 1
            door.mv(f"/many/{number}/{turn}", f"/many/moved-{number}-{turn}")

    def child(number: int) -> None:
        work(number, fs)
        os._exit(0)

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=child, args=(number,)) for number in (7, 8)]
    for process in processes:
        process.start()
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number, fs)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for process in processes:
        process.join(60)
    assert ([process.exitcode for process in processes], failed) == ([0, 0], [])
    expected = {
        f"/many/moved-{number}-{turn}": b"%d %d" % (number, turn)
        for number in (0, 1, 2, 3, 7, 8)
        for turn in range(15)
    }
    files = fs.cat("/many", recursive=True)
    del files["/many/shared"]
    assert files == expected
    settled(host)
    assert tree_of(host.truth) == seen_by(fs)


def test_a_forked_child_does_not_end_its_parents_file(make_door: MakeDoor) -> None:
    _, fs = make_door(write="local")
    stream = fs.open("/new", "wb")
    stream.write(b"first ")
    stream.flush()
    child = os.fork()
    if child == 0:
        stream.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not fs.exists("/new")
    stream.write(b"second")
    stream.close()
    assert fs.cat("/new") == b"first second"


def test_modes_are_of_paths(make_door: MakeDoor) -> None:
    host, fs = make_door(write="off,/folder/deeper=local,/scratch=back")
    fs.pipe("/scratch/new", b"x")
    fs.pipe("/folder/deeper/new", b"y")
    assert fs.ls("/folder", detail=False) == [
        f"/folder/{name}" for name in ("block", "deeper", "empty", "more", "one", "small")
    ]
    assert "/folder" in fs.ls("/", detail=False)
    assert fs.cat("/folder/deeper/", recursive=True) == {
        "/folder/deeper/new": b"y",
        "/folder/deeper/still/file": (host.truth / "folder/deeper/still/file").read_bytes(),
    }
    with pytest.raises(ReadOnlyError):
        fs.pipe("/folder/new", b"x")
    with pytest.raises(NotSupportedError, match=r"^/scratch/new: .*copy it"):
        fs.mv("/scratch/new", "/folder/deeper/x")
    settled(host)
    wait_until(lambda: (host.truth / "scratch/new").exists())
    assert not (host.truth / "folder/deeper/new").exists()


@pytest.mark.fuse
def test_a_folder_above_one_that_can_be_written_is_listed(make_door: MakeDoor) -> None:
    host, fs = make_door(mounted=True, write="off,/folder/deeper=local")
    listed = Writer(host.mount).run(
        "print(json.dumps([sorted(os.listdir(folder)) for folder in ('.', 'folder')]))"
    )
    truth = [host.truth, host.truth / "folder"]
    assert json.loads(listed) == [sorted(entry.name for entry in folder.iterdir()) for folder in truth]
    assert [path.removeprefix("/") for path in fs.ls("/", detail=False)] == json.loads(listed)[0]


def test_links_out_of_the_namespace_are_refused(make_door: MakeDoor, tmp_path: Path) -> None:
    host, fs = make_door(write="local")
    fs.pipe("/a/b/file", b"x")
    (tmp_path / "outside").write_bytes(b"secret")
    tree = host.cache / "upper/tree"
    links = {"up": "../../small", "around": "../b/around", "out": str(tmp_path), "above": "../../../../small"}
    for name, target in links.items():
        (tree / "a/b" / name).symlink_to(target)
    assert fs.cat("/a/b/up") == (host.truth / "small").read_bytes()
    assert fs.cat("/a/b/above") == (host.truth / "small").read_bytes()
    for path in ("/a/b/out/outside", "/a/b/around"):
        with pytest.raises(NotSupportedError, match="symbolic link"):
            fs.cat(path)
    assert {row["name"][5:]: row["type"] for row in fs.ls("/a/b")} == {
        "above": "file",
        "around": "other",
        "file": "file",
        "out": "other",
        "up": "file",
    }
    fs.pipe("/a/b/up", b"through the link")
    assert fs.cat("/small") == b"through the link"
    assert os.readlink(tree / "a/b/up") == "../../small"


def test_a_replaced_file_keeps_mode_and_owner(make_door: MakeDoor) -> None:
    host, fs = make_door(write="local")
    fs.pipe("/new", b"x")
    path = host.cache / "upper/tree/new"
    umask = LocalVfs(fs._vfs.client)._umask
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
    path.chmod(0o640)
    os.chown(path, 1234, 2345)
    fs.pipe("/new", b"y")
    stat = path.stat()
    assert (stat.st_mode & 0o7777, stat.st_uid, stat.st_gid) == (0o640, 1234, 2345)
    fs.mkdir("/folder2")
    assert (host.cache / "upper/tree/folder2").stat().st_mode & 0o777 == 0o777 & ~umask
