"""Files that fsck reported as dropped are right at once: in new opens of every mount, in every way of reading.

HEADRACE_EXAMPLES: how many times in a row.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from tests.integration.cli.host import LIMIT_S, Host

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(120)]

ROUNDS = int(os.environ.get("HEADRACE_EXAMPLES", "1"))
NAMES = ["images/0.bin", "large.tar", "images/1.bin"]
WATCHER = """
import json, os, subprocess, sys
from hashlib import sha256
mount, names, kept = sys.argv[1], json.loads(sys.argv[2]), []
def body(name):
    with open(f"{mount}/{name}", "rb") as file:
        return file.read()
before = [body(name) for name in names]
kept = [open(f"{mount}/{name}", "rb") for name in names[:2]]
[file.read(4096) for file in kept]
fsck = subprocess.run([sys.executable, "-m", "headrace", "fsck", "--json"], capture_output=True)
after = [body(name) for name in names]
print(json.dumps({
    "before": [sha256(each).hexdigest() for each in before],
    "after": [sha256(each).hexdigest() for each in after],
    "fsck": fsck.stdout.decode(),
}))
"""


def rot(cache: Path, size_bytes: int) -> None:
    """In the middle of every cache file of that size, below any map or record."""
    (path,) = [path for path in cache.rglob("files/*/*") if path.stat().st_size == size_bytes]
    with path.open("r+b") as file:
        file.seek(size_bytes // 2)
        file.write(b"rotten bytes")


@pytest.mark.parametrize("io", ["passthrough", "splice", "noopen"])
def test_a_file_that_fsck_dropped_is_right_at_once(host: Host, io: str) -> None:
    host.up(host.truth, host.mount, "--io", io)
    truth = [(host.truth / name).read_bytes() for name in NAMES]
    digests = [sha256(body).hexdigest() for body in truth]
    for attempt in range(ROUNDS):
        host.ok("load")
        for body in truth:
            rot(host.cache, len(body))
        done = subprocess.run(
            [sys.executable, "-c", WATCHER, str(host.mount), json.dumps(NAMES)],
            env=host.environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["before"] != digests or attempt > 0  # the kernel may have kept the good pages
        assert json.loads(report["fsck"].splitlines()[-1])["failed_files"] == len(NAMES), report["fsck"]
        assert report["after"] == digests
    host.ok("down")
    host.assert_nothing_left()


def test_fsck_goes_on_behind_a_file_that_it_can_not_remove(host: Host) -> None:
    """A directory is in the place of a cache file: the node can't unlink it."""
    host.up()
    host.ok("load")
    first, second = NAMES[:2]
    size_bytes = (host.truth / first).stat().st_size
    (path,) = [path for path in host.cache.rglob("files/*/*") if path.stat().st_size == size_bytes]
    path.unlink()
    path.mkdir()
    rot(host.cache, (host.truth / second).stat().st_size)
    done = host.headrace("fsck")
    assert done.returncode == 50, done
    for name in (first, second):
        assert f"/{name}: " in done.stderr
    path.rmdir()
    host.assert_right()
    host.ok("fsck")
    host.ok("down")
    host.assert_nothing_left()
