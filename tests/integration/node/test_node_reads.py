"""A node and a client of the same host, over a folder as origin: every byte compared with the origin's."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from headrace.base.errors import HeadraceError, PathNotFoundError
from headrace.base.model import ROOT_ID
from headrace.client.connection import Connection
from headrace.client.node_client import MISS
from headrace.client.path_reader import PathReader
from headrace.testing.waiting import wait_for
from headrace.wire.messages import JobStart, JobState
from tests.integration.node.node_process import MIB, SIZES, NodeProcess, whole


def test_every_file_reads_right_cold_and_warm(running: NodeProcess) -> None:
    client = running.client()
    for _ in range(2):
        for name in SIZES:
            for folder in (b"/", b"/folder/"):
                assert (
                    whole(client, folder + name.encode())
                    == (running.source / folder.decode()[1:] / name).read_bytes()
                )
    client.close()


def test_ranges_in_random_order(running: NodeProcess) -> None:
    client = running.client()
    expected = (running.source / "large").read_bytes()
    chance = random.Random(3)
    for _ in range(60):
        start = chance.randrange(len(expected))
        end = min(len(expected), start + chance.randrange(1, 3 * MIB))
        assert b"".join(PathReader(client).read(b"/large", start, end)) == expected[start:end]
    client.close()


def test_names_hits_misses_and_absence(running: NodeProcess) -> None:
    client = running.client()
    assert client.lookup_fast(ROOT_ID, b"small") is MISS
    assert client.lookup(ROOT_ID, b"small") is not None
    assert client.lookup_fast(ROOT_ID, b"nothing") is None
    with pytest.raises(PathNotFoundError):
        client.resolve(b"/nothing")
    assert {e.name.decode() for e in PathReader(client).list_path(b"/")} == {*SIZES, "folder"}
    client.close()


def test_a_file_changed_at_the_origin_is_seen_after_sync_and_the_old_one_is_kept_whole(
    running: NodeProcess,
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


def test_a_file_changed_while_it_is_filled_is_an_error_never_a_mixture(running: NodeProcess) -> None:
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


def test_load_then_free(running: NodeProcess) -> None:
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


def test_after_kill_9_what_was_cached_is_there_and_right(running: NodeProcess) -> None:
    client = running.client()
    assert whole(client, b"/large") == (running.source / "large").read_bytes()
    wait_for(lambda: client.complete_path(client.resolve(b"/large").id))
    running.process.kill()
    running.process.wait(60)
    path = client.complete_path(client.lookup_fast(ROOT_ID, b"large").id)  # type: ignore[union-attr]
    assert path is not None, "warm files are readable while the node is dead"
    assert Path(path).read_bytes() == (running.source / "large").read_bytes()
    running.start()
    for name in SIZES:
        assert whole(client, b"/" + name.encode()) == (running.source / name).read_bytes()
    client.close()


def test_it_stops_in_order(running: NodeProcess) -> None:
    running.stop()
    assert running.process.returncode == 0
    assert not os.path.exists(running.config.socket_path)
