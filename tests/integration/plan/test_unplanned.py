"""Jobs without a plan on a real mount: what they read next is cached before, and the origin is read once."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.integration.cli.host import Host, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(180)]

FILES = 240
OPENER = Path(__file__).with_name("opener.py")


class Job:
    """Opens lists of files on the mount, and compares their bytes with the origin's."""

    def __init__(self, host: Host, *lists: Sequence[int], directory: str = "images") -> None:
        self._host = host
        self._lists = lists
        self._expected = hashlib.sha256()
        self._paths = sorted(path for path in (host.truth / directory).rglob("*") if path.is_file())
        words = [",".join(map(str, numbers)) for numbers in lists]
        self._process = subprocess.Popen(
            [sys.executable, str(OPENER), str(host.mount / directory), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self, place: int) -> None:
        """Let the job read a list, and wait for its end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if place:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        for number in self._lists[place]:
            self._expected.update(self._paths[number].read_bytes())
        assert self._process.stdout.readline().strip() == self._expected.hexdigest()

    def end(self) -> None:
        self._process.communicate("\n", timeout=60)
        assert self._process.returncode == 0


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    try:
        for number in range(FILES):
            host.put(f"images/{number % 8}/{number:03}.bin", 2000 + number)
        yield host
    finally:
        host.close()


def cached(host: Host) -> int:
    return int(host.status()["index"]["files"])


def shuffled(seed: int) -> list[int]:
    order = list(range(FILES))
    random.Random(seed).shuffle(order)
    return order


@pytest.mark.parametrize("io", ["splice", "noopen"])
def test_a_cold_shuffled_epoch_is_fetched_ahead(host: Host, io: str) -> None:
    """After 100 reads all files are cached, and each was fetched once."""
    host.up(host.truth, host.mount, "--io", io)
    order = shuffled(1)
    job = Job(host, order[:100], order[100:])
    job.read(0)
    wait_until(lambda: cached(host) == FILES, limit_s=60, hint=lambda: str(host.status()["predictions"]))
    job.read(1)
    job.end()
    status = host.status()
    assert status["origin"]["bytes_read"] == sum(2000 + number for number in range(FILES))
    fetched = status["predictions"]["files_fetched"]
    assert fetched >= FILES - 140
    wait_until(lambda: host.status()["predictions"]["files_right"] == fetched, limit_s=60)
    assert host.status()["predictions"]["files_wrong"] == 0


def test_a_second_epoch_finds_files_that_no_one_read(host: Host) -> None:
    """The cache loses all files between the epochs."""
    host.up(host.truth, host.mount, "--io", "splice")
    second = shuffled(2)
    job = Job(host, shuffled(1), second[:60], second[60:])
    job.read(0)
    wait_until(lambda: host.status()["predictions"]["data_sets"], limit_s=60)
    (data_set,) = host.status()["predictions"]["data_sets"]
    assert (data_set["path"], data_set["files"]) == ("/images", FILES)
    host.ok("free", "/")
    assert cached(host) == 0
    job.read(1)
    wait_until(lambda: cached(host) == FILES, limit_s=60, hint=lambda: str(host.status()["predictions"]))
    (row,) = host.json("plan", "show")
    assert (row["job"], row["state"], row["model"], row["samples"]) == (
        "/images",
        "predicted",
        "shuffled",
        FILES,
    )
    job.read(2)
    job.end()


def test_shards_in_order_are_fetched_ahead(host: Host) -> None:
    for number in range(100):
        host.put(f"shards/{number:03}.tar", 2000 + number)
    host.up(host.truth, host.mount, "--io", "splice")
    job = Job(host, range(40), range(40, 60), directory="shards")
    job.read(0)
    wait_until(lambda: cached(host) > 60, limit_s=60, hint=lambda: str(host.status()["predictions"]))
    assert host.status()["predictions"]["data_sets"][0]["model"] == "sequential"
    before = host.status()["origin"]["bytes_read"]
    job.read(1)
    job.end()
    wait_until(lambda: host.status()["predictions"]["files_right"] >= 20, limit_s=60)
    sizes = [2000 + number for number in range(100)]
    assert before <= host.status()["origin"]["bytes_read"] <= sum(sizes)
