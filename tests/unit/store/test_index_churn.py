"""The index under constant churn: records come and go, names stay. HEADRACE_EXAMPLES: how many rounds of it."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from pathlib import Path

import pytest

from headrace.base.model import ROOT_ID, FileId, Version
from headrace.store import compaction
from headrace.store.growth import reusable_pages
from headrace.store.index import Index
from headrace.store.schema import FOREVER_NS
from tests import fork_server
from tests.unit.store.conftest import cached_file

ROUNDS = 100 * int(os.environ.get("HEADRACE_EXAMPLES", "1"))
COMMITS_A_ROUND = 60


class Churn:
    """Names in folders, of which some thousand are cached, each commit another one."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.chance = random.Random(7)
        self.ids: list[FileId] = []
        for number in range(40):
            folder = index.names.ensure_directory(ROOT_ID, b"folder-%d" % number)
            with index.batch():
                for name in range(500):
                    self.ids.append(
                        index.names.put_file(folder, b"name-%06d" % name, Version(1, 1, "a" * 32))[0]
                    )
                index.names.set_fresh_until(folder, FOREVER_NS)
        self.cached = self.chance.sample(self.ids, 4000)
        with index.batch():
            for id in self.cached:
                index.put_cached(cached_file(id))

    def go(self, commits: int) -> None:
        for _ in range(commits // 2):
            place = self.chance.randrange(len(self.cached))
            self.index.drop_cached(self.cached[place])
            self.cached[place] = self.chance.choice(self.ids)
            self.index.put_cached(cached_file(self.cached[place]))


def wait_for_renewal() -> None:
    """Wait for the renewal, as where the disk keeps up with what is written."""
    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join()


@pytest.fixture
def index(tmp_path: Path) -> Index:
    index = Index.open(str(tmp_path / "index"), writable=True)
    index.state.checkpoint()  # as after a recovery
    return index


def bloated(index: Index) -> Churn:
    """Bloat the index as if no checkpoint could be made for a while; then the node is killed."""
    churn = Churn(index)
    index.state.checkpoint()
    with index._env.begin():  # a reader that never ends keeps all pages
        churn.go(3000)
        wait_for_renewal()
    return churn


def state_of(index: Index) -> tuple[object, ...]:
    entries = [entry for folder in index.children(ROOT_ID) for entry in index.children(folder.id)]
    return entries, list(index.cached_files()), index.mounts.all(), index.state.generation


def test_churn_does_not_outgrow_what_is_live(index: Index) -> None:
    churn = Churn(index)
    index.state.checkpoint()
    most = 0.0
    for _ in range(ROUNDS):
        churn.go(COMMITS_A_ROUND)
        wait_for_renewal()
        figures = index.statistics()
        most = max(most, figures["bytes"] / max(figures["live_bytes"], 8 << 20))
    index.close(clean=True)
    assert most <= 3


def test_a_churn_that_outruns_the_disk_waits_for_it(index: Index) -> None:
    churn = Churn(index)
    index.state.checkpoint()
    for _ in range(30):
        churn.go(1000)
        figures = index.statistics()
        assert figures["bytes"] < figures["live_bytes"] + (72 << 20)
    index.close(clean=True)


def test_free_pages_are_those_that_are_reused_before_the_file_grows(index: Index) -> None:
    churn = bloated(index)
    index.state.checkpoint()
    pin = index._env.begin()
    with open(f"{index.folder}/data.mdb", "rb") as file:
        before = reusable_pages(file.fileno(), pin.id(), 1 << 40)
        size_bytes, count = index.size_bytes, before
        assert before * 4096 > size_bytes // 2
        assert reusable_pages(file.fileno(), pin.id(), 100) < before  # it stops where there are enough
        while count > 200:
            churn.go(20)
            after = reusable_pages(file.fileno(), pin.id(), 1 << 40)
            assert after < count
            count = after
        assert index.size_bytes == size_bytes
        while index.size_bytes == size_bytes:
            churn.go(2)
        assert reusable_pages(file.fileno(), pin.id(), 1 << 40) < 64
    pin.abort()
    index.close(clean=True)


def test_a_damaged_list_of_free_pages_is_no_crash(index: Index, tmp_path: Path) -> None:
    bloated(index)
    index.close(clean=False)
    data = bytearray((Path(index.folder) / "data.mdb").read_bytes())
    chance = random.Random(3)
    for _ in range(300):
        place = chance.randrange(80, len(data) // 4)
        data[place : place + 64] = chance.randbytes(64)
    (tmp_path / "damaged").write_bytes(data)
    with open(tmp_path / "damaged", "rb") as file:
        assert reusable_pages(file.fileno(), 1 << 60, 1 << 60) >= 0


def start_elsewhere(folder: str, failpoint: str = "", boot_id: str | None = None) -> int:
    """A node's start and clean end in a process of its own; the exit status."""
    code = (
        "import sys; from headrace.store.index import Index;"
        f"Index.open(sys.argv[1], writable=True, boot_id={boot_id!r}).close(clean=True)"
    )
    environment = {**os.environ, "HEADRACE_FAILPOINT": failpoint}
    return fork_server.run([sys.executable, "-c", code, folder], env=environment, timeout=60).returncode


def files_removed_and_open(folder: str) -> list[str]:
    return [
        path
        for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")
        and (path := os.readlink(f"/proc/self/fd/{fd}")) == f"{folder}/data.mdb (deleted)"
    ]


def test_a_start_makes_the_file_small_again(index: Index) -> None:
    bloated(index)
    index.mounts.put("/m", {"url": "file:///x"})
    before, size_bytes = state_of(index), index.size_bytes
    directory, highest = next(iter(index.children(ROOT_ID))).id, index._transactions.next_id - 1
    assert size_bytes > index.statistics()["live_bytes"] * 4
    index.close(clean=True)
    reader = Index.open(index.folder, writable=False)
    assert not reader.is_replaced
    assert start_elsewhere(index.folder) == 0
    assert reader.is_replaced
    assert reader.fresh_until_ns(directory) == 0  # so whoever still reads this file asks the node
    assert state_of(reader) == before
    again = Index.open(index.folder, writable=False)
    assert again.state.clean
    assert not again.is_replaced
    assert again.fresh_until_ns(directory) == FOREVER_NS
    assert state_of(again) == before
    assert again.size_bytes < again.statistics()["live_bytes"] * 1.2 + (1 << 20)
    assert files_removed_and_open(index.folder)
    del reader
    assert not files_removed_and_open(index.folder)  # its space is free when nobody reads it any more
    again.close(clean=True)
    again = Index.open(index.folder, writable=True)
    assert again.names.put_file(ROOT_ID, b"new", Version(1, 1, "n"))[0] > highest
    again.close(clean=True)
    assert sorted(os.listdir(index.folder)) == [
        "checkpoint",
        "checkpoint.new",
        "data.mdb",
        "lock",
        "lock.mdb",
    ]


@pytest.mark.expected_warnings("headrace.store.index")
def test_a_client_that_is_stopped_while_it_opens_the_index_does_not_stop_the_start(index: Index) -> None:
    bloated(index)
    before, size_bytes = state_of(index), index.size_bytes
    index.close(clean=True)
    with compaction.files_stay(index.folder):
        again = Index.open(index.folder, writable=True)
    assert state_of(again) == before
    assert again.size_bytes >= size_bytes
    again.close(clean=True)
    again = Index.open(index.folder, writable=True)
    assert again.size_bytes < size_bytes // 3
    again.close(clean=True)


@pytest.mark.parametrize("boot_id", ["one", "two"])
@pytest.mark.parametrize("failpoint", ["compact.copied", "compact.swapped", "compact.installed"])
def test_a_kill_in_a_compaction_loses_nothing(tmp_path: Path, failpoint: str, boot_id: str) -> None:
    """boot_id two: the machine was restarted, too."""
    index = Index.open(str(tmp_path / "index"), writable=True, boot_id="one")
    index.state.checkpoint()
    bloated(index)
    before = state_of(index)
    index.close(clean=True)
    assert start_elsewhere(index.folder, failpoint, "one") == -signal.SIGKILL
    again = Index.open(index.folder, writable=True, boot_id=boot_id)
    assert again.state.restored == (boot_id == "two")
    assert state_of(again) == before
    again.state.checkpoint()
    again.close(clean=True)
    again = Index.open(index.folder, writable=True, boot_id=boot_id)
    assert state_of(again) == before
    assert again.size_bytes < again.statistics()["live_bytes"] * 1.2 + (1 << 20)
    again.close(clean=True)
    assert sorted(os.listdir(index.folder)) == [
        "checkpoint",
        "checkpoint.new",
        "data.mdb",
        "lock",
        "lock.mdb",
    ]
