"""A data set five times the cache, several readers at once: every byte is right and nobody hears of the trouble."""

from __future__ import annotations

import hashlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.base.model import BLOCK_SIZE_BYTES
from headrace.client.connection import Connection
from headrace.config.schema import CacheVolume, Config, MountConfig
from headrace.fuse import device
from headrace.testing.waiting import wait_for
from headrace.wire.messages import JobStart, JobState
from tests.fork_server import ForkingPopen
from tests.integration.node.node_process import NodeProcess
from tests.random_bytes import random_bytes

MIB = BLOCK_SIZE_BYTES
CAPACITY = 64 * MIB
SIZES = [40 * MIB, 30 * MIB + 1, 24 * MIB, 24 * MIB - 1, *[3 * MIB + 7] * 20, *[110_000] * 250]

SDK_READER = """
import hashlib, json, random, sys
from headrace.client.node_client import NodeClient
from headrace.client.path_reader import PathReader
socket, source, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
names = json.load(open(source))
client = PathReader(NodeClient(socket, role="sdk", patience_s=10))
chance = random.Random(seed)
order = sorted(names)
chance.shuffle(order)
for name in order:
    size, digest = names[name]
    if chance.random() < 0.7:
        read_digest = hashlib.md5(b"".join(client.read(b"/" + name.encode()))).hexdigest()
        assert read_digest == digest, (name, "whole")
    else:
        path = sys.argv[2].rpartition("/")[0] + "/source/" + name
        for _ in range(3):
            start = chance.randrange(size)
            end = min(size, start + chance.randrange(1, 2 << 20))
            with open(path, "rb") as file:
                file.seek(start)
                expected = file.read(end - start)
            assert b"".join(client.read(b"/" + name.encode(), start, end)) == expected, (name, start, end)
client.close()
"""

MOUNT_READER = """
import hashlib, json, mmap, random, sys
mount, source, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
names = json.load(open(source))
chance = random.Random(seed)
order = sorted(names)
chance.shuffle(order)
held = []  # open files and mappings outlive the eviction of their cache files
for name in order:
    size, digest = names[name]
    file = open(f"{mount}/{name}", "rb")
    if chance.random() < 0.5:
        view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        held.append((name, view))
        assert hashlib.md5(view).hexdigest() == digest, (name, "mapped")
    else:
        assert hashlib.md5(file.read()).hexdigest() == digest, (name, "read")
        held.append((name, file))
    if len(held) > 6:
        name, old = held.pop(chance.randrange(len(held)))
        if hasattr(old, "fileno"):
            old.seek(0)
            data = old.read()
        else:
            data = old[:]
        assert hashlib.md5(data).hexdigest() == names[name][1], (name, "again")
        old.close()
"""


class Small(NodeProcess):
    """A node with a cache of 64 MiB before 205 MiB of files."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.source = base / "source"
        self.config = Config(
            cache=[CacheVolume(str(base / "cache"), CAPACITY)],
            run_folder=str(base / "run"),
            mounts={"/": MountConfig(url=str(self.source))},
            sync_interval_s=3600.0,
        )
        (base / "config.json").write_bytes(msgspec.json.encode(self.config))
        self.start()

    def disk_bytes(self) -> int:
        done = subprocess.run(["du", "-sB1", self.base / "cache/files"], capture_output=True, text=True)
        return int(done.stdout.split()[0])

    def cache_status(self) -> dict[str, int]:
        client = self.client()
        status = client.status()
        client.close()
        cache = status["cache"]
        assert isinstance(cache, dict)
        return cache

    def is_accounted(self) -> bool:
        """Return whether what is accounted is what is there."""
        return abs(self.disk_bytes() - self.cache_status()["used_bytes"]) < CAPACITY // 10

    def log(self) -> str:
        return (self.base / "node.log").read_text()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    source = tmp_path / "source"
    source.mkdir()
    names = {}
    for number, size in enumerate(SIZES):
        data = random_bytes(number, size)
        (source / f"f{number:03}").write_bytes(data)
        names[f"f{number:03}"] = (size, hashlib.md5(data).hexdigest())
    assert sum(SIZES) > 3 * CAPACITY
    (tmp_path / "names.json").write_text(json.dumps(names))
    node = Small(tmp_path)
    yield node
    node.process.kill()
    node.process.wait(60)


def run_readers(small: Small, code: str, where: str) -> None:
    readers = [
        ForkingPopen(
            [sys.executable, "-c", code, where, small.base / "names.json", str(seed)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(4)
    ]
    failures = []
    for reader in readers:
        _, errors = reader.communicate(timeout=110)
        if reader.returncode:
            failures.append(errors)
    assert not failures, "\n".join(failures)
    assert small.cache_status()["files_evicted"] > 100
    assert small.cache_status()["used_bytes"] <= CAPACITY
    # fetches and evictions may go on for a moment
    wait_for(small.is_accounted, 60.0)
    assert "Traceback" not in small.log()
    assert "WARNING" not in small.log()


@pytest.mark.timeout(150)
def test_readers_of_the_sdk(small: Small) -> None:
    run_readers(small, SDK_READER, small.config.socket_path)


@pytest.mark.timeout(150)
def test_loading_more_than_fits(small: Small) -> None:
    connection = Connection(small.config.socket_path, role="cli")
    *_, last = connection.stream(JobStart(kind="load", path="/"))
    assert isinstance(last, JobState)
    assert last.failed_files == 0, last.failed
    assert last.files_done == len(SIZES)
    assert "Traceback" not in small.log()


@pytest.mark.fuse
@pytest.mark.timeout(150)
@pytest.mark.parametrize("io", ["passthrough", "splice"])
def test_readers_and_mappings_through_a_mount(small: Small, io: str) -> None:
    mount = small.base / "mnt"
    mount.mkdir()
    read, write = os.pipe()
    command = [sys.executable, "-m", "headrace.fuse.fd_store", "--mountpoint", str(mount), "--io", io]
    command += ["--socket", small.config.socket_path, "--ready-fd", str(write)]
    holder: subprocess.Popen[bytes] = ForkingPopen(command, pass_fds=(write,))
    os.close(write)
    try:
        ready, _, _ = select.select([read], [], [], 60)
        assert ready
        assert json.loads(os.read(read, 4096)).get("ready")
        run_readers(small, MOUNT_READER, str(mount))
    finally:
        os.close(read)
        device.unmount(str(mount), detach=True)
        holder.terminate()
        holder.wait(60)
