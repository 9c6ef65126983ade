"""A cache disk that writers, or other programs, have filled: nothing acknowledged is lost, and the node starts on it.

The cache lies on an ext4 of its own. What a writer was told is written ("acknowledged": its close returned) is compared
with the origin's bytes in the end. HEADRACE_EXAMPLES is the number of rounds of the kills.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256

import pytest

from headrace.client.discovery import read_states
from tests import fork_server
from tests.faults.conftest import Disk, MakeDisk, MakeHost
from tests.integration.cli.host import MIB, Host, Up, wait_until

FULL = (
    "No space left",
    "a cache disk has space again",
    "a cache disk is full",
    "is limited to its disk",
    "the capacity exceeds the disk",
)
"""Warnings of a disk that is full, or smaller than the capacity of the cache."""
pytestmark = [pytest.mark.fuse, pytest.mark.timeout(240), pytest.mark.expected_warnings(*FULL)]

EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "2"))
DISK_BYTES = 80 * MIB
PYTHON = (sys.executable, "-Puc")
"""A folder of an origin that is away can't be listed, so no module is looked for in the working directory."""
WRITE = """
import errno, os, random, time
chance, count = random.Random({seed}), 0
while True:
    name, size = f"{seed}-{{count:04}}", chance.randrange({most})
    try:
        with open(name, "wb") as file:
            file.write(random.Random(name).randbytes(size))
        print(name, size, flush=True)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            break
        print("full", error.errno, flush=True)
        time.sleep(0.05)
        try:
            os.unlink(name)
        except OSError as error:
            if error.errno != errno.ENOENT:
                break
    count += 1
"""
CHECK = """
import random
for name, size in {names!r}.items():
    with open(name, "rb") as file:
        assert file.read() == random.Random(name).randbytes(size), name
"""
BY_LIBRARY = """
import hashlib, headrace
with headrace.connect() as cache:
    for name in {names!r}:
        print(hashlib.sha256(cache.read(name)).hexdigest())
"""


class Writing:
    """Files of random sizes, one after the other, by a process that goes on when the disk is full."""

    def __init__(self, host: Host, *, seed: int, most: int) -> None:
        self.acknowledged: dict[str, int] = {}
        self._process = subprocess.Popen(
            [*PYTHON, WRITE.format(seed=seed, most=most)], cwd=host.mount, stdout=subprocess.PIPE, text=True
        )

    def until_full(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("full"):
                return
            self._note(line)
        raise AssertionError("the writer ended before the disk was full")

    def end(self) -> None:
        self._process.kill()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n") and not line.startswith("full"):
                self._note(line)
        self._process.wait()

    def _note(self, line: str) -> None:
        name, size = line.split()
        self.acknowledged[name] = int(size)


def fill(disk: Disk, leave_bytes: int = 0) -> None:
    """By somebody else's file."""
    with (disk.folder / "ballast").open("wb", buffering=0) as ballast:
        with suppress(OSError):
            while (room := os.statvfs(disk.folder)).f_bavail * room.f_frsize > leave_bytes:
                ballast.write(bytes(MIB))
        while not leave_bytes:
            try:
                ballast.write(bytes(1024))
            except OSError as error:
                assert error.errno == errno.ENOSPC
                return


def start_again(host: Host) -> Up:
    """After all of it was killed."""
    return host.up(host.truth, host.mount, cache=f"{host.cache}:1GiB")


def kill_something(host: Host, up: Up, chance: random.Random) -> Up:
    victims = chance.choice((["node"], ["node", "session"], ["node", "holder"], ["up"], ["up"]))
    if victims == ["up"]:
        up.signal(signal.SIGKILL)
        host.close()
        return start_again(host)
    before = host.wait_pid("node")
    for role in victims:
        host.kill(role)
    host.wait_pid("node", other_than=before)
    wait_until(lambda: host.headrace("status").returncode == 0, 30.0, hint=lambda: up.said)
    return up


@pytest.mark.expected_warnings("a change was not persisted, retrying later")
@pytest.mark.parametrize("number", range(EXAMPLES))
def test_all_is_killed_on_a_full_disk(make_host: MakeHost, make_disk: MakeDisk, number: int) -> None:
    """The origin is away from the first byte on; every other round somebody else has filled most of the disk."""
    chance = random.Random(number)
    host = make_host(write="back", persist_delay_s=0.05)
    disk = make_disk(host.cache, f"ext4:{DISK_BYTES}")
    up = host.up()
    subprocess.run(["ls", host.mount], check=True, timeout=60, stdout=subprocess.DEVNULL)
    away = host.truth.with_name("away")
    host.truth.rename(away)
    if number % 2:
        fill(disk, 10 * MIB)
    writing = Writing(host, seed=number, most=4 * MIB if number % 2 == 0 else MIB)
    if chance.random() < 0.7:
        writing.until_full()
    time.sleep(chance.random())  # the moment is what is tested
    for _ in range(chance.randrange(1, 3)):
        up = kill_something(host, up, chance)
    writing.end()
    names = writing.acknowledged
    assert names
    code = CHECK.format(names=names)
    subprocess.run([*PYTHON, code], cwd=host.mount, check=True, timeout=60)
    away.rename(host.truth)
    wait_until(lambda: not host.status()["write"]["dirty"], 60.0, hint=lambda: str(host.status()))
    for name, size in names.items():
        assert (host.truth / name).read_bytes() == random.Random(name).randbytes(size), name
    assert host.status()["write"]["conflicts"] == []
    if number % 2:
        (disk.folder / "ballast").unlink()
    wait_until(lambda: not host.status()["cache"]["disks_full"], 30.0)
    host.assert_right()


@pytest.mark.parametrize("io", ["passthrough", "noopen"])
def test_what_no_disk_takes_is_read_all_the_same(make_host: MakeHost, make_disk: MakeDisk, io: str) -> None:
    """Others fill the disk to the last block; a file is larger than all of it; several read at one time."""
    host = make_host(fill_range_bytes=MIB)
    disk = make_disk(host.cache, f"ext4:{40 * MIB}")
    for number in range(2):
        host.put(f"{number}.tar", 3 * MIB + number)
        host.put(f"small/{number}", 50_000 + number)
    host.put("larger", 68 * MIB + 1)
    host.up(host.truth, host.mount, "--io", io)
    fill(disk)
    with ThreadPoolExecutor(2) as readers:
        for done in [readers.submit(host.assert_right) for _ in range(2)]:
            done.result()
    wait_until(lambda: host.status()["cache"]["disks_full"] == [str(host.cache)])
    assert host.status()["cache"]["spilled_bytes"] > 0
    shown = fork_server.run(
        [sys.executable, "-c", BY_LIBRARY.format(names=host.names())],
        env=host.environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    shown.check_returncode()
    assert shown.stdout.split() == [
        sha256((host.truth / name).read_bytes()).hexdigest() for name in host.names()
    ]
    (disk.folder / "ballast").unlink()
    wait_until(lambda: not host.status()["cache"]["disks_full"])
    host.assert_right("0.tar", "small/1")


@pytest.mark.parametrize("io", ["passthrough", "noopen"][: max(1, EXAMPLES - 1)])
def test_a_capacity_as_large_as_the_disk(make_host: MakeHost, make_disk: MakeDisk, io: str) -> None:
    """Whoever reads holds the space of what is evicted for it, so it comes a moment later."""
    host = make_host()
    disk = make_disk(host.cache, f"ext4:{70 * MIB}")
    room = os.statvfs(disk.folder)
    for number in range(6):
        host.put(f"{number}.tar", 10 * MIB + number)
        host.put(f"small/{number}", 700_000 + number)
    host.up(
        host.truth,
        host.mount,
        "--io",
        io,
        cache=f"{host.cache}:{max(64 * MIB, room.f_blocks * room.f_frsize)}",
    )
    names = host.names()
    with ThreadPoolExecutor(3) as readers:
        for done in [readers.submit(host.assert_right, *names[turn:], *names[:turn]) for turn in (0, 4, 8)]:
            done.result()
    assert host.status()["cache"]["files_evicted"] > 0


def test_processes_are_restarted_while_the_run_folder_is_full(
    make_host: MakeHost, make_disk: MakeDisk
) -> None:
    """`up` records their pids when there is space again."""
    host = make_host()
    host.put("a", MIB)
    disk = make_disk(host.run_folder, f"tmpfs:{MIB}")
    up = host.up()
    fill(disk)
    node, session = host.kill("node"), host.kill("session")
    host.kill("holder")
    node, session = host.wait_pid("node", other_than=node), host.wait_pid("session", other_than=session)
    wait_until(lambda: "No space left" in up.said, 60.0, hint=lambda: up.said)
    host.assert_right()
    (disk.folder / "ballast").unlink()
    wait_until(lambda: read_states(str(host.run_folder))[0].node_pid == node, 60.0, hint=lambda: up.said)
    host.ok("down")
    assert up.wait() == 0
    host.assert_nothing_left()
