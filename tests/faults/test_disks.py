"""Disks that answer EIO, go read-only or fill up under a running node: clear errors, right bytes, and it mends.

The cache files lie on an ext4 of their own, which the kernel shuts down (FS_IOC_SHUTDOWN) or whose device loses its
sectors (a loop file cut short): no stand-in. The index is on the good disk, but for the last test.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.store.block_map import BlockMap
from tests.faults.conftest import MakeDisk, MakeHost, run
from tests.integration.cli.host import MIB, Host, wait_until

DYING = (
    "Input/output error",
    "Read-only file system",
    "a cache disk fails",
    "cached file failed its checksum",
    "passthrough refused",
    "request failed",
    "the cache was not synced",
    "the periodic upkeep failed",
)
"""Warnings of a disk that fails. Which of them are logged depends on what the node does at that moment."""
pytestmark = [pytest.mark.fuse, pytest.mark.timeout(60), pytest.mark.expected_warnings(*DYING)]

FAILED = ("EIO", "EROFS", "ENOSPC", "EBADMSG")
"""EBADMSG is how ext4 says that its own metadata does not match its checksum (EFSBADCRC): of an inode that was dropped
from memory and never written, once the file system is shut down."""


@pytest.fixture
def host(make_host: MakeHost) -> Host:
    host = make_host(fill_range_bytes=MIB)
    for number in range(4):
        host.put(f"{number}.tar", 3 * MIB + number)
        host.put(f"small/{number}", 50_000 + number)
    return host


@pytest.mark.expected_warnings("Traceback")
def test_a_disk_that_answers_nothing_but_eio(host: Host, make_disk: MakeDisk) -> None:
    disk = make_disk(host.cache / "files", f"ext4:{64 * MIB}")
    up = host.up()
    host.ok("load", "/0.tar")
    disk.break_down()
    errors_only(host)
    done = host.headrace("load")
    assert done.returncode == 50, done
    assert "/3.tar: " in done.stderr
    assert "Input/output error" in done.stderr
    assert host.status()["node"]["pid"] == up.ready["node_pid"]  # the node lives on
    host.ok("down")
    assert up.wait() == 0
    host.assert_nothing_left()


def test_one_of_two_disks_dies(host: Host, make_disk: MakeDisk) -> None:
    """The other one takes what is read from then on. The dead one would soon be the emptiest."""
    second = host.base / "second"
    disk = make_disk(second, f"ext4:{128 * MIB}")
    second.chmod(0o700)
    up = host.up(host.truth, host.mount, "--cache", f"{host.cache}:64MiB", cache=f"{second}:64MiB")
    host.ok("load", "/0.tar")
    host.ok("load", "/1.tar")
    assert all(row["used_bytes"] for row in host.status()["cache"]["volumes"].values())
    disk.break_down()
    host.assert_right("2.tar", "3.tar", "small/0", "small/1", "small/2", "small/3")
    host.ok("load", "/small")
    logs = [*host.run_folder.glob("*.log")]
    said = f"other disks get its new files folder={second}"
    wait_until(lambda: any(said in path.read_text() for path in logs), hint=lambda: str(logs))
    cache = host.status()["cache"]
    assert cache["volumes"][str(second)]["failures"] > 0
    assert cache["volumes"][str(host.cache)]["failures"] == 0
    host.ok("down")
    assert up.wait() == 0
    host.assert_nothing_left()


def test_a_disk_that_is_not_mounted_is_missed(host: Host, make_disk: MakeDisk) -> None:
    """The node does not start, and nothing is written where the disk belongs; two exchanged ones are noticed, too."""
    second = host.base / "second"
    disk = make_disk(second, f"ext4:{128 * MIB}")
    second.chmod(0o700)
    caches = (f"{host.cache}:64MiB", f"{second}:64MiB")
    up = host.up(host.truth, host.mount, "--cache", caches[0], cache=caches[1])
    host.ok("load")
    host.ok("down")
    assert up.wait() == 0
    exchanged = host.headrace("up", host.truth, host.mount, "--cache", caches[1], "--cache", caches[0])
    assert exchanged.returncode == 21, exchanged
    assert "give the directories in their former order" in exchanged.stderr
    run("umount", second)
    try:
        refused = host.headrace("up", host.truth, host.mount, "--cache", caches[0], "--cache", caches[1])
        assert refused.returncode == 21, refused
        assert refused.stderr.count("\n") == 1, refused
        assert f"its disk is missing: nothing is mounted at {second}" in refused.stderr
        assert list(second.iterdir()) == []
    finally:
        disk.mount()
    up = host.up(host.truth, host.mount, "--cache", caches[0], cache=caches[1])
    host.assert_right()
    host.ok("down")
    assert up.wait() == 0
    host.assert_nothing_left()


def test_bad_sectors_below_cached_files(host: Host, make_disk: MakeDisk) -> None:
    disk = make_disk(host.cache / "files", f"ext4:{64 * MIB}")
    up = host.up()
    host.ok("load")
    host.assert_right()
    host.ok("down")
    up.wait()
    disk.lose_sectors(8 * MIB)
    again = host.start("up", host.truth, host.mount, "--cache", f"{host.cache}:1GiB")
    try:
        again.wait_ready()
    except AssertionError:  # it can't even be opened: one line, and the status of a volume that can't be used
        assert again.wait() == 21, again.said
        assert len(again.said.splitlines()) == 1
        assert str(host.cache) in again.said
    else:
        errors_only(host)
        host.headrace("fsck")
        errors_only(host)
        host.ok("down")
    host.assert_nothing_left()
    host.up(host.truth, host.mount, cache=f"{host.base}/new:1GiB")
    host.assert_right()


def test_a_disk_that_becomes_read_only(host: Host, make_disk: MakeDisk) -> None:
    disk = make_disk(host.cache / "files", f"ext4:{64 * MIB}")
    up = host.up()
    host.ok("load", "/0.tar")
    host.ok("load", "/small")
    disk.remount("ro")
    host.assert_right("0.tar", "small/1")
    row = host.read("1.tar")["1.tar"]
    assert (row["wrong"], row["bytes"]) == (-1, 0)
    assert row["error"] in FAILED
    disk.remount("rw")
    host.assert_right()
    host.ok("down")
    assert up.wait() == 0
    host.assert_nothing_left()


@pytest.mark.expected_warnings(
    "the capacity exceeds the disk",
    "is limited to its disk",
    "a cache disk is full",
    "a cache disk has space again",
)
def test_a_disk_that_others_fill_up_and_clear(host: Host, make_disk: MakeDisk) -> None:
    disk = make_disk(host.cache, "tmpfs:64m")
    up = host.up()
    host.ok("load", "/0.tar")
    ballast = disk.folder / "ballast"
    with ballast.open("wb") as file:
        try:
            while True:
                file.write(bytes(MIB))
                file.flush()
        except OSError as error:
            assert error.errno == errno.ENOSPC
    rows = host.read(*host.names())
    for name, row in rows.items():
        assert row["wrong"] == -1
        assert not row["error"] or row["error"] in FAILED, (name, row)
    ballast.unlink()
    host.assert_right()
    host.ok("load")
    host.assert_right(mode="mmap")
    host.ok("down")
    assert up.wait() == 0
    host.assert_nothing_left()


@pytest.mark.expected_warnings("the capacity exceeds the disk", "is limited to its disk", "Traceback")
def test_index_and_files_on_a_disk_that_dies(host: Host, make_disk: MakeDisk) -> None:
    """All is lost that was cached; what is read is an error or right; `down` ends it; another folder takes over."""
    disk = make_disk(host.cache, f"ext4:{64 * MIB}")
    up = host.up()
    host.ok("load", "/0.tar")
    disk.break_down()
    errors_only(host)
    host.headrace("status")
    host.ok("down")
    wait_until(lambda: up.process.poll() is not None)
    host.assert_nothing_left()
    refused = host.headrace("up", host.truth, host.mount, "--cache", f"{host.cache}:1GiB")
    assert refused.returncode == 21, refused
    assert len(refused.stderr.splitlines()) == 1
    assert str(host.cache) in refused.stderr
    host.up(host.truth, host.mount, cache=f"{host.base}/new:1GiB")
    host.assert_right()


@pytest.mark.timeout(180)
@pytest.mark.expected_warnings("Traceback")
def test_up_stays_when_the_disk_with_the_seals_dies(host: Host, make_disk: MakeDisk) -> None:
    """It looks for new seals once a second, and says once that it can't."""
    disk = make_disk(host.cache / "seals", f"ext4:{64 * MIB}")
    (host.cache / "seals").chmod(0o700)
    up = host.up()
    disk.lose_sectors(0)
    wait_until(lambda: "the seals can't be read" in up.said, 60.0, hint=lambda: up.said)
    session = host.kill("session")
    host.assert_right()
    host.wait_pid("session", other_than=session)
    assert up.said.count("the seals can't be read") == 1
    host.ok("down")
    assert up.wait() == 0
    host.assert_nothing_left()


@pytest.mark.timeout(180)
@pytest.mark.expected_warnings(
    "the seals can't be read", "the remains of seals can't be removed", "Traceback"
)
def test_a_node_starts_again_when_the_disk_with_the_seals_is_dead(host: Host, make_disk: MakeDisk) -> None:
    """Readers wait for it, and nothing else is wrong with the cache."""
    disk = make_disk(host.cache / "seals", f"ext4:{64 * MIB}")
    (host.cache / "seals").chmod(0o700)
    up = host.up()
    host.ok("load", "/0.tar")
    disk.lose_sectors(0)
    wait_until(lambda: "the seals can't be read" in up.said, 60.0, hint=lambda: up.said)
    node = host.kill("node")
    host.wait_pid("node", other_than=node)
    host.assert_right()
    host.ok("down")
    assert up.wait() == 0
    host.assert_nothing_left()


READ_MAP = """
import os, sys
from headrace.store.block_map import BlockMap
fd, size_bytes, inode = map(int, sys.argv[1:])
try:
    BlockMap(fd, size_bytes, inode, writable=False)
except OSError as error:
    print(error.errno)
"""


def test_a_map_on_bad_sectors_is_an_error_and_ends_no_process(make_disk: MakeDisk, tmp_path: Path) -> None:
    disk = make_disk(tmp_path / "disk", f"ext4:{64 * MIB}")
    size_bytes, inode = 5 * MIB, 7
    fd = os.open(disk.folder / "map", os.O_RDWR | os.O_CREAT)
    try:
        BlockMap.initialise(fd, size_bytes, inode)
        os.fsync(fd)
        disk.lose_sectors(0)
        words = [sys.executable, "-c", READ_MAP, str(fd), str(size_bytes), str(inode)]
        done = subprocess.run(words, pass_fds=[fd], capture_output=True, text=True, check=False)
    finally:
        os.close(fd)
    assert (done.returncode, done.stdout) == (0, f"{errno.EIO}\n"), done


def errors_only(host: Host) -> None:
    """Every file is right or fails with a clear errno; what came before the error is right."""
    rows = host.read(*host.names())
    for name in host.names():
        row = rows[name]
        assert row["wrong"] == -1, row
        size = (Path(host.truth) / name).stat().st_size
        assert row["error"] in FAILED or (not row["error"] and row["bytes"] == size), row
