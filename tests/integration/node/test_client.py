"""A client goes on when its node is replaced, its process forks, or files change between two questions."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

import headrace
from headrace.base.errors import ReadOnlyError
from headrace.base.model import BLOCK_SIZE_BYTES, ROOT_ID, Entry
from headrace.client.access_reporter import AccessReporter
from headrace.client.connection import Connection
from headrace.client.event_stream import EventsLost
from headrace.client.node_client import MISS, NodeClient
from headrace.config.schema import CacheVolume
from headrace.testing.waiting import wait_for
from headrace.wire.message import Message
from headrace.wire.messages import JobStart, JobState, Touch
from tests.integration.node.conftest import running
from tests.integration.node.node_process import NodeProcess, whole

MIB = BLOCK_SIZE_BYTES
__all__ = ["running"]


def test_a_client_without_patience_goes_on_with_the_next_node(running: NodeProcess) -> None:
    client = NodeClient(running.config.socket_path, role="sdk", patience_s=0)
    client.resolve(b"/small")
    running.process.kill()
    running.process.wait(60)
    running.start()
    assert whole(client, b"/small") == (running.source / "small").read_bytes()
    client.close()


def test_an_answered_error_does_not_cost_the_connection(running: NodeProcess) -> None:
    client = running.client()
    free = client._connections._free
    before = free[0]
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            client.resolve(b"/nothing")
    assert free == [before]
    client.close()


def test_an_index_made_anew_gives_other_ids(running: NodeProcess) -> None:
    """Whoever holds ids of the old one must not meet other files under them."""
    client = running.client()
    old = {name: client.resolve(b"/" + name).id for name in (b"small", b"large")}
    running.process.kill()
    running.process.wait(60)
    shutil.rmtree(running.base / "cache/index")
    running.start()
    for name, id in old.items():
        assert whole(client, b"/" + name) == (running.source / name.decode()).read_bytes()
        assert client.resolve(b"/" + name).id != id
        assert client.entry(id) is None
    client.close()


def test_an_index_made_small_by_a_start_is_read_from_then_on(running: NodeProcess) -> None:
    """The client has the file of before mapped, which nobody writes to any more."""
    client = running.client()
    assert whole(client, b"/small") == (running.source / "small").read_bytes()
    client.ensure_listed(ROOT_ID)
    before = client.lookup_fast(ROOT_ID, b"small")
    assert isinstance(before, Entry)
    running.process.kill()
    running.process.wait(60)
    code = (
        "import sys; from headrace.store.index import Index\n"
        "index = Index.open(sys.argv[1], writable=True)\n"
        "with index._env.begin():\n"  # while somebody reads, no page is used again
        "    for number in range(2000): index.mounts.put('/m', {'url': str(number)})\n"
        "    index.mounts.drop('/m')\n"
        "index.close(clean=False)\n"
    )
    subprocess.run([sys.executable, "-c", code, running.base / "cache/index"], check=True, timeout=60)
    size_bytes = client.local.index.size_bytes
    assert size_bytes > 8 * MIB
    running.start()
    (running.source / "later").write_bytes(b"later")
    assert client.lookup_fast(ROOT_ID, b"small") is MISS  # so it asks
    assert client.lookup_fast(ROOT_ID, b"later") is MISS
    client.ensure_listed(ROOT_ID)
    assert client.local.index.size_bytes < MIB
    assert client.lookup_fast(ROOT_ID, b"small") == before
    assert whole(client, b"/later") == b"later"
    assert whole(client, b"/small") == (running.source / "small").read_bytes()
    client.close()


def test_a_node_that_comes_back_with_one_more_disk(running: NodeProcess) -> None:
    client = running.client()
    old = whole(client, b"/small")
    running.stop()
    larger = CacheVolume(str(running.base / "more"), 2 << 30)  # the emptiest disk is filled first
    running.configure(replace(running.config, cache=[*running.config.cache, larger]))
    running.start()
    for _ in range(2):
        for name in ("small", "block", "large"):
            assert whole(client, b"/" + name.encode()) == (running.source / name).read_bytes()
    assert old == whole(client, b"/small")
    cached = client.local.index.cached(client.resolve(b"/large").id)
    assert cached is not None and cached.volume == 1
    client.close()


def test_a_node_that_comes_back_with_another_mode_of_writing(running: NodeProcess) -> None:
    with headrace.connect(socket=running.config.socket_path) as cache:
        old = cache.read("/small")
        with pytest.raises(ReadOnlyError):
            cache.put("/small", b"new")
        assert cache.read("/small") == old  # its folder is known now
        running.stop()
        running.configure(replace(running.config, write="local"))
        running.start()
        cache.put("/small", b"new")
        assert cache.read("/small") == b"new"
        running.stop()
        running.configure(replace(running.config, write="off"))
        running.start()
        assert cache.read("/block")  # it is not cached: the node is asked, and says what holds now
        with pytest.raises(ReadOnlyError):
            cache.put("/small", b"newer")
        assert cache.read("/small") == old == (running.source / "small").read_bytes()


def test_a_file_that_changed_after_it_was_looked_up_is_read_new(running: NodeProcess) -> None:
    client = running.client()
    for name in (b"small", b"block"):
        client.resolve(b"/" + name)
        (running.source / name.decode()).write_bytes(b"new" * 1000)
        assert whole(client, b"/" + name) == b"new" * 1000
    client.close()


def test_forked_children_read_by_themselves(running: NodeProcess) -> None:
    client = running.client()
    for name in (b"/small", b"/large"):
        assert whole(client, name) == (running.source / name.decode()[1:]).read_bytes()
    wait_for(lambda: client.complete_path(client.resolve(b"/large").id))

    def child(results: multiprocessing.SimpleQueue[bool]) -> None:
        good = True
        for _ in range(50):
            entry = client.lookup_fast(ROOT_ID, b"large")
            path = client.complete_path(entry.id) if entry is not None else None  # type: ignore[union-attr]
            good = good and path is not None
            client.touch(entry.id)  # type: ignore[union-attr]
        good = good and whole(client, b"/more") == (running.source / "more").read_bytes()
        with client.local.index._env.begin():
            pids = {line.split()[0] for line in client.local.index._env.readers().splitlines()[1:]}
        results.put(good and str(os.getpid()) in pids)

    held, done = threading.Event(), threading.Event()

    def hold() -> None:  # a thread of the parent has the pool's lock at the fork
        with client._connections._lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    children = [context.Process(target=child, args=(results,)) for _ in range(3)]
    for process in children:
        process.start()
    assert all(results.get() for _ in children)
    done.set()
    for process in children:
        process.join()
    thread.join()
    assert client.complete_path(client.resolve(b"/large").id) is not None
    client.close()


def test_how_much_of_a_file_is_cached(running: NodeProcess) -> None:
    client = running.client()
    entry = client.resolve(b"/large")
    assert client.file_state(entry.id)["cached"] == "no"
    file = client.open(entry.id)
    assert client.file_state(entry.id)["cached"] == "0%"
    file.wait(0, 10)
    assert client.file_state(entry.id)["cached"].endswith("%")
    assert 0 < int(client.file_state(entry.id)["cached"][:-1]) < 100
    assert whole(client, b"/large")
    wait_for(lambda: client.file_state(entry.id)["cached"] == "yes")
    file.close()
    client.close()


class Node:
    """Takes what it is told."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.messages = 0
        self.processes: set[int] = set()

    def ask(self, request: Message, *, patience_s: float | None = None) -> None:
        assert isinstance(request, Touch)
        self.messages += 1
        self.ids += request.ids
        self.processes.add(request.process)


def test_touches_arrive_in_batches_and_soon() -> None:
    node = Node()
    touches = AccessReporter(node)  # type: ignore[arg-type]
    touches.touch(7)
    wait_for(lambda: node.ids == [7])
    for id in range(1000):
        touches.touch(id)
    wait_for(lambda: len(node.ids) == 1001)
    assert node.messages <= 4
    assert sum(thread.name == "touches" and thread.is_alive() for thread in threading.enumerate()) >= 1
    touches.touch(8)
    touches.close()
    wait_for(lambda: node.ids[-1] == 8)
    assert len(node.processes) == 1
    assert 0 not in node.processes


def test_a_gateway_reports_no_process() -> None:
    """It serves many users: their opens have no order that can be predicted."""
    node = Node()
    touches = AccessReporter(node, is_job=False)  # type: ignore[arg-type]
    touches.touch(7)
    wait_for(lambda: node.processes == {0})
    touches.close()


def states(running: NodeProcess, kind: str, path: str = "/") -> list[JobState]:
    connection = Connection(running.config.socket_path, role="cli")
    states = [row for row in connection.stream(JobStart(kind=kind, path=path)) if isinstance(row, JobState)]
    connection.close()
    return states


def test_a_job_on_no_path_says_so(running: NodeProcess) -> None:
    connection = Connection(running.config.socket_path, role="cli")
    for kind in ("load", "free", "sync"):
        with pytest.raises(FileNotFoundError):
            list(connection.stream(JobStart(kind=kind, path="/nothing")))


def test_fsck_says_what_it_checked_and_what_it_found(running: NodeProcess) -> None:
    states(running, "load")
    *_, last = states(running, "fsck")
    assert (last.files_done, last.files_total, last.failed_files) == (12, 12, 0)
    assert last.bytes_done >= 2 * 40 * MIB
    assert last.bytes_total >= last.bytes_done
    client = running.client()
    path = client.complete_path(client.resolve(b"/folder/large").id)
    assert path is not None
    with open(path, "r+b") as file:
        file.seek(5 * MIB)
        file.write(b"rotten")
    *_, last = states(running, "fsck")
    assert last.failed_files == 1
    assert last.failed[0][0] == "/folder/large"
    assert whole(client, b"/folder/large") == (running.source / "folder/large").read_bytes()
    client.close()


def test_a_freed_file_gives_its_space_back(running: NodeProcess) -> None:
    """Sessions are told: they hold descriptors."""
    client = running.client()
    events: list[object] = []
    client.subscribe(events.append)
    states(running, "load")
    id = client.resolve(b"/large").id
    wait_for(lambda: any(id in getattr(event, "ids", []) for event in events))
    events.clear()
    states(running, "free", "/large")
    wait_for(lambda: any(type(e).__name__ == "Evicted" and id in e.ids for e in events))  # type: ignore[attr-defined]
    client.close()


def test_one_unreadable_folder_is_one_failure(running: NodeProcess) -> None:
    bad = running.source / "bad"
    bad.mkdir()
    for number in range(3):
        (running.source / f"later{number}").write_bytes(b"x")
    Path(bad / "f").write_bytes(b"x")
    states(running, "sync")
    connection = Connection(running.config.socket_path, role="cli")
    shutil.rmtree(bad)
    *_, last = connection.stream(JobStart(kind="load", path="/"))
    assert isinstance(last, JobState)
    assert last.failed_files <= 1
    assert last.files_done >= 15


def test_a_subscriber_learns_that_events_were_lost(running: NodeProcess) -> None:
    client = running.client()
    events: list[object] = []
    client.subscribe(events.append)
    states(running, "load")
    wait_for(lambda: events)
    assert not any(isinstance(event, EventsLost) for event in events)
    running.process.kill()
    running.process.wait(60)
    running.start()
    wait_for(lambda: any(isinstance(event, EventsLost) for event in events))
    events.clear()
    states(running, "free")
    wait_for(lambda: events)
    client.close()
