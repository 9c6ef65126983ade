"""Three nodes whose clocks are an hour apart, one with a disk of its own: rot, a full disk, other protocols.

All tests of this file share one cluster, and each has its own folder of files.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from headrace.testing.etcd import etcd_server
from headrace.testing.servers import ServerMissing
from headrace.wire.peer_messages import PEER_PROTOCOL, PEER_PROTOCOL_MIN
from tests.integration.cli.host import MIB, Host
from tests.integration.cluster.cluster_fixture import ClusterFixture, run_first
from tests.integration.cluster.conftest import UNREACHABLE

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.timeout(300),
    pytest.mark.expected_warnings(*UNREACHABLE, "the capacity exceeds the disk", "is limited to its disk"),
]

HOUR_S = 3600
SHIFTS_S = (-HOUR_S, HOUR_S, 0)
DISK_BYTES = 48 * MIB
LIMIT_S = 60.0

CLOCK = """
import sys, time
_time, _time_ns = time.time, time.time_ns

def _shift_s():
    asker = sys._getframe(2).f_globals.get("__name__", "")
    return {shift_s} if asker.partition(".")[0] in ("headrace", "logging") else 0

time.time = lambda: _time() + _shift_s()
time.time_ns = lambda: _time_ns() + _shift_s() * 10**9
"""
"""What every process of a host runs before a line of Headrace's. The clock of Headrace alone: libraries compare
Python's clock with their own, as gRPC does in each deadline, and a host's would be one."""

PROTOCOL = """
import headrace.wire.peer_messages as messages
messages.PEER_PROTOCOL_MIN, messages.PEER_PROTOCOL = {oldest}, {newest}
"""

LIES = """
import itertools, os
from headrace.entry.peer.channel import Channel, PeerGoneError
_turn = itertools.count()

def send_file(self, file, start, end):
    body, turn = bytearray(os.pread(file, end - start, start)), next(_turn)
    if turn % 2:
        yield from self.send(body[: len(body) // 2])
        raise PeerGoneError("a lie")
    body[len(body) // 3] ^= 1
    yield from self.send(body)

Channel.send_file = send_file
"""
"""A byte is flipped, or half of the block is all that comes, in turns."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterFixture]:
    base = tmp_path_factory.mktemp("apart")
    try:
        with etcd_server() as etcd:
            cluster = ClusterFixture(base, etcd.address, sync_interval_s=2, lease_s=30, predict_reads=False)
            disk = base / "n1/cache"
            try:
                for number in range(40):
                    cluster.put(f"clock/{number}", 30_000 + number)
                    cluster.put(f"rot/{number}", 40_000 + number)
                    cluster.put(f"full/{number}", 200_000 + number)
                    cluster.put(f"again/{number}", 20_000 + number)
                    cluster.put(f"lies/{number}", 20_000 + number)
                    cluster.put(f"protocol/{number}", 20_000 + number)
                for name in (
                    "clock/large",
                    "rot/large",
                    "full/large",
                    "full/other",
                    "lies/large",
                ):
                    cluster.put(name, 4 * MIB + 77)
                for shift_s in SHIFTS_S:
                    run_first(cluster.add(), CLOCK.format(shift_s=shift_s), in_forks=True)
                disk.mkdir()
                run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk)
                for host in cluster.hosts:
                    cluster.up(host)
                cluster.wait_members(3)
                yield cluster
            finally:
                cluster.close()
                if os.path.ismount(disk):
                    run("umount", "-l", disk)
    except ServerMissing as error:
        pytest.skip(str(error))


def run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, timeout=30, capture_output=True)


def below(cluster: ClusterFixture, folder: str) -> list[str]:
    return [name for name in cluster.hosts[0].names() if name.startswith(f"{folder}/")]


def all_read(hosts: list[Host], names: list[str]) -> None:
    with ThreadPoolExecutor(len(hosts)) as pool:
        for done in [pool.submit(host.assert_right, *names, limit_s=LIMIT_S) for host in hosts]:
            done.result()


def log_of(host: Host) -> str:
    return "".join(path.read_text() for path in sorted(host.run_folder.glob("*.log")))


def test_clocks_two_hours_apart(cluster: ClusterFixture) -> None:
    first, second, _ = cluster.hosts
    begins = [datetime.fromisoformat(log_of(host)[:19]) for host in (first, second)]
    assert (begins[1] - begins[0]).total_seconds() > 1.5 * HOUR_S  # else there is nothing to see here
    names = below(cluster, "clock")
    before, missed = cluster.origin(), cluster.misses()
    all_read(cluster.hosts, names)
    extra = cluster.origin() - before - sum((cluster.truth / name).stat().st_size for name in names)
    assert 0 <= extra <= (cluster.misses() - missed) * 5 * MIB
    # until when a listing is good goes from owner to reader as a duration: nobody keeps one for an hour
    cluster.put("clock/0", 35_000, seed=1)
    cluster.put("clock/new", 36_000)
    (cluster.truth / "clock/1").unlink()
    for host in cluster.hosts:
        cluster.wait_for(lambda host=host: host.read("clock/1")["clock/1"]["error"] == "ENOENT", LIMIT_S)  # type: ignore[misc]
        cluster.wait_for(lambda host=host: not host.read("clock/new")["clock/new"]["error"], LIMIT_S)  # type: ignore[misc]
        host.assert_right(*below(cluster, "clock"))
    state = second.json("load", "/clock", limit_s=LIMIT_S)
    assert state["failed_files"] == 0
    (row,) = first.json("job", "list")
    assert 0 <= row["took_s"] < HOUR_S / 2
    for host in cluster.hosts:
        assert len(cluster.members(host)) == 3
        assert not cluster.status(host)["cluster"]["membership"]["leases_lost"]
        assert 0 <= cluster.status(host)["node"]["uptime_s"] < HOUR_S / 2


@pytest.mark.expected_warnings(
    "cached file failed its checksum",
    "a cached file does not match its checksums",
    "a peer sent bytes that don't match their checksum",
)
def test_rot_at_the_owner_is_mended_when_a_peer_meets_it(cluster: ClusterFixture) -> None:
    names = below(cluster, "rot")
    owners = cluster.owners(names)
    owner = owners["rot/large"]
    peer, other = (host for host in cluster.hosts if host is not owner)
    small = next(name for name in names if owners[name] is owner and name != "rot/large")
    owner.assert_right(*names)
    ids: dict[str, int] = {}
    for name, offset in (("rot/large", 2 * MIB + 500_000), (small, 20_000)):
        ids[name] = id = owner.json("stat", owner.mount / name)["id"]
        with next(owner.cache.glob(f"files/*/{id:012x}")).open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)
            file.seek(offset)
            file.write(bytes([byte[0] ^ 1]))
    peer.assert_right(*names)
    for name, id in ids.items():
        line = f"are dropped id={id:x} path=/{name}\n"
        cluster.wait_for(lambda line=line: line in log_of(owner), LIMIT_S)  # type: ignore[misc]
    other.assert_right(*names)
    owner.assert_right(*names)
    for name, id in ids.items():
        body = (cluster.truth / name).read_bytes()
        cluster.wait_for(lambda id=id, body=body: cached_bytes(owner, id) == body, LIMIT_S)  # type: ignore[misc]


def cached_bytes(host: Host, id: int) -> bytes:
    """Return the bytes of a complete file on the disk, or none while it is not there."""
    return b"".join(path.read_bytes() for path in host.cache.glob(f"files/*/{id:012x}"))


@pytest.mark.expected_warnings(
    "a cache disk is full", "a cache disk has space again", "No space left on device"
)
def test_a_full_disk_at_an_owner(cluster: ClusterFixture) -> None:
    first, owner, third = cluster.hosts
    names = below(cluster, "full")
    assert owner in cluster.owners(names).values()
    pid = owner.pid_of("node")
    for host in cluster.hosts:
        host.ok("ls", host.mount / "full")
    ballast = owner.cache / "ballast"
    try:
        cluster.wait_for(lambda: is_full(cluster, owner, ballast), LIMIT_S)
        all_read([first, third], names)
        for name, row in owner.read(*names, limit_s=LIMIT_S).items():
            assert row["wrong"] == -1, (name, row)
            assert row["error"] in ("", "ENOSPC", "EIO"), (name, row)
        full = f"the disk of {owner.cache} is full"
        cluster.wait_for(lambda: is_full(cluster, owner, ballast) and full in owner.ok("status"), LIMIT_S)
        assert "cache disk is full" in log_of(owner)
    finally:
        ballast.unlink()
    cluster.wait_for(lambda: not cluster.status(owner)["cache"]["disks_full"], LIMIT_S)
    again = below(cluster, "again")
    served = cluster.status(first)["cluster"]["peers"]["n1"]["files"]
    all_read(cluster.hosts, [*names, *again])
    assert cluster.status(first)["cluster"]["peers"]["n1"]["files"] > served
    assert owner.pid_of("node") == pid


@pytest.mark.expected_warnings("the peer speaks protocols")
def test_protocols_that_differ_by_one(cluster: ClusterFixture) -> None:
    """Next to nodes of this release: one that speaks the next protocol, too, and one that speaks only that."""
    ours = PEER_PROTOCOL
    for oldest in (ours, ours + 1):
        run_first(cluster.add(), PROTOCOL.format(oldest=oldest, newest=ours + 1))
    first, (both, newer) = cluster.hosts[0], cluster.hosts[3:]
    for host in (both, newer):
        cluster.up(host)
    cluster.wait_members(5)
    names = below(cluster, "protocol")
    assert {first, both, newer} <= set(cluster.owners(names).values())
    all_read([first, both, newer], names)
    assert files_from(cluster, first, "n3") > 0
    assert files_from(cluster, both, "n0") > 0
    assert files_from(cluster, both, "n4") > 0
    assert files_from(cluster, newer, "n3") > 0
    for asker, asked, spoken, unspoken in (
        (first, "n4", f"{PEER_PROTOCOL_MIN} to {ours}", f"{ours + 1} to {ours + 1}"),
        (newer, "n0", f"{ours + 1} to {ours + 1}", f"{PEER_PROTOCOL_MIN} to {ours}"),
    ):
        assert files_from(cluster, asker, asked) == 0
        said = f"the peer speaks protocols {spoken}: this node speaks {unspoken}"
        assert said in log_of(asker)
        assert cluster.status(asker)["cluster"]["peers"][asked]["trouble"]
        assert "not answering: " in asker.ok("status")


@pytest.mark.expected_warnings(
    "a peer sent bytes that don't match their checksum", "the peer speaks protocols"
)
def test_a_node_that_sends_wrong_or_too_few_bytes(cluster: ClusterFixture) -> None:
    """A whole node whose door does so now and then: others' readers don't notice, and it finds its disk in order."""
    first, liar = cluster.hosts[0], cluster.add()
    run_first(liar, LIES, in_forks=True)
    cluster.up(liar)
    cluster.wait_members(len(cluster.hosts))
    names = below(cluster, "lies")
    liar.assert_right(*names)
    failed = cluster.status(first)["peers"]["reads_failed"]
    all_read([first, cluster.hosts[2]], names)
    assert cluster.status(first)["peers"]["reads_failed"] > failed
    assert "don't match their checksum" in log_of(first) + log_of(cluster.hosts[2])
    assert "bad blocks" not in log_of(liar)
    liar.assert_right(*names, mode="mmap")


def files_from(cluster: ClusterFixture, asker: Host, asked: str) -> int:
    return int(cluster.status(asker)["cluster"]["peers"][asked]["files"])


def is_full(cluster: ClusterFixture, host: Host, ballast: Path) -> bool:
    """Fills the disk up, also what the node lets go of meanwhile; whether the node says so."""
    with ballast.open("ab", buffering=0) as file:
        try:
            while file.write(bytes(64 << 10)):
                pass
        except OSError as error:
            assert error.errno == errno.ENOSPC
    said: list[str] = cluster.status(host)["cache"]["disks_full"]
    return said == [str(host.cache)]
