"""Seals and mount namespaces: containers see what their propagation lets them see, and right bytes to the end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.fuse import device
from headrace.seal.mounted import seals_below
from tests.integration.cli.host import Host, wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(90)]


DROP_OTHERS = """
awk -v kept="$0/" '$5 ~ "/pytest-of-" && index($5 "/", kept) != 1 {print $5}' /proc/self/mountinfo |
  while read -r mount; do umount --lazy "$mount" 2>/dev/null; done
exec "$@"
"""
"""Runs a program without the mounts of other tests, which would be in use until its end."""


class Container:
    """A process in a mount namespace of its own, with the mounts below a directory; `flags` are those of unshare(1)."""

    def __init__(self, base: Path, *flags: str) -> None:
        without_others = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", DROP_OTHERS, str(base)]
        self._process = subprocess.Popen(
            [*without_others, "unshare", "--mount", *flags, "sh", "-c", "echo ready; exec sleep 1000"],
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def run(self, *words: object) -> subprocess.CompletedProcess[bytes]:
        enter = ["nsenter", "--mount", "--target", str(self._process.pid)]
        return subprocess.run([*enter, *map(str, words)], capture_output=True, timeout=30, check=False)

    def read(self, path: Path) -> bytes:
        done = self.run("cat", path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def seals(self, host: Host) -> int:
        """Return how many seals are mounted in this namespace below a host's directory."""
        rows = self.run("cat", "/proc/self/mounts").stdout.decode().splitlines()
        return sum(row.startswith("headrace-seal:") and f" {host.base}/" in row for row in rows)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host whose mounts are shared with containers, as they are on any host with systemd."""
    subprocess.run(["mount", "--bind", tmp_path, tmp_path], check=True)
    subprocess.run(["mount", "--make-shared", tmp_path], check=True)
    host = Host(tmp_path)
    try:
        for number in range(20):
            host.put(f"images/{number}.bin", 1000 + number * 997)
        host.put("images/large", (5 << 20) + 321)
        yield host
    finally:
        host.close()
        device.unmount(str(tmp_path), detach=True)


@pytest.fixture
def containers() -> Iterator[list[Container]]:
    containers: list[Container] = []
    yield containers
    for container in containers:
        container.end()


def test_a_container_follows_the_seals_of_the_host(host: Host, containers: list[Container]) -> None:
    """Propagation `slave` is what Kubernetes calls HostToContainer."""
    host.up()
    container = Container(host.base, "--propagation", "slave")
    containers.append(container)
    path, truth = host.mount / "images/3.bin", host.truth / "images/3.bin"
    first = truth.read_bytes()
    assert container.read(path) == first and container.seals(host) == 0
    host.ok("seal", host.mount / "images", "--in-place")
    assert container.seals(host) == 1
    second = host.put("images/3.bin", 2222, seed=2)
    host.ok("sync", "/")
    assert container.read(path) == first
    host.ok("seal", host.mount / "images", "--in-place")
    assert container.read(path) == second
    for version in ("images@2", "images@1"):
        host.ok("seal", "remove", version)
    assert container.seals(host) == 0 and container.read(path) == second


def test_a_private_container_goes_on_with_the_mount(host: Host, containers: list[Container]) -> None:
    host.up()
    container = Container(host.base, "--propagation", "private")
    containers.append(container)
    host.ok("seal", host.mount / "images", "--in-place")
    assert container.seals(host) == 0
    host.put("images/3.bin", 2222, seed=2)
    host.ok("sync", "/")
    for name in ("images/3.bin", "images/large"):
        assert container.read(host.mount / name) == (host.truth / name).read_bytes()


def test_a_user_namespace_reads_a_seal(host: Host, containers: list[Container]) -> None:
    host.up()
    sealed = host.base / "sealed"
    host.ok("seal", host.mount / "images", "--at", sealed, "--allow-other")
    container = Container(host.base, "--user", "--map-root-user")
    containers.append(container)
    assert container.read(sealed / "large") == (host.truth / "images/large").read_bytes()
    assert container.run("sh", "-c", f"echo x > {sealed}/3.bin").returncode != 0


def test_who_still_has_a_removed_seal_reads_its_files(host: Host, containers: list[Container]) -> None:
    """Neither `free` nor the next start of the node takes a file from them; after them all files can go."""
    host.up()
    sealed = host.base / "sealed"
    host.ok("seal", host.mount / "images", "--at", sealed)
    container = Container(host.base, "--propagation", "private")
    containers.append(container)
    with (sealed / "3.bin").open("rb") as opened:
        assert host.json("seal", "remove", "images@1") == {"seal": "images@1", "in_use": True}
        assert seals_below(str(host.base)) == [] and host.json("seal", "list") == []
        host.headrace("free", "/")
        host.ok("down")
        host.up()
        host.headrace("free", "/")
        assert host.json("status")["seals_in_use"] == ["images@1"]
        for name in ("large", "7.bin"):
            assert container.read(sealed / name) == (host.truth / "images" / name).read_bytes()
        container.end()
        assert opened.read() == (host.truth / "images/3.bin").read_bytes()
        assert host.json("status")["seals_in_use"] == ["images@1"]
    host.ok("down")
    host.up()
    assert host.json("status")["seals_in_use"] == []
    host.ok("free", "/")
    wait_until(lambda: not [path for path in (host.cache / "files").rglob("*") if path.is_file()])


def test_a_mountpoint_stays_while_a_container_has_a_seal_there(
    host: Host, containers: list[Container]
) -> None:
    """The removal of the directory would unmount it in the container. One has the last seal, one the seal before."""
    host.up()
    sealed = host.base / "sealed"
    for _ in range(2):
        host.ok("seal", host.mount / "images", "--at", sealed)
        containers.append(Container(host.base, "--propagation", "private"))
    for version in ("images@1", "images@2"):
        host.ok("seal", "remove", version)
    containers.pop().end()
    host.ok("seal", "/images", "--at", sealed)
    host.ok("seal", "remove", "images@1")
    assert sealed.is_dir()
    for name in ("large", "7.bin"):
        assert containers[0].read(sealed / name) == (host.truth / "images" / name).read_bytes()
    containers.pop().end()
    host.ok("seal", "/images", "--at", sealed)
    host.ok("seal", "remove", "images@1")
    assert sealed.is_dir()  # it was there when the seal was mounted


def test_nodes_of_one_host_have_seals_of_one_name(host: Host) -> None:
    """Removing one of them leaves the other as it is."""
    host.up()
    (host.base / "b").mkdir()
    other = Host(host.base / "b")
    try:
        other.put("images/3.bin", 500)
        other.up()
        places = []
        for each in (host, other):
            each.ok("seal", "/images", "--at", each.base / "sealed")
            places.append(str(each.base / "sealed"))
        rows = [each.json("seal", "list")[0] for each in (host, other)]
        assert [row["seal"] for row in rows] == ["images@1", "images@1"]
        assert [row["mounted"] for row in rows] == places
        assert [each.json("status")["seals"][0]["mounted"] for each in (host, other)] == [[p] for p in places]
        host.ok("seal", "remove", "images@1")
        assert seals_below(str(host.base)) == [places[1]]
        assert (other.base / "sealed/3.bin").read_bytes() == (other.truth / "images/3.bin").read_bytes()
    finally:
        other.close()
