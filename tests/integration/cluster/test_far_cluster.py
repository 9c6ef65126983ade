"""A cluster whose origin is another one: a region's cache in front of a central one, over a link that is counted."""

from __future__ import annotations

import os
import secrets
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.identity.authority import Authority
from headrace.identity.names import CLIENT
from headrace.testing.etcd import EtcdServer
from tests.certificates import authority, issued, settings_of
from tests.integration.cli.host import Host, wait_until

from .cluster_fixture import ClusterFixture
from .conftest import UNREACHABLE
from .tcp_link import TcpLink, tcp_link

pytestmark = [pytest.mark.fuse, pytest.mark.server("etcd"), pytest.mark.timeout(180)]

TOKEN = "of-the-centre"
MIB = 1 << 20


@dataclass
class Levels:
    """A central cluster of two nodes, and a region's of two, whose requests pass the links."""

    central: ClusterFixture
    region: ClusterFixture
    links: list[TcpLink]

    @property
    def bytes_down(self) -> int:
        return sum(link.bytes_down for link in self.links)


def secret(path: Path, text: str) -> Path:
    path.write_text(f"{text}\n")
    path.chmod(0o600)
    return path


def certificates_of(signer: Authority, folder: Path) -> Path:
    """Return a directory as `headrace tls issue --role client` makes it."""
    files = issued(signer, "region-1", role=CLIENT, file=folder.name)
    shutil.copy(files.authority, Path(files.certificate).parent / "authority.pem")
    return Path(files.certificate).parent


@pytest.fixture
def make_levels(tmp_path: Path, etcd: EtcdServer) -> Iterator[Callable[..., Levels]]:
    clusters: list[ClusterFixture] = []
    with ExitStack() as stack:

        def make(
            files: dict[str, int],
            path: str = "",
            *,
            tls: bool = False,
            events: bool = False,
            **settings: object,
        ) -> Levels:
            for name in ("c", "r"):  # short: below it are paths of sockets
                base = tmp_path / f"{name}{secrets.token_hex(4)}"
                base.mkdir()
                clusters.append(ClusterFixture(base, etcd.address, **settings))
            central, region = clusters
            for name, size_bytes in files.items():
                central.put(name, size_bytes)
            token = secret(tmp_path / "token", TOKEN)
            access: tuple[object, ...] = ("-o", "allow_http=true", "-o", f"token=@{token}")
            signer = authority(tmp_path / "authority", central.base.name) if tls else None
            for number in range(2):
                own: dict[str, object] = {"rest_token": token}
                if signer is not None:
                    own = {**settings_of(issued(signer, f"n{number}"))}
                central.up(central.add(rest_address="127.0.0.1:0", sync_interval_s=0.2, **own))
            central.wait_members(2)
            if signer is not None:
                access = ("-o", f"certificates={certificates_of(signer, tmp_path / 'region-1')}")
            access = (*access, "-o", "events=on") if events else access
            links = [stack.enter_context(tcp_link(up.ready["rest"].rpartition("/")[2])) for up in central.ups]
            url = f"headrace://{','.join(link.address for link in links)}{path}"
            for _ in range(2):
                host = region.add()
                host.truth = central.truth / path.lstrip("/")
                region.up(host, url, host.mount, *access)
            region.wait_members(2)
            return Levels(central, region, links)

        yield make
        for cluster in clusters:
            cluster.close()


@pytest.mark.expected_warnings(*UNREACHABLE)
def test_each_byte_crosses_the_link_once(make_levels: Callable[..., Levels]) -> None:
    files = {f"train/{number:03d}.jpg": 100_000 + number for number in range(60)}
    files |= {"model.bin": 70 * MIB + 321, "empty": 0, "deep/a/b/c/x": 5}
    levels = make_levels(files)
    first, second = levels.region.hosts
    first.assert_right()
    second.assert_right()
    size = sum(files.values())
    down = levels.bytes_down
    print(f"bytes over the link, of the data set: {down / size:.4f}")
    assert down <= 1.01 * size
    for link in levels.links:
        link.cut()
    first.assert_right()
    second.assert_right("model.bin", "train/001.jpg")
    assert levels.bytes_down == down
    for link in levels.links:
        link.heal()
    row = first.json("stat", first.mount / "model.bin")
    there = levels.central.hosts[0].json("stat", levels.central.hosts[0].mount / "model.bin")
    assert row["version"].strip('"') == there["version"].strip('"'), "the version is carried through"


@pytest.mark.expected_warnings("node did not start", "refused interface=rest")
def test_by_certificates(make_levels: Callable[..., Levels], tmp_path: Path) -> None:
    levels = make_levels({"a": 100_000, "d/b": 3 * MIB + 5}, tls=True)
    for host in levels.region.hosts:
        host.assert_right()
    other = authority(tmp_path / "other", levels.central.base.name)
    stranger = certificates_of(other, tmp_path / "stranger")
    base = tmp_path / "host"
    base.mkdir()
    host = Host(base)
    url = f"headrace://{levels.links[0].address}"
    refused = host.headrace("up", url, host.mount, "-o", f"certificates={stranger}")
    assert refused.returncode != 0 and "certificate" in refused.stderr, refused.stderr
    unencrypted = host.headrace("up", url, host.mount, "-o", "allow_http=true")
    assert unencrypted.returncode != 0
    host.close()


def test_a_change_at_the_centre_appears(make_levels: Callable[..., Levels]) -> None:
    levels = make_levels({"d/a": 1000, "d/b": 2000}, sync_interval_s=0.5)
    host = levels.region.hosts[0]
    host.assert_right()
    levels.central.put("d/a", 1500, seed=1)
    levels.central.put("d/new", 10)
    (levels.central.truth / "d/b").unlink()
    wait_until(lambda: sorted(os.listdir(host.mount / "d")) == ["a", "new"])
    wait_until(lambda: (host.mount / "d/a").stat().st_size == 1500)
    host.assert_right()


@pytest.mark.expected_warnings("events of a mount can't be received")
def test_a_change_that_the_centre_knows_is_seen_in_a_second(make_levels: Callable[..., Levels]) -> None:
    """Listings of the region are fresh for an hour: the centre tells of changes."""
    levels = make_levels({"d/a": 1000, "d/b": 2000}, events=True)
    centre = levels.central.hosts[0]
    for host in levels.region.hosts:
        host.assert_right()
    wait_until(lambda: sum(messages(host) for host in levels.region.hosts) > 0)  # the beginning of the feed
    times = []
    for number in range(5):
        levels.central.put(f"d/new-{number}", 100 + number)
        levels.central.put("d/a", 1500 + number, seed=number)
        centre.ok("sync", "/d")
        begun_s = time.monotonic()
        for host in levels.region.hosts:
            wait_until(lambda host=host, number=number: shown(host, number))  # type: ignore[misc]
        times.append(time.monotonic() - begun_s)
    print("seen by all nodes of the region after s:", sorted(round(seconds, 3) for seconds in times))
    assert statistics.median(times) <= 1.0
    for host in levels.region.hosts:
        host.assert_right()
    levels.central.hosts[0].close()
    levels.central.put("d/late", 10)
    levels.central.hosts[1].headrace("sync", "/d")  # it reports the dead node
    wait_until(lambda: all("late" in os.listdir(host.mount / "d") for host in levels.region.hosts))


def messages(host: Host) -> int:
    return sum(row["messages"] for row in host.status()["events"]["receivers"].values())


def shown(host: Host, number: int) -> bool:
    size = (host.mount / "d/a").stat().st_size
    return size == 1500 + number and f"new-{number}" in os.listdir(host.mount / "d")


@pytest.mark.expected_warnings(*UNREACHABLE)
def test_the_next_node_serves_when_one_dies(make_levels: Callable[..., Levels]) -> None:
    levels = make_levels({f"f{number}": 300_000 for number in range(20)})
    host = levels.region.hosts[0]
    host.assert_right("f0")
    levels.central.hosts[0].close()  # the link accepts, and then closes
    begun_s = time.monotonic()
    host.assert_right(limit_s=60.0)
    print(f"20 files after the death of a node: {time.monotonic() - begun_s:.1f} s")


def test_a_path_of_the_centre_is_an_origin_and_nothing_above_it(make_levels: Callable[..., Levels]) -> None:
    levels = make_levels({"private/secret": 100, "public/data": 200, "public/in/deep": 300}, path="/public")
    host = levels.region.hosts[0]
    assert sorted(os.listdir(host.mount)) == ["data", "in"]
    host.assert_right()
    with pytest.raises(OSError):
        (host.mount / "../private/secret").resolve().read_bytes()


@pytest.mark.expected_warnings("node did not start")
def test_writes_are_refused(tmp_path: Path) -> None:
    base = tmp_path / "host"
    base.mkdir()
    host = Host(base, write="back")
    done = host.headrace("up", "headrace://127.0.0.1:1/data", host.mount, "-o", "allow_http=true")
    assert done.returncode == 2 and "origins of this type are read-only" in done.stderr
    host.close()


def test_a_mount_that_leads_back_is_refused(tmp_path: Path) -> None:
    """To itself, directly and over another host. Another path of the same hosts is no circle."""
    token = secret(tmp_path / "token", TOKEN)
    hosts = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        hosts.append(Host(tmp_path / name, rest_address="127.0.0.1:0", rest_token=token, sync_interval_s=0.2))
    first, second = hosts
    words = ("-o", "allow_http=true", "-o", f"token=@{token}")
    try:
        first.put("data/x", 1000)
        url = first.up().ready["rest"].replace("http://", "headrace://")
        up = second.up(f"{url}/data", second.mount, *words)
        back = up.ready["rest"].replace("http://", "headrace://")
        for origin in (url, back):
            done = first.headrace("mount", "add", "/loop", origin, *words)
            expected = 2 if origin != back else 0  # it shows /data alone, so it does not contain /loop
            assert done.returncode == expected, done.stderr
            if expected:
                assert "its origin leads back to /loop itself" in done.stderr
                assert len(done.stderr.strip().splitlines()) == 1
            else:
                assert first.ok("ls", "/loop") == "x\n"
                first.ok("mount", "remove", "/loop")
        done = first.headrace("mount", "add", "/data/loop", back, *words)
        assert done.returncode == 2 and "leads back to /data/loop itself" in done.stderr
        assert first.ok("ls", "/data") == "x\n"
    finally:
        for host in hosts:
            host.close()


@pytest.mark.parametrize(
    ("url", "words", "reason"),
    [
        ("headrace:///data", (), "is not HOST:PORT"),
        ("headrace://host/data", (), "is not HOST:PORT"),
        ("headrace://user:password@host:1/data", (), "is not HOST:PORT"),
        ("headrace://host:1,/data", (), "is not HOST:PORT"),
        ("headrace://host:1/a/../b", (), ".. component"),
        ("headrace://127.0.0.1:1/data", ("-o", "allow_http=true"), "Connection refused"),
        ("headrace://127.0.0.1:1/data", ("-o", "certificates=/nowhere"), "No such file"),
        ("headrace://127.0.0.1:1/data", ("-o", "certificates=/x", "-o", "allow_http=1"), "exclude"),
    ],
)
@pytest.mark.expected_warnings("node did not start")
def test_a_wrong_origin_is_one_line(tmp_path: Path, url: str, words: tuple[str, ...], reason: str) -> None:
    base = tmp_path / "host"
    base.mkdir()
    host = Host(base)
    done = host.headrace("up", url, host.mount, "--cache", f"{host.cache}:64MiB", *words)
    assert done.returncode != 0
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert reason in done.stderr
    assert "password" not in done.stderr.replace("a password", "")
    host.close()
