"""`--write /scratch=local,exclusive`: the kernel serves the directory from the upper layer, without a session."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from headrace.base.mount_table import MountTableRow, mount_table
from tests.integration.cli.host import Host, wait_until
from tests.integration.persist.conftest import Writer

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(120)]

MODES = "off,/scratch=local,exclusive"
EXERCISE = """
import fcntl, mmap, stat
os.makedirs('a/b')
open('a/b/f', 'wb').write(b'x' * 110_000)
os.rename('a/b', 'c')
os.link('c/f', 'g')
os.symlink('/etc/passwd', 'link')
os.mkfifo('fifo')
with open('g', 'r+b') as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    with mmap.mmap(file.fileno(), 0) as view:
        view[:5] = b'hello'
    os.posix_fallocate(file.fileno(), 0, 1 << 20)
with open('sparse', 'wb') as file:
    os.truncate(file.fileno(), 1 << 20)
    print(os.lseek(file.fileno(), 0, os.SEEK_HOLE), os.lseek(file.fileno(), 0, os.SEEK_END))
os.setxattr('g', 'user.mine', b'1')
print(open('c/f', 'rb').read(8).decode(), os.stat('g').st_nlink, os.getxattr('g', 'user.mine').decode())
os.unlink('g')
os.rmdir('a')
print(sorted(os.listdir('.')))
"""


def test_programs_use_it_as_the_local_file_system(host: Host) -> None:
    host.up(host.truth, host.mount, "--write", MODES)
    assert Writer(host.mount / "scratch").run(EXERCISE).splitlines() == [
        "0 1048576",
        "helloxxx 2 1",
        "['c', 'fifo', 'link', 'sparse']",
    ]
    row = _row(host)
    assert (row.kind, row.root.endswith("/upper/tree/scratch")) == (_kind_of(host.cache), True)
    host.assert_right()
    assert not (host.truth / "scratch").exists()
    host.ok("down")
    host.assert_nothing_left()
    assert _rows(host) == []


def test_changes_of_its_name_at_the_origin_unmount_nothing(host: Host) -> None:
    """The origin gets a directory of that name, and loses it. Programs write meanwhile."""
    up = host.up(host.truth, host.mount, "--write", MODES)
    mounted = _row(host)
    for turn in range(2):
        host.put("scratch/of-the-origin", 10)
        host.ok("sync", "/")
        assert Writer(host.mount / "scratch").run(f"open('{turn}', 'w').write('x')") == ""
        shutil.rmtree(host.truth / "scratch")
        host.ok("sync", "/")
        assert Writer(host.mount / "scratch").run(f"open('again{turn}', 'w').write('x')") == ""
    assert _row(host) == mounted
    assert "unmounted" not in up.said
    assert sorted(os.listdir(host.mount / "scratch")) == ["0", "1", "again0", "again1"]


def test_what_was_written_is_there_after_a_restart(host: Host) -> None:
    host.up(host.truth, host.mount, "--write", MODES)
    Writer(host.mount / "scratch").run("open('f', 'w').write('kept'); os.mkdir('d'); os.chmod('d', 0o700)")
    host.ok("down")
    host.up(host.truth, host.mount, "--write", MODES)
    scratch = Writer(host.mount / "scratch")
    assert scratch.run("print(open('f').read(), oct(os.stat('d').st_mode))") == "kept 0o40700\n"


def test_it_works_while_node_and_session_are_dead(host: Host) -> None:
    """The kernel needs neither for the directory itself; a path to it needs the session, which starts again."""
    host.up(host.truth, host.mount, "--write", MODES)
    writer = Writer(host.mount / "scratch").start(
        "print('begun'); sys.stdin.readline(); open('f', 'w').write('written'); print(open('f').read())"
    )
    assert writer.stdin is not None and writer.stdout is not None
    assert (
        writer.stdout.readline() == "begun\n"
    )  # an interpreter that starts looks up the path of its directory
    for role in ("node", "session"):
        host.kill(role, signal.SIGSTOP)
    writer.stdin.write("\n")
    writer.stdin.flush()
    assert writer.stdout.readline() == "written\n"
    assert writer.wait() == 0
    for role in ("node", "session", "holder"):
        pid = host.kill(role)
        host.wait_pid(role, other_than=pid)
    wait_until(lambda: Writer(host.mount / "scratch").run("print(open('f').read())") == "written\n")
    host.assert_right()


def test_everything_killed_and_started_again(host: Host) -> None:
    for number in range(3):
        host.up(host.truth, host.mount, "--write", MODES)
        scratch = Writer(host.mount / "scratch")
        scratch.run(f"open('f{number}', 'w').write('{number}'); os.sync()")
        expected = [f"f{earlier}" for earlier in range(number + 1)]
        assert scratch.run("print(sorted(os.listdir('.')))") == f"{expected}\n"
        host.kill_all()


def test_a_mount_that_was_lost_comes_back(host: Host) -> None:
    up = host.up(host.truth, host.mount, "--write", MODES)
    Writer(host.mount / "scratch").run("open('f', 'w').write('kept')")
    os.system(f"umount -l {host.mount}/scratch")
    writer = Writer(host.mount)
    refused = "try: open('scratch/f', 'r+')\nexcept OSError as error: print(error.errno)"
    assert writer.run(refused) in ("30\n", "")
    wait_until(lambda: len(_rows(host)) == 1)
    wait_until(
        lambda: "it is mounted again" in up.said, hint=lambda: up.said
    )  # it is mounted first, then told
    assert writer.run("print(open('scratch/f').read())") == "kept\n"


def test_other_ways_to_write_are_refused(host: Host) -> None:
    host.up(host.truth, host.mount, "--write", "back,/scratch=local,exclusive")
    Writer(host.mount / "scratch").run("os.mkdir('d'); open('d/f', 'w').write('kept')")
    (host.base / "mnt2").mkdir()
    with_fuse = host.start("fuse", host.base / "mnt2")
    with_fuse.wait_ready()
    assert len(_rows(host, "mnt2")) == 1
    os.system(f"umount -l {host.base}/mnt2/scratch")
    other = Writer(host.base / "mnt2")
    changes = (
        "open('scratch/new', 'w')", "open('scratch/d/f', 'r+')", "open('scratch/d/f', 'a')",
        "os.truncate('scratch/d/f', 0)", "os.unlink('scratch/d/f')", "os.rmdir('scratch/d')",
        "os.mkdir('scratch/e')", "os.rename('scratch/d/f', 'scratch/g')", "os.chmod('scratch/d/f', 0)",
        "os.utime('scratch/d/f')", "os.setxattr('scratch/d/f', 'user.a', b'')", "os.link('scratch/d/f', 'scratch/g')",
        "os.symlink('x', 'scratch/l')", "os.mkfifo('scratch/p')", "os.rename('images', 'scratch/images')",
    )  # fmt: skip
    code = "".join(
        f"try: {change}; print({change!r})\n"
        f"except OSError as error: assert error.errno in (errno.EROFS, errno.EXDEV), error\n"
        for change in changes
    )
    begun_s = time.monotonic()
    said = other.run(code)
    assert said == "" or time.monotonic() - begun_s > 0.5, said  # until it is mounted again
    assert Writer(host.mount / "scratch").run("print(open('d/f').read())") == "kept\n"


@pytest.mark.expected_warnings("node did not start")
def test_names_of_the_origin_are_never_missing(host: Host) -> None:
    host.put("scratch/theirs", 10)
    refused = host.headrace("up", host.truth, host.mount, "--cache", f"{host.cache}:1GiB", "--write", MODES)
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) <= 2
    assert (
        "the origin has 1 names there that this node did not write, /scratch/theirs among them"
        in refused.stderr
    )
    host.assert_nothing_left()


def test_markers_of_another_mode_are_not_shown(host: Host) -> None:
    host.put("scratch/theirs", 10)
    host.up(host.truth, host.mount, "--write", "off,/scratch=local")
    Writer(host.mount).run("os.unlink('scratch/theirs'); open('scratch/ours', 'w').write('kept')")
    host.ok("down")
    (host.truth / "scratch/theirs").unlink()
    host.up(host.truth, host.mount, "--write", MODES)
    assert Writer(host.mount / "scratch").run("print(os.listdir('.'))") == "['ours']\n"


def test_users_gain_nothing_by_what_they_put_there(host: Host) -> None:
    host.up(host.truth, host.mount, "--write", MODES)
    options = _options(host.mount / "scratch")
    assert {"nosuid", "nodev"} <= options


@pytest.mark.parametrize(("modes", "why"), [
    ("local,exclusive", "it is for one directory"),
    ("/a=back:2,exclusive", "no close can wait"),
    ("/a=through,exclusive", "no close can wait"),
    ("/a=off,exclusive", "no close can wait"),
    ("/a=local,exclusive,/a/b=back", "it lies in the exclusive directory /a"),
])  # fmt: skip
def test_modes_that_cannot_be_are_refused_in_one_line(host: Host, modes: str, why: str) -> None:
    refused = host.headrace("up", host.truth, host.mount, "--cache", f"{host.cache}:1GiB", "--write", modes)
    assert refused.returncode == 2 and why in refused.stderr
    host.assert_nothing_left()


def _rows(host: Host, mount: str = "mnt") -> list[MountTableRow]:
    return [row for row in mount_table() if row.mountpoint.startswith(f"{host.base}/{mount}/")]


def _row(host: Host) -> MountTableRow:
    (row,) = _rows(host)
    return row


def _kind_of(folder: Path) -> str:
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    return next(row.kind for row in mount_table() if row.device == number)


def _options(place: Path) -> set[str]:
    """Return the options of the mount itself, which the sixth field has."""
    rows = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return set(next(row[5] for row in rows if row[4] == str(place)).split(","))
