"""A lab for real: namespaces, shaped links, mounts; killed, stopped, cut each way, ended after a crash."""

from __future__ import annotations

import concurrent.futures
import hashlib
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.base.errors import HeadraceError, UsageError
from headrace.lab import network, processes
from headrace.lab.lab import Lab, LabPlan
from tests import service_logs
from tests.fork_server import forking

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        bool(network.why_no_namespaces()), reason="no network namespaces for these tests of FUSE"
    ),
]
RATE_BITS_S = 100_000_000
BYTES = 6 << 20
TRIES = 6
SEND = """
import socket, sys
listener = socket.create_server((sys.argv[1], 9999))
print("listening", flush=True)
other, _ = listener.accept()
while other.recv(1 << 16):
    pass
other.sendall(b"x")
"""
"""Takes all that comes, and says so at the end."""
ECHO = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as echo:
    echo.bind((sys.argv[1], 9998))
    print("listening", flush=True)
    while True:
        echo.sendto(*echo.recvfrom(100))
"""


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    folder = tmp_path / "origin"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.bin").write_bytes(random.Random(number).randbytes(100_000 + number))
    return folder


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with forking(), service_logs.following(Lab(str(tmp_path / "lab.json")), tmp_path / "lab") as lab:
        yield lab
    assert not (tmp_path / "lab.json").exists()


def left_of(folder: str) -> list[str]:
    """Processes, mounts and network devices that a lab left behind."""
    prefix = network.Namespaces(folder, 0)._prefix
    with open("/proc/self/mounts") as mounts:
        leftovers = [line for line in mounts if folder in line]
    names = os.listdir("/run/netns") if os.path.isdir("/run/netns") else []
    leftovers += [name for name in [*os.listdir("/sys/class/net"), *names] if name.startswith(prefix)]
    for name in ("node-1", "node-2", "node-3", "etcd", "origin"):
        leftovers += processes.marked(os.path.join(folder, name)).values()
    return leftovers


def read_all(mountpoint: str) -> dict[str, str]:
    """By another process, with a limit: a mount may hang. Name → sum."""
    words = "sha256sum *"
    done = subprocess.run(
        ["sh", "-c", words], cwd=mountpoint, capture_output=True, text=True, timeout=60, check=True
    )
    return {line.split()[1]: line.split()[0] for line in done.stdout.splitlines()}


def sums(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def plan(tmp_path: Path, origin: Path, **more: object) -> LabPlan:
    given = {"nodes": 2, "origin": f"file://{origin}", "alone": True, "folder": str(tmp_path / "lab")}
    return LabPlan(**{**given, "cache_bytes": 64 << 20, **more})  # type: ignore[arg-type]


def listening(lab: Lab, number: int, program: str) -> subprocess.Popen[str]:
    words = [*lab.inside(number), sys.executable, "-c", program, lab.address(number)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    return process


def test_nodes_are_killed_started_stopped_added_and_ended(lab: Lab, tmp_path: Path, origin: Path) -> None:
    lab.up(plan(tmp_path, origin, zones=2))
    assert [(row["running"], row["zone"]) for row in lab.status()] == [("yes", "zone-1"), ("yes", "zone-2")]
    wanted = sums(origin)
    assert [read_all(lab.mountpoint(number)) for number in (1, 2)] == [wanted, wanted]
    assert lab.report(1)["node"]["pid"] in lab.status()[0]["pids"]

    assert len(lab.kill(1)) >= 3
    assert [row["running"] for row in lab.status()] == ["no", "yes"]
    assert read_all(lab.mountpoint(2)) == wanted
    with pytest.raises(HeadraceError):
        lab.report(1)
    lab.start(1)
    assert read_all(lab.mountpoint(1)) == wanted
    with pytest.raises(UsageError, match="is running"):
        lab.start(1)

    lab.stop(2)
    assert lab.status()[1]["running"] == "stopped"
    lab.cont(2)
    assert read_all(lab.mountpoint(2)) == wanted
    assert lab.add() == 3
    assert read_all(lab.mountpoint(3)) == wanted
    with pytest.raises(UsageError, match="no such node exists"):
        lab.kill(4)

    lab.stop(3)  # a stopped node is ended too
    lab.down()
    lab.down()
    assert left_of(str(tmp_path / "lab")) == []


def test_only_the_daemon_is_killed_and_comes_back(lab: Lab, tmp_path: Path, origin: Path) -> None:
    lab.up(plan(tmp_path, origin, nodes=1))
    before = lab.report(1)["node"]["pid"]
    session = {pid for pid in lab.status()[0]["pids"] if pid != before}
    assert lab.kill(1, only_node=True) == [before]
    assert read_all(lab.mountpoint(1)) == sums(origin)
    assert lab.report(1)["node"]["pid"] != before
    assert session <= set(lab.status()[0]["pids"])


def test_the_gateway_keeps_its_address_as_nodes_are_added(tmp_path: Path) -> None:
    """Nodes did not reach etcd for half a minute after it had changed."""
    net = network.Namespaces(str(tmp_path), 0)
    try:
        net.make()
        address = Path(f"/sys/class/net/{net._bridge}/address")
        addresses = [address.read_text()]
        for number in range(1, 4):
            net.add(number)
            addresses.append(address.read_text())
    finally:
        net.remove()
    assert len(set(addresses)) == 1


def test_networks_at_the_same_time_have_addresses_of_their_own(tmp_path: Path) -> None:
    """The directories have the same first choice. 198.18.N.0/24 was the name of the directory, in 8 bits."""
    wanted = zlib.crc32(str(tmp_path).encode()) % 256
    same = (
        f"{tmp_path}/{n}" for n in itertools.count() if zlib.crc32(f"{tmp_path}/{n}".encode()) % 256 == wanted
    )
    directories = list(itertools.islice(same, 4))
    networks = [network.Namespaces(directory, 0) for directory in directories]
    try:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(network.Namespaces.make, networks))
        gateways = [net.gateway for net in networks]
        assert len({net.address(number) for net in networks for number in range(1, 65)}) == 4 * 64
        later = [network.Namespaces(directory, 0) for directory in directories]
        assert [net.gateway for net in later] == gateways, "another process finds the same"
        later[0].make()
        assert later[0].gateway == gateways[0], "what exists is not made anew"
    finally:
        for net in networks:
            net.remove()
    with pytest.raises(HeadraceError, match="the network of the lab is gone"):
        networks[0].address(1)


def test_links_are_shaped_each_way(lab: Lab, tmp_path: Path, origin: Path) -> None:
    lab.up(plan(tmp_path, origin, rate_bits_s=RATE_BITS_S))
    for sender, receiver in ((1, 2), (2, 1)):
        there = listening(lab, receiver, SEND)
        words = (
            "import socket, sys; s = socket.create_connection((sys.argv[1], 9999));"
            f"s.sendall(bytes({BYTES})); s.shutdown(1); s.recv(1)"
        )
        began_s = time.perf_counter()
        sent = [*lab.inside(sender), sys.executable, "-S", "-c", words, lab.address(receiver)]
        subprocess.run(sent, timeout=30, check=True)
        took_s = time.perf_counter() - began_s
        assert there.wait(60) == 0
        there.stdout.close()  # type: ignore[union-attr]
        # the burst may go at once; what else bounds it can only make it slower
        assert took_s > (BYTES - 2 * network.BURST_BYTES_MIN) * 8 / RATE_BITS_S


@pytest.mark.parametrize(
    ("one_way", "hears", "tells"), [("", False, False), ("in", False, True), ("out", True, False)]
)
def test_a_cut_drops_what_it_says(
    lab: Lab, tmp_path: Path, origin: Path, one_way: str, hears: bool, tells: bool
) -> None:
    """hears: the node others; tells: others the node."""
    lab.up(plan(tmp_path, origin, nodes=1))
    echo = listening(lab, 1, ECHO)
    try:
        assert _soon(_rings, lab)
        assert _soon(_tells, lab)
        heard = _heard(lab)
        lab.cut(1, one_way=one_way)
        assert lab.status()[0]["cut"] == (one_way or "both")
        assert not _rings(lab)
        assert (_heard(lab) > heard, _soon(_tells, lab)) == (hears, tells)
        lab.heal(1)
        assert _soon(_rings, lab)
        assert lab.status()[0]["cut"] == ""
    finally:
        echo.kill()
        echo.wait()
        echo.stdout.close()  # type: ignore[union-attr]


def _soon(check: Callable[[Lab], bool], lab: Lab) -> bool:
    """A datagram may get lost, and the first ones come before their neighbours are known."""
    return any(check(lab) for _ in range(TRIES))


def _rings(lab: Lab) -> bool:
    """A datagram comes back."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(0.5)
        client.connect((lab.address(1), 9998))
        client.send(b"ring")
        try:
            return client.recv(100) == b"ring"
        except TimeoutError:
            return False


def _heard(lab: Lab) -> int:
    """UDP datagrams that the node has got (RFC 4113)."""
    words = [*lab.inside(1), "cat", "/proc/net/snmp"]
    lines = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Udp: ") and "In" not in line))


def _tells(lab: Lab) -> bool:
    """Return whether what the node sends arrives."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        gateway = network.Namespaces(lab.record.folder, 0).gateway
        listener.bind((gateway, 0))
        listener.settimeout(0.5)
        words = "import socket, sys; socket.socket(2, 2).sendto(b'told', (sys.argv[1], int(sys.argv[2])))"
        command = [sys.executable, "-S", "-c", words, gateway, str(listener.getsockname()[1])]
        subprocess.run([*lab.inside(1), *command], timeout=60, check=True)
        try:
            return listener.recv(100) == b"told"
        except TimeoutError:
            return False


def test_down_after_a_crash_of_up(tmp_path: Path, origin: Path) -> None:
    folder = str(tmp_path / "lab")
    program = (
        "import os, sys; from headrace.lab import lab\n"
        f"cluster = lab.Lab({str(tmp_path / 'lab.json')!r}, progress=lambda line: os.kill(os.getpid(), 9))\n"
        f"cluster.up(lab.LabPlan(nodes=2, origin={'file://' + str(origin)!r}, alone=True, folder={folder!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    try:
        assert done.returncode == -signal.SIGKILL
        assert left_of(folder) != []
    finally:
        Lab(str(tmp_path / "lab.json")).down()
    assert left_of(folder) == []


@pytest.mark.expected_warnings("node did not start")
def test_a_node_that_can_not_start_leaves_nothing(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match=r"node 1 can't start: file:.*No such file"):
        lab.up(plan(tmp_path, tmp_path / "missing"))
    assert left_of(str(tmp_path / "lab")) == []


def test_loopback_of_the_host_is_out_of_reach(lab: Lab, tmp_path: Path, origin: Path) -> None:
    with pytest.raises(UsageError, match="loopback"):
        lab.up(plan(tmp_path, origin, origin_options={"endpoint": "http://127.0.0.1:9000"}))
