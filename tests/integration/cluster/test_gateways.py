"""S3 gateways of several nodes: an object is the same at each, comes from its owner, and outlives who has it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from headrace.s3.credentials import parse_credentials
from tests.integration.cli.host import Host, wait_until

from .cluster_fixture import ClusterFixture
from .conftest import MakeCluster

pytestmark = pytest.mark.timeout(120)
MIB = 1 << 20
BUCKET = "data"


def gateway(host: Host) -> Any:
    """A client of the gateway that is started beside the host's node."""
    ready = host.start("s3", "--address", "127.0.0.1:0").wait_ready()
    path = Path(ready["credentials"])
    ((access, secret),) = parse_credentials(path.read_text(), str(path)).items()
    return boto3.client(
        "s3",
        endpoint_url=ready["url"],
        region_name="us-east-1",
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        config=Config(s3={"addressing_style": "path"}, read_timeout=60),
    )


def read(client: Any, key: str) -> bytes:
    data: bytes = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    return data


def read_when_told(client: Any, key: str, wanted: bytes) -> None:
    """Wait until the key has the bytes. Another node's last write is seen about a second later; until then, what was
    there before."""

    def is_there() -> bool:
        try:
            return read(client, key) == wanted
        except client.exceptions.NoSuchKey:
            return False

    wait_until(is_there, 10)


def kill(cluster: ClusterFixture, number: int) -> None:
    """Node, mount and gateway of a host, for good."""
    cluster.ups[number].signal(signal.SIGKILL)  # the supervisor: nobody starts the node again
    cluster.hosts[number].kill("node")


def fill(cluster: ClusterFixture) -> dict[str, bytes]:
    sizes = {f"small/{n}": 40_000 + n for n in range(24)} | {f"large/{n}": 5 * MIB + n for n in range(3)}
    return {key: cluster.put(f"{BUCKET}/{key}", size) for key, size in sizes.items()}


def test_the_owner_is_asked_and_the_origin_once(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    truth = fill(cluster)
    cluster.start(2)
    clients = [gateway(host) for host in cluster.hosts]
    owners = cluster.owners([f"{BUCKET}/{key}" for key in truth])
    theirs = [key for key in truth if owners[f"{BUCKET}/{key}"] is cluster.hosts[0]]
    assert 0 < len(theirs) < len(truth)
    for key in theirs:
        assert read(clients[1], key) == truth[key]
    assert cluster.origin(hosts=[cluster.hosts[1]]) == 0
    assert cluster.origin() == sum(len(truth[key]) for key in theirs)
    assert cluster.status(cluster.hosts[1])["peers"]["bytes_read"] == cluster.origin()
    for client in clients:
        assert {key: read(client, key) for key in truth} == truth
        rows = client.list_objects_v2(Bucket=BUCKET)["Contents"]
        assert {row["Key"]: row["Size"] for row in rows} == {key: len(data) for key, data in truth.items()}
    assert cluster.origin() == sum(map(len, truth.values()))


def test_an_object_is_at_the_other_gateway_before_it_is_persisted(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(write="back", persist_delay_s=3600)
    old = cluster.put(f"{BUCKET}/old", 1000)
    cluster.start(2)
    clients = [gateway(host) for host in cluster.hosts]
    assert [read(client, "old") for client in clients] == [old, old]
    written = {}
    for number, size in enumerate((0, 10, 70_000, 3 * MIB + 1)):
        key, data = f"new/{number}", bytes([number]) * size
        clients[number % 2].put_object(Bucket=BUCKET, Key=key, Body=data)
        other = clients[1 - number % 2]
        read_when_told(other, key, data)
        assert other.head_object(Bucket=BUCKET, Key=key)["ContentLength"] == size
        written[key] = data
    clients[0].put_object(Bucket=BUCKET, Key="old", Body=b"newer")
    read_when_told(clients[1], "old", b"newer")
    clients[0].delete_object(Bucket=BUCKET, Key="new/0")

    def keys() -> list[str]:
        return [row["Key"] for row in clients[1].list_objects_v2(Bucket=BUCKET)["Contents"]]

    wait_until(lambda: keys() == ["new/1", "new/2", "new/3", "old"], 10)
    assert (cluster.truth / BUCKET / "old").read_bytes() == old
    for host in cluster.hosts:
        host.ok("persist", "--wait", host.mount)
    truth = {
        str(path.relative_to(cluster.truth / BUCKET)): path.read_bytes()
        for path in (cluster.truth / BUCKET).rglob("*")
        if path.is_file()
    }
    assert truth == {
        "new/1": written["new/1"],
        "new/2": written["new/2"],
        "new/3": written["new/3"],
        "old": b"newer",
    }


@pytest.mark.expected_warnings("a node left the cluster, this replica persists its files")
def test_a_killed_owner_and_a_killed_writer_cost_no_object(make_cluster: MakeCluster) -> None:
    """Objects that were acknowledged in back:2 are read from the node that holds the copy, and persisted by it."""
    cluster = make_cluster(write="back:2", replicas=2, persist_delay_s=3600, take_over_s=1)
    truth = fill(cluster)
    cluster.start(3)
    clients = [gateway(host) for host in cluster.hosts]
    owners = cluster.owners([f"{BUCKET}/{key}" for key in truth])
    assert any(owner is cluster.hosts[0] for owner in owners.values())
    written = {f"acknowledged/{n}": b"%d" % n * 30_000 for n in range(8)}
    for key, data in written.items():
        clients[0].put_object(Bucket=BUCKET, Key=key, Body=data)
    kill(cluster, 0)
    for client in clients[1:]:
        assert {key: read(client, key) for key in truth} == truth
        for key, data in written.items():
            read_when_told(client, key, data)
    cluster.wait_members(2, cluster.hosts[1:])
    folder = cluster.truth / BUCKET / "acknowledged"
    persisted = folder.glob  # but for the drafts of puts, which go away again
    wait_until(
        lambda: {f"acknowledged/{path.name}": path.read_bytes() for path in persisted("[!.]*")} == written, 60
    )
    for client in clients[1:]:
        for key, data in written.items():
            read_when_told(client, key, data)  # as the copy that told of it is gone
