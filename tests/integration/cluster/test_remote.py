"""`headrace.connect(nodes)` on a host without a node: every byte is the origin's, whatever dies, lies or rots."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import fsspec
import pytest

import headrace
from headrace.base.errors import (
    IsADirectoryPathError,
    NodeUnavailableError,
    NotAllowedError,
    NotSupportedError,
    PathExistsError,
    PathNotFoundError,
    ReadOnlyError,
)
from headrace.identity.authority import Authority
from headrace.testing.etcd import EtcdServer
from headrace.testing.servers import free_ports
from headrace.vfs.remote.remote_registry import REMOTES
from tests.certificates import authority, issued, settings_of
from tests.integration.cli.host import Host, send, wait_until

from .cluster_fixture import ClusterFixture
from .conftest import UNREACHABLE

pytestmark = pytest.mark.timeout(90)
MIB = 1 << 20
TOKEN = "of-the-tests"


@dataclass(frozen=True)
class RemoteClusterFixture:
    """A cluster of two nodes whose files are read-only except in /out. `truth` has the files at the start."""

    cluster: ClusterFixture
    nodes: str
    truth: dict[str, bytes]


@pytest.fixture(scope="module")
def remote_cluster(
    tmp_path_factory: pytest.TempPathFactory, etcd: EtcdServer
) -> Iterator[RemoteClusterFixture]:
    cluster = ClusterFixture(
        tmp_path_factory.mktemp("remote_cluster"), etcd.address, write="/out=back,off", persist_delay_s="0.2"
    )
    (cluster.base / "token").write_text(TOKEN)
    (cluster.base / "token").chmod(0o600)
    try:
        truth = {**fill(cluster), "/out/kept": cluster.put("out/kept", 10)}
        yield RemoteClusterFixture(cluster, start(cluster), truth)
    finally:
        cluster.close()


@pytest.fixture(autouse=True)
def _no_node_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    monkeypatch.setenv("HEADRACE_RUN_FOLDER", str(tmp_path / "nothing-runs-here"))
    monkeypatch.setenv("HEADRACE_REST_TOKEN", str(token))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield
    REMOTES.close()


def start(cluster: ClusterFixture, count: int = 2, *, signer: Authority | None = None) -> str:
    """Nodes without mounts, whose APIs know of each other; their addresses. signer: of their certificates."""
    for number in range(count):
        (port,) = free_ports(1)
        tls = settings_of(issued(signer, f"n{number}")) if signer is not None else {}
        host = cluster.add(rest_address=f"127.0.0.1:{port}", rest_token=cluster.base / "token", **tls)
        cluster.up(host, cluster.truth)
    cluster.wait_members(count)
    return ",".join(process.ready["rest"] for process in cluster.ups)


def fill(cluster: ClusterFixture) -> dict[str, bytes]:
    """By their paths."""
    sizes = {"empty": 0, "one": 1, "block": MIB, "more": MIB + 1, "large": (21 << 20) + 321}
    truth = {f"/{name}": cluster.put(name, size) for name, size in sizes.items()}
    for number in range(40):
        truth[f"/small/{number % 4}/{number}"] = cluster.put(f"small/{number % 4}/{number}", 50_000 + number)
    return truth


def kill_all_of(host: Host) -> None:
    """The supervisor first, so that nothing is started again."""
    for pid, _ in sorted(host.processes().items(), key=lambda row: " up " not in row[1]):
        os.kill(pid, signal.SIGKILL)


def test_every_byte_by_every_way_from_its_owner(remote_cluster: RemoteClusterFixture) -> None:
    cluster, nodes, truth = remote_cluster.cluster, remote_cluster.nodes, remote_cluster.truth
    size = cluster.truth_bytes()
    with headrace.connect(nodes) as cache:
        for round in ("cold", "cached"):
            assert {path: cache.read(path) for path in truth} == truth, round
            parts = list(cache.read_many(truth))
            assert [part.path for part in parts] == list(truth)
            assert {part.path: part.data for part in parts} == truth, round
            assert {p.path: p.data for p in cache.read_many(truth, ordered=False)} == truth, round
        large = truth["/large"]
        for start_, end in ((0, 10), (MIB - 3, MIB + 3), (5, 20 * MIB), (21 * MIB, None), (len(large), None)):
            assert cache.read("/large", start_, end) == large[start_:end]
        with cache.open("/large") as file:
            assert b"".join(iter(lambda: file.read(100_000), b"")) == large
            file.seek(7 * MIB + 5)
            assert file.read(10) == large[7 * MIB + 5 : 7 * MIB + 15]
            file.seek(-5, os.SEEK_END)
            assert file.read() == large[-5:]
        assert bytes(cache.map("/large")) == large
        assert bytes(cache.map("/empty")) == b""
    assert cluster.origin() == size  # each byte left the origin once,
    assert [cluster.status(host)["cache"]["borrowed_bytes"] for host in cluster.hosts] == [
        0,
        0,
    ]  # and was asked of its owner
    assert all(cluster.status(host)["origin"]["bytes_read"] > 0 for host in cluster.hosts)


async def test_names(remote_cluster: RemoteClusterFixture) -> None:
    cluster, nodes, truth = remote_cluster.cluster, remote_cluster.nodes, remote_cluster.truth
    with headrace.connect(nodes) as cache:
        paths = {f"{folder.rstrip('/')}/{name}" for folder, _, names in cache.walk("/") for name in names}
        assert paths == set(truth)
        assert sorted(cache.glob("/small/*/1?")) == sorted(
            path for path in truth if path.startswith("/small/") and 10 <= int(path.rpartition("/")[2]) < 20
        )
        assert {entry.path: entry.size_bytes for entry in cache.list("/") if not entry.is_directory} == {
            path: len(data) for path, data in truth.items() if path.count("/") == 1
        }
        stat = cache.stat("/more")
        assert (stat.kind, stat.size_bytes, bool(stat.version)) == ("file", MIB + 1, True)
        assert not cache.exists("/nowhere")
        assert cache.stat("/small").is_directory
        for call in (cache.read, cache.stat, cache.open, cache.map, cache.remove):
            with pytest.raises(PathNotFoundError):
                call("/nowhere")
        with pytest.raises(IsADirectoryPathError):
            cache.read("/small")
        with pytest.raises(ReadOnlyError):
            cache.put("/new", b"x")
        with pytest.raises(NotSupportedError):
            cache.open("/one", "ab")
        assert cache.status()["cluster"]["name"] == cluster.base.name  # type: ignore[index]
        job = cache.load("/small")
        assert (job.state, job.files_done, job.failed) == ("done", 40, [])
        assert len(cache.free("/small").failed) == 0
    async with await headrace.connect_async(nodes) as client:
        assert await client.read("/block") == truth["/block"]
        assert [part.data async for part in client.read_many(["/one", "/empty"])] == [truth["/one"], b""]


def test_what_is_written_is_seen_by_all_and_persisted(remote_cluster: RemoteClusterFixture) -> None:
    cluster = remote_cluster.cluster
    cache, other = (headrace.connect(node) for node in remote_cluster.nodes.split(","))
    data = os.urandom(9 * MIB + 7)
    cache.put("/out/a/b", data)
    assert cache.read("/out/a/b") == data
    wait_until(lambda: other.exists("/out/a/b"), 20)
    assert other.read("/out/a/b") == data
    with cache.open("/out/text", "w") as file:
        file.write("words")
    with pytest.raises(PathExistsError), cache.open("/out/text", "x") as file:
        file.write("others")
    with pytest.raises(ZeroDivisionError), cache.open("/out/broken", "wb") as file:
        file.write(b"x" * 1000)
        raise ZeroDivisionError
    cache.rename("/out/text", "/out/renamed")
    cache.make_directory("/out/empty/folder")
    cache.persist()
    assert (cluster.truth / "out/a/b").read_bytes() == data
    assert (cluster.truth / "out/renamed").read_text() == "words"
    with pytest.raises(IsADirectoryPathError):
        cache.remove("/out")
    cache.remove("/out/renamed")
    for name in ("a", "empty"):
        cache.remove(f"/out/{name}", recursive=True)
    cache.persist()
    assert [row.path for row in cache.list("/out")] == ["/out/kept"]
    assert [path.name for path in (cluster.truth / "out").iterdir()] == ["kept"]


@pytest.mark.expected_warnings(*UNREACHABLE)
def test_a_node_that_is_killed_in_the_middle_costs_no_read(cluster: ClusterFixture) -> None:
    truth = fill(cluster)
    nodes = start(cluster)
    cache = headrace.connect(nodes, patience_s=30)
    paths = [*truth] * 3
    killed = threading.Event()
    began_s = time.monotonic()
    for number, part in enumerate(cache.read_many(paths, on_error="return")):
        assert part.error is None, (number, part.path, part.error)
        assert part.data == truth[part.path], (number, part.path)
        if number == 20:
            kill_all_of(cluster.hosts[0])
            killed.set()
    assert killed.is_set()
    for path, data in truth.items():
        assert cache.read(path) == data
    with cache.open("/large") as file:
        assert file.read() == truth["/large"]
    assert sum(not entry.is_directory for entry in cache.list("/")) == 5
    assert time.monotonic() - began_s < 30


@pytest.mark.expected_warnings(*UNREACHABLE)
def test_a_node_that_stops_answering_is_left_in_seconds(cluster: ClusterFixture) -> None:
    truth = fill(cluster)
    nodes = start(cluster)
    cache = headrace.connect(nodes, patience_s=30)
    assert cache.read("/large") == truth["/large"]
    stopped = list(cluster.hosts[0].processes())
    for pid in stopped:
        send(pid, signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        assert {part.path: part.data for part in cache.read_many(truth)} == truth
        assert time.monotonic() - began_s < 25
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.expected_warnings(
    "bytes do not match their checksum", "a peer sent bytes that don't match their checksum"
)
def test_a_rotten_block_is_read_elsewhere_and_mended(
    remote_cluster: RemoteClusterFixture, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, truth = remote_cluster.cluster, remote_cluster.truth
    cache = headrace.connect(remote_cluster.nodes)
    assert cache.read("/large") == truth["/large"]
    owner = cluster.owners(["large"])["large"]
    (file,) = [path for path in owner.cache.rglob("files/*/*") if path.stat().st_size == len(truth["/large"])]
    with open(file, "r+b") as out:
        out.seek(5 * MIB + 100)
        out.write(bytes([truth["/large"][5 * MIB + 100] ^ 255]))
    assert cache.read("/large") == truth["/large"]
    assert "do not match their checksum" in caplog.text

    def mended() -> bool:
        caplog.clear()
        assert cache.read("/large", 5 * MIB, 6 * MIB) == truth["/large"][5 * MIB : 6 * MIB]
        return not caplog.text

    wait_until(mended, 15)


@pytest.mark.expected_warnings("refused interface=rest")
def test_who_may_not_ask_and_who_is_not_there(
    remote_cluster: RemoteClusterFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, nodes = remote_cluster.cluster, remote_cluster.nodes
    wrong = cluster.base / "wrong"
    wrong.write_text("guess")
    wrong.chmod(0o600)
    monkeypatch.setenv("HEADRACE_REST_TOKEN", str(wrong))
    with pytest.raises(NotAllowedError):
        headrace.connect(nodes)
    monkeypatch.setenv("HEADRACE_REST_TOKEN", str(cluster.base / "token"))
    monkeypatch.setenv("HEADRACE_NODES", nodes)
    assert len(headrace.connect().read("/one")) == 1  # by the setting, as no node runs here
    monkeypatch.delenv("HEADRACE_NODES")
    with pytest.raises(NodeUnavailableError, match="no node runs on this host"):
        headrace.connect()
    (port,) = free_ports(1)
    with pytest.raises(NodeUnavailableError):
        headrace.connect(f"http://127.0.0.1:{port}", patience_s=0)


def test_a_forked_child_reads_on(remote_cluster: RemoteClusterFixture) -> None:
    truth = remote_cluster.truth
    cache = headrace.connect(remote_cluster.nodes)
    assert cache.read("/more") == truth["/more"]
    pid = os.fork()
    if pid == 0:
        ok = all(part.data == truth[part.path] for part in cache.read_many(truth))
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert cache.read("/large") == truth["/large"]


@pytest.mark.expected_warnings("refused interface=rest")
def test_with_tls_only_clients_and_nodes_of_the_cluster(
    cluster: ClusterFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = fill(cluster)
    cluster_name = cluster.base.name
    ours, theirs = (authority(tmp_path / name, cluster_name) for name in ("ours", "theirs"))
    nodes = start(cluster, signer=ours)
    assert nodes.startswith("https://")
    shown = [
        (None, False),
        (issued(theirs, "me", role="client"), False),
        (issued(ours, "etcd", role="service"), False),
        (issued(ours, "me", uri="headrace://other/client/me", file="other"), False),
        (issued(ours, "me", role="client"), True),
    ]
    for files, right in shown:
        for name, value in (settings_of(files) if files is not None else {}).items():
            monkeypatch.setenv(f"HEADRACE_{name.upper()}", value)
        if not right:
            with pytest.raises(NodeUnavailableError):
                headrace.connect(nodes, patience_s=0)
            continue
        with headrace.connect(nodes) as cache:
            assert {part.path: part.data for part in cache.read_many(truth)} == truth
            assert bytes(cache.map("/large")) == truth["/large"]


def test_the_file_system_of_fsspec(remote_cluster: RemoteClusterFixture) -> None:
    fs = fsspec.filesystem("headrace", nodes=remote_cluster.nodes, skip_instance_cache=True)
    assert fs.cat("/small", recursive=True) == {
        path: data for path, data in remote_cluster.truth.items() if path.startswith("/small/")
    }
    assert fs.cat_ranges(["/large", "/more"], [MIB - 1, None], [MIB + 1, 5]) == [
        remote_cluster.truth["/large"][MIB - 1 : MIB + 1],
        remote_cluster.truth["/more"][:5],
    ]
    with fs.open("/large", "rb") as file:
        file.seek(-7, os.SEEK_END)
        assert file.read() == remote_cluster.truth["/large"][-7:]
    assert fs.info("/more")["size"] == MIB + 1
    assert sorted(fs.find("/small")) == sorted(
        path for path in remote_cluster.truth if path.startswith("/small/")
    )
    fs.pipe("/out/piped", b"by fsspec")
    fs.mv("/out/piped", "/out/moved")
    fs.cp_file("/out/moved", "/out/copied")
    assert fs.cat("/out/copied") == b"by fsspec"
    fs.mkdir("/out/folder")
    fs.rmdir("/out/folder")
    fs.rm(["/out/moved", "/out/copied"])
    assert [name.rpartition("/")[2] for name in fs.ls("/out", detail=False)] == ["kept"]


def test_the_command_line_from_another_host(remote_cluster: RemoteClusterFixture) -> None:
    """With a run folder in which nothing runs."""
    base = remote_cluster.cluster.base / "elsewhere"
    base.mkdir(exist_ok=True)
    host = Host(base, rest_token=remote_cluster.cluster.base / "token", nodes=remote_cluster.nodes)
    assert host.json("status")["cluster"]["name"] == remote_cluster.cluster.base.name
    assert "n1" in host.ok("status")
    assert [row["path"] for row in host.json("mount", "list")] == ["/"]
    rows = [json.loads(line) for line in host.ok("ls", "/small", "--json").splitlines()]
    assert [row["name"] for row in rows] == ["0/", "1/", "2/", "3/"]
    assert host.json("stat", "/more")["size_bytes"] == MIB + 1
    cat = host.json("cat", "/more")
    assert base64.b64decode(cat["base64"]) == remote_cluster.truth["/more"]
    loaded = host.json("load", "/small")
    assert (loaded["files_done"], loaded["state"]) == (40, "done")
    assert host.json("job", "show", loaded["id"])["state"] == "done"
    assert host.json("sync", "/")["failed"] == []
    assert host.headrace("load", "/nowhere").returncode == 3
    node = remote_cluster.nodes.split(",")[0]
    assert "one" in host.ok("ls", "/", "--socket", node)
    assert host.json("status", "--socket", node)["cluster"]["node"] == "n0"
    assert host.headrace("node", "drain").returncode == 2  # several are named
    assert host.json("node", "drain", "--socket", node)["done"]  # the last test of these nodes
    members = host.json("status", "--socket", node)["cluster"]["members"]
    assert {row["id"]: row["draining"] for row in members} == {"n0": True, "n1": False}
