"""A node and a client of the same host, over a folder as origin: every byte compared with the origin's."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import HeadraceError, PathNotFoundError
from headrace.base.model import BLOCK_SIZE_BYTES, ROOT_ID
from headrace.client.connection import Connection
from headrace.client.node_client import MISS, NodeClient
from headrace.client.path_reader import PathReader
from headrace.config.schema import CacheVolume, Config, MountConfig
from headrace.testing.waiting import wait_for
from headrace.wire.messages import JobStart, JobState

MIB = BLOCK_SIZE_BYTES
SIZES = {"empty": 0, "one": 1, "small": 110_000, "block": MIB, "more": MIB + 1, "large": 40 * MIB + 12_345}


class Running:
    """A node process on a folder of random files."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.source = base / "source"
        self.configure(
            Config(
                cache=[CacheVolume(str(base / "cache"), 1 << 30)],
                run_folder=str(base / "run"),
                mounts={"/": MountConfig(url=str(self.source))},
                sync_interval_s=3600.0,
            )
        )
        self.start()

    def configure(self, config: Config) -> None:
        """Of the next start."""
        self.config = config
        (self.base / "config.json").write_bytes(msgspec.json.encode(config))

    def start(self) -> None:
        ready_read, ready_write = os.pipe()
        with open(self.base / "node.log", "ab") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "headrace.node",
                    "--config-json",
                    self.base / "config.json",
                    "--ready-fd",
                    str(ready_write),
                ],
                pass_fds=[ready_write],
                stderr=output,
            )
        os.close(ready_write)
        with open(ready_read, "rb") as ready:
            line = msgspec.json.decode(ready.readline())
        assert line.get("ready"), line

    def client(self) -> NodeClient:
        return NodeClient(self.config.socket_path, role="sdk", patience_s=10)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    source = tmp_path / "source"
    (source / "folder").mkdir(parents=True)
    chance = random.Random(7)
    for name, size in SIZES.items():
        (source / name).write_bytes(chance.randbytes(size))
        (source / "folder" / name).write_bytes(chance.randbytes(size))
    node = Running(tmp_path)
    yield node
    node.process.kill()
    node.process.wait(20)


def whole(client: NodeClient, path: bytes) -> bytes:
    return b"".join(PathReader(client).read(path))


def test_every_file_reads_right_cold_and_warm(running: Running) -> None:
    client = running.client()
    for _ in range(2):
        for name in SIZES:
            for folder in (b"/", b"/folder/"):
                assert (
                    whole(client, folder + name.encode())
                    == (running.source / folder.decode()[1:] / name).read_bytes()
                )
    client.close()


def test_ranges_in_random_order(running: Running) -> None:
    client = running.client()
    expected = (running.source / "large").read_bytes()
    chance = random.Random(3)
    for _ in range(60):
        start = chance.randrange(len(expected))
        end = min(len(expected), start + chance.randrange(1, 3 * MIB))
        assert b"".join(PathReader(client).read(b"/large", start, end)) == expected[start:end]
    client.close()


def test_names_hits_misses_and_absence(running: Running) -> None:
    client = running.client()
    assert client.lookup_fast(ROOT_ID, b"small") is MISS
    assert client.lookup(ROOT_ID, b"small") is not None
    assert client.lookup_fast(ROOT_ID, b"nothing") is None
    with pytest.raises(PathNotFoundError):
        client.resolve(b"/nothing")
    assert {e.name.decode() for e in PathReader(client).list_path(b"/")} == {*SIZES, "folder"}
    client.close()


def test_a_file_changed_at_the_origin_is_seen_after_sync_and_the_old_one_is_kept_whole(
    running: Running,
) -> None:
    client = running.client()
    before = (running.source / "large").read_bytes()
    entry = client.resolve(b"/large")
    assert whole(client, b"/large") == before
    opened = client.open(entry.id)
    (running.source / "large").write_bytes(b"new" * MIB)
    connection = Connection(running.config.socket_path, role="cli")
    list(connection.stream(JobStart(kind="sync", path="/")))
    assert whole(client, b"/large") == b"new" * MIB
    assert client.resolve(b"/large").id != entry.id
    assert opened.pread(len(before), 0) == before
    client.close()


def test_a_file_changed_while_it_is_filled_is_an_error_never_a_mixture(running: Running) -> None:
    client = running.client()
    entry = client.resolve(b"/large")
    opened = client.open(entry.id)
    opened.wait(0, 10)
    old = (running.source / "large").read_bytes()
    (running.source / "large").write_bytes(os.urandom(len(old)))
    tail = len(old) - 10
    try:
        opened.wait(tail, len(old))
    except HeadraceError:
        pass
    else:  # the tail was fetched ahead, before the change
        assert opened.pread(10, tail) == old[-10:]
    assert opened.pread(10, 0) == old[:10]
    client.close()


def test_load_then_free(running: Running) -> None:
    connection = Connection(running.config.socket_path, role="cli")
    states = [s for s in connection.stream(JobStart(kind="load", path="/")) if isinstance(s, JobState)]
    assert states[-1].done
    assert states[-1].files_done == 2 * len(SIZES)
    assert states[-1].bytes_done == 2 * sum(SIZES.values())
    assert not states[-1].failed_files
    client = running.client()
    for name in SIZES:
        path = client.complete_path(client.resolve(b"/" + name.encode()).id)
        assert path is not None
        assert Path(path).read_bytes() == (running.source / name).read_bytes()
    *_, last = connection.stream(JobStart(kind="free", path="/"))
    assert isinstance(last, JobState)
    assert client.complete_path(client.resolve(b"/large").id) is None
    assert whole(client, b"/large") == (running.source / "large").read_bytes()
    client.close()


def test_after_kill_9_what_was_cached_is_there_and_right(running: Running) -> None:
    client = running.client()
    assert whole(client, b"/large") == (running.source / "large").read_bytes()
    wait_for(lambda: client.complete_path(client.resolve(b"/large").id))
    running.process.kill()
    running.process.wait(20)
    path = client.complete_path(client.lookup_fast(ROOT_ID, b"large").id)  # type: ignore[union-attr]
    assert path is not None, "warm files are readable while the node is dead"
    assert Path(path).read_bytes() == (running.source / "large").read_bytes()
    running.start()
    for name in SIZES:
        assert whole(client, b"/" + name.encode()) == (running.source / name).read_bytes()
    client.close()


def test_it_stops_in_order(running: Running) -> None:
    running.stop()
    assert running.process.returncode == 0
    assert not os.path.exists(running.config.socket_path)
