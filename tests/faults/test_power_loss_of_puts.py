"""Power is lost while S3, WebHDFS, REST and the library write; nobody calls fsync, and what was answered is there
(finding 19 of the audit). HEADRACE_EXAMPLES: rounds."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.overlay.snapshot import EntryType, Snapshot
from headrace.ring.view import NodeInfo, next_view
from headrace.wire.peer_messages import Replicate
from headrace.writeback.replication.replica_host import ReplicaHost
from tests.faults import acknowledged_putter
from tests.faults.acknowledged_putter import TOP, States, replay
from tests.faults.conftest import Disk, MakeDisk, MakeHost, set_boot_id
from tests.integration.cli.host import MIB, Host, wait_until
from tests.integration.persist.conftest import settled

EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "1"))
LIMIT_S = 40.0
CHANGES, CHANGES_MIN = 150, 5
"""Answered in each round before power is lost, and of each door."""
ACCESS, SECRET, TOKEN = "AKIATESTS", "a secret", "of-the-tests"

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.timeout(80 * EXAMPLES),
    # from the disk's end to that of the node, the disk answers EIO to all
    pytest.mark.expected_warnings(
        "a round of write-back failed",
        "a change can't be persisted",
        "request failed",
        "a cache disk fails",
        "Traceback",
        "Input/output error",
    ),
]


class Machine:
    """A node and its three gateways; the cache is on a disk of its own, the origin survives it."""

    def __init__(self, host: Host, disk: Disk) -> None:
        self.host, self._disk = host, disk
        self.origin = host.base / "origin"
        self.origin.mkdir()
        (host.base / "keys").write_text(
            f"[tests]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n"
        )
        (host.base / "token").write_text(f"{TOKEN}\n")
        for secret in ("keys", "token"):
            (host.base / secret).chmod(0o600)
        (host.base / "config.toml").write_text(f'[mounts."{TOP}"]\nurl = "{self.origin}"\n')

    def node(self) -> None:
        config = self.host.base / "config.toml"
        self.host.start("node", "run", "--config", config, "--cache", f"{self.host.cache}:64MiB").wait_ready()

    def gateways(self) -> dict[str, str]:
        keys, address = self.host.base / "keys", ("--address", "127.0.0.1:0")
        started = {
            "s3": self.host.start("s3", *address, "--credentials", keys),
            "webhdfs": self.host.start("webhdfs", *address),
            "rest": self.host.start("rest", *address),
        }
        urls = {name: str(gateway.wait_ready()["url"]) for name, gateway in started.items()}
        return urls | {"access": ACCESS, "secret": SECRET, "token": TOKEN}

    def lose_power(self) -> None:
        self._disk.break_down()
        self.host.close()
        self._disk.mount_again()
        set_boot_id(self.host.cache / "index", "another boot")

    def stored(self) -> dict[str, bytes]:
        """Return what the origin has when all is persisted."""
        account = settled(self.host)
        assert account["conflicts"] == []
        return {
            f"{TOP}/{path.relative_to(self.origin)}": path.read_bytes()
            for path in self.origin.rglob("*")
            if path.is_file()
        }


def answered(log: Path) -> int:
    return log.read_bytes().count(b'"done"')


def least_answered(log: Path) -> int:
    """Return the number of answered puts of the door that has the fewest."""
    text = log.read_text()
    return min(text.count(f'"done": "{door}-') for door in acknowledged_putter.DOORS)


def test_what_was_answered_is_there(make_host: MakeHost, make_disk: MakeDisk) -> None:
    host = make_host(write="back", persist_delay_s=30, rest_token="", webhdfs_insecure="true")
    host.environment["HEADRACE_REST_TOKEN"] = str(host.base / "token")
    machine = Machine(host, make_disk(host.cache, f"ext4:{256 * MIB}"))
    chance = random.Random("puts")
    promised: States = {}
    for number in range(EXAMPLES):
        log = host.base / f"log-{number}"
        log.touch()
        machine.node()
        words = [
            sys.executable,
            acknowledged_putter.__file__,
            json.dumps(machine.gateways()),
            str(log),
            str(number),
        ]
        with subprocess.Popen(words, env=host.environment, stderr=subprocess.PIPE) as putter:
            wait_until(partial(has_put, putter, log), LIMIT_S)
            assert putter.poll() is None, putter.communicate()
            time.sleep(chance.random() / 4)  # the moment is what is tested
            moment_bytes = log.stat().st_size  # ext4 acknowledges an fsync that meets the shutdown
            machine.lose_power()
            putter.communicate(timeout=30)
        fresh, under_way = replay(log, moment_bytes)
        promised |= fresh
        machine.node()
        stored = machine.stored()
        check(stored, promised, under_way)
        promised = {**dict.fromkeys(promised), **stored}
        print(f"round {number}: {answered(log)} changes, {len(stored)} names, {len(under_way)} under way")
        host.close()


def has_put(putter: subprocess.Popen[bytes], log: Path) -> bool:
    return (answered(log) >= CHANGES and least_answered(log) >= CHANGES_MIN) or putter.poll() is not None


def check(stored: dict[str, bytes], promised: States, under_way: dict[str, list[bytes | None]]) -> None:
    """A name that a change was under way of has what it had, or what it was to have, and never a part."""
    wrong = {}
    for name in {*stored, *promised, *under_way}:
        allowed = [promised.get(name), *under_way.get(name, [])]
        data = stored.get(name)
        if data not in allowed:
            wrong[name] = (size_of(data), [size_of(content) for content in allowed])
    assert not wrong


def size_of(data: bytes | None) -> int | None:
    return None if data is None else len(data)


async def test_a_copy_is_on_the_disk_before_its_writer_hears_of_it(
    tmp_path: Path, make_disk: MakeDisk
) -> None:
    """`back:2` promised two disks; the second one had it in its page cache."""
    folder = tmp_path / "copies"
    disk = make_disk(folder, f"ext4:{32 * MIB}")
    (folder / "kept").mkdir()
    contents = {b"/d/%d" % number: os.urandom(1 + 997 * number) for number in range(40)}
    view = next_view(None, {"writer": NodeInfo("writer", "", "", "", 1 << 30, "", 3)}, epoch=1)
    with ThreadPoolExecutor(2) as threads:
        keeper = ReplicaHost("me", str(folder / "kept"), cast(Any, None), threads, view=lambda: view)
        snapshots = [
            Snapshot(path, EntryType.FILE, inode=number + 1, size_bytes=len(data), content=data, mode=0o600)
            for number, (path, data) in enumerate(contents.items())
        ]
        await keeper.replicate(Replicate("writer", snapshots, begin=True, end=True))
        keeper._layers["writer"].upper.close()  # so that the disk can be unmounted
    disk.break_down()
    disk.mount_again()
    tree = folder / "kept/writer/tree"
    assert {path: (tree / os.fsdecode(path[1:])).read_bytes() for path in contents} == contents
