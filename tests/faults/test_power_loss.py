"""Power is lost while files are written and persisted: the cache's file system is shut down without its log, everything
is killed, and the disk is mounted again, as of another boot.

What fsync had answered for is there, here and at the origin, and no change of this node's is taken for somebody else's;
somebody else's is.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import obstore
import pytest

from headrace.config.secret_options import option_words
from headrace.testing.servers import S3Server
from tests.faults import acknowledged_writer
from tests.faults.acknowledged_writer import LOOSE, Tree, replay
from tests.faults.conftest import Disk, MakeDisk, MakeHost, set_boot_id
from tests.fork_server import ForkingPopen
from tests.integration.cli.host import MIB, Host, wait_until
from tests.integration.persist.conftest import HIDDEN, Writer, settled, tree_of

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.timeout(60),
    # from the disk's end to that of the node, the disk answers EIO to all
    pytest.mark.expected_warnings(
        "a round of write-back failed", "a change can't be persisted", "Traceback", "Input/output error"
    ),
]
EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "1"))
LIMIT_S = 40.0
CHANGES = 200
"""Lines of the log, at least, before power is lost: two for each change."""


class Machine:
    """A host whose cache is on a disk of its own, and an origin that survives it. top: what is written to, below the
    mount."""

    def __init__(self, host: Host, disk: Disk, server: S3Server | None, top: str = "") -> None:
        self.host = host
        self.top = top
        self._disk = disk
        self._server = server
        self._prefix = f"power/{host.base.name}"

    def up(self) -> None:
        words: list[object] = [self.host.truth, self.host.mount]
        if self._server is not None:
            words[0] = self._server.url(self._prefix)
            words += option_words(self._server.options(), str(self.host.base))
        self.host.up(*words, cache=f"{self.host.cache}:64MiB")

    def lose_power(self) -> None:
        """Lose power: on return, only what was on the disk then is there, and nothing runs."""
        self._disk.break_down()
        self.host.close()
        self._disk.mount_again()
        set_boot_id(self.host.cache / "index", "another boot")

    def origin(self) -> Tree:
        return {name.removeprefix(self.top): data for name, data in self._origin().items()}

    def _origin(self) -> Tree:
        if self._server is None:
            return {
                name: bytes.fromhex(data) for name, data in tree_of(self.host.truth).items() if data != "dir"
            }
        assert self._server.store is not None
        tree: Tree = {}
        for metas in obstore.list(self._server.store, prefix=self._prefix):
            for meta in metas:
                name = meta["path"].removeprefix(f"{self._prefix}/")
                if not name.startswith(HIDDEN):
                    tree[name] = bytes(obstore.get(self._server.store, meta["path"]).bytes())
        return tree

    def change_origin(self, name: str, data: bytes | None) -> None:
        """By somebody else. None: removed."""
        if self._server is None:
            if data is None:
                (self.host.truth / name).unlink()
            else:
                new = self.host.base / "by-somebody-else"
                new.write_bytes(data)
                new.rename(self.host.truth / name)
        elif data is None:
            self._server.delete(f"{self._prefix}/{name}")
        else:
            self._server.put(f"{self._prefix}/{name}", data)

    def shown(self) -> Tree:
        tree = Writer(self.host.mount / self.top).tree()
        return {name: bytes.fromhex(data) for name, data in tree.items() if data != "dir"}


@pytest.fixture(params=["folder", "s3"])
def server(request: pytest.FixtureRequest) -> S3Server | None:
    return request.getfixturevalue("seaweed") if request.param == "s3" else None


def make(
    make_host: MakeHost, make_disk: MakeDisk, server: S3Server | None, *, top: str = "", **settings: object
) -> Machine:
    """top: an exclusive directory; "" for none."""
    host = make_host(write=f"off,/{top}=back,exclusive" if top else "back", **settings)
    return Machine(host, make_disk(host.cache, f"ext4:{256 * MIB}"), server, top)


def has_written(writer: subprocess.Popen[bytes], log: Path) -> bool:
    return lines(log) >= CHANGES or writer.poll() is not None


@pytest.mark.expected_warnings(
    "a change was not persisted, retrying later",
    "events of exclusive directories",  # which the node reads while the disk ends
)
@pytest.mark.timeout(60 * EXAMPLES)
@pytest.mark.parametrize("top", ["", "out/"])
@pytest.mark.parametrize("delay_s", [0.2, 30])
def test_what_was_synced_is_there_and_nobody_else_is_blamed(
    make_host: MakeHost, make_disk: MakeDisk, server: S3Server | None, *, delay_s: float, top: str
) -> None:
    machine = make(make_host, make_disk, server, top=top, persist_delay_s=delay_s)
    host = machine.host
    chance = random.Random(f"{server} {delay_s} {top}")
    before: Tree = {}
    machine.up()
    for number in range(EXAMPLES):
        log = host.base / f"log-{number}"
        with Writing(machine, log, f"{delay_s} {number}") as writer:
            wait_until(partial(has_written, writer, log), LIMIT_S)
            assert writer.poll() is None, writer.communicate()
            if delay_s > 1:
                host.headrace("persist", "/")
            time.sleep(chance.random())  # the moment is what is tested
            # ext4 acknowledges an fsync that meets the shutdown, and has not written it: decision 0036
            moment_bytes = log.stat().st_size
            machine.lose_power()
            writer.wait(60)
        promised, under_way = replay(log, before, moment_bytes)
        machine.up()
        account = settled(host)
        before = machine.shown()
        check(before, promised, under_way)
        assert machine.origin() == before
        assert account["conflicts"] == []
        print(f"round {number}: {lines(log) // 2} changes, {len(before)} names, {sorted(under_way)}")


def lines(log: Path) -> int:
    return log.read_bytes().count(b"\n")


def check(shown: Tree, promised: Tree, under_way: set[str]) -> None:
    passed_by = under_way | {name for name in (*shown, *promised) if LOOSE in name}
    names = {name for name in (*shown, *promised) if name not in passed_by}
    wrong = sorted(name for name in names if shown.get(name) != promised.get(name))
    assert not wrong, {name: (shown.get(name, b"")[:8], promised.get(name, b"")[:8]) for name in wrong}


class Writing:
    """The acknowledged writer, in the mount."""

    def __init__(self, machine: Machine, log: Path, seed: str) -> None:
        log.touch()
        self._environment = machine.host.environment
        where = str(machine.host.mount / machine.top)
        self._words = [sys.executable, acknowledged_writer.__file__, where, str(log), seed]
        if machine.top:
            self._words.append("without-library")

    def __enter__(self) -> subprocess.Popen[bytes]:
        self._process: subprocess.Popen[bytes] = ForkingPopen(
            self._words, stderr=subprocess.PIPE, env=self._environment
        )
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.mark.expected_warnings("another writer changed a file at the origin")
@pytest.mark.timeout(90)
def test_what_somebody_else_changed_meanwhile_is_a_conflict(
    make_host: MakeHost, make_disk: MakeDisk, server: S3Server | None
) -> None:
    """Both are kept. What nobody else touched, or was not changed here, is none."""
    machine = make(make_host, make_disk, server, persist_delay_s=30)
    host = machine.host
    machine.up()
    writer = Writer(host.mount)
    writer.run(WRITE.format(names=("replaced", "same-size", "removed", "ours", "clean"), data=b"first state"))
    settled(host)
    writer.run(WRITE.format(names=("replaced", "same-size", "removed", "ours"), data=b"second state"))
    machine.lose_power()
    theirs = {"replaced": b"of somebody else", "same-size": b"FIRST STATE", "clean": b"theirs"}
    for name, data in theirs.items():
        machine.change_origin(name, data)
    machine.change_origin("removed", None)
    machine.up()
    account = settled(host)
    host.ok("sync")
    wait_until(lambda: machine.shown()["clean"] == b"theirs")
    kept = {row["path"].strip("/"): row["kept"].strip("/") for row in account["conflicts"]}
    assert set(kept) == {"replaced", "same-size", "removed"}
    expected = {**theirs, "ours": b"second state", **dict.fromkeys(kept.values(), b"second state")}
    assert machine.shown() == expected
    assert machine.origin() == expected


WRITE = """
for name in {names!r}:
    with open(name, "wb") as file:
        file.write({data!r})
        file.flush()
        os.fsync(file.fileno())
"""
