"""A change at an origin that the origin reports: all nodes see it within a second, though they poll once an hour."""

from __future__ import annotations

import json
import os
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import boto3
import pytest

from headrace.testing.servers import S3Server, ServerMissing, free_ports, seaweedfs_s3
from tests.emulators import fake_gcs
from tests.event_services import pubsub
from tests.integration.cli.host import Host, wait_until

from .cluster_fixture import ClusterFixture
from .conftest import UNREACHABLE

pytestmark = [pytest.mark.fuse, pytest.mark.server("etcd"), pytest.mark.timeout(180)]

SEEN_WITHIN_S = 1.0
CHANGES = 8
SUBSCRIPTION = "projects/p/subscriptions/changes"
MakeCluster = Callable[..., ClusterFixture]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def served(stack: ExitStack, context: Any) -> Any:
    try:
        return stack.enter_context(context)
    except ServerMissing as error:
        pytest.skip(str(error))


class SqsFixture:
    """A queue of moto to which its bucket reports all changes."""

    def __init__(self, server: S3Server) -> None:
        keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
        self.client = boto3.client("sqs", endpoint_url=server.endpoint, **keys)
        self.url = self.client.create_queue(QueueName=server.bucket, Attributes={"VisibilityTimeout": "3"})[
            "QueueUrl"
        ]
        arn = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=["QueueArn"])["Attributes"]
        queue = {"QueueArn": arn["QueueArn"], "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}
        boto3.client("s3", endpoint_url=server.endpoint, **keys).put_bucket_notification_configuration(
            Bucket=server.bucket, NotificationConfiguration={"QueueConfigurations": [queue]}
        )

    def messages(self) -> int:
        """Return how many messages are left, also those that were received and not deleted."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        counts = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return sum(map(int, counts.values()))


def start(cluster: ClusterFixture, server: Any, count: int, *words: object, **settings: object) -> None:
    """Start nodes with the server's bucket at the mount."""
    for number in range(count):
        own = {name: value(number) if callable(value) else value for name, value in settings.items()}
        host = cluster.add(**own)
        keys = server.options()
        host.environment |= {
            "AWS_ACCESS_KEY_ID": keys.get("access_key_id", "k"),
            "AWS_SECRET_ACCESS_KEY": keys.get("secret_access_key", "s"),
            "AWS_REGION": "us-east-1",
        }
        cluster.up(host, server.url(), host.mount, "--endpoint", server.endpoint, *words)
    cluster.wait_members(count)


def seen_after_s(hosts: list[Host], change: Callable[[], None], is_seen: Callable[[Host], bool]) -> float:
    """Return the seconds from a change at the origin until all hosts show it."""
    begun_s = time.monotonic()
    change()
    for host in hosts:
        wait_until(lambda host=host: is_seen(host), 20.0)  # type: ignore[misc]
    return time.monotonic() - begun_s


def content(host: Host, name: str) -> bytes:
    try:
        with open(host.mount / name, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def change_and_watch(cluster: ClusterFixture, server: Any) -> list[float]:
    """Create, replace and remove objects; return the seconds until all nodes showed each change."""
    times: list[float] = []
    for number in range(CHANGES):
        name, new, newer = f"d/file-{number}", b"1" * (100 + number), b"2" * (200 + number)
        for bytes_now in (new, newer):
            times.append(
                seen_after_s(
                    cluster.hosts,
                    lambda name=name, data=bytes_now: server.put(name, data),  # type: ignore[misc]
                    lambda host, name=name, data=bytes_now: content(host, name) == data,  # type: ignore[misc]
                )
            )
        if number % 2:
            times.append(
                seen_after_s(
                    cluster.hosts,
                    lambda name=name: server.delete(name),  # type: ignore[misc]
                    lambda host, name=name: name[2:] not in os.listdir(host.mount / "d"),  # type: ignore[misc]
                )
            )
    print("seen by all nodes after s:", sorted(round(seconds, 3) for seconds in times))
    return times


def test_by_sqs(make_cluster: MakeCluster, moto_bucket: S3Server) -> None:
    queue = SqsFixture(moto_bucket)
    moto_bucket.put("d/first", b"x")
    cluster = make_cluster()
    start(cluster, moto_bucket, 2, "-o", f"events={queue.url}")
    for host in cluster.hosts:
        assert os.listdir(host.mount / "d") == ["first"]
    wait_until(lambda: sum(len(events(host)["receivers"]) for host in cluster.hosts) == 1)
    times = change_and_watch(cluster, moto_bucket)
    assert statistics.median(times) <= SEEN_WITHIN_S, times
    wait_until(lambda: queue.messages() == 0)
    assert (
        sum(row["changes"] for host in cluster.hosts for row in events(host)["receivers"].values()) >= CHANGES
    )


def test_an_event_lists_nothing(make_cluster: MakeCluster, moto_bucket: S3Server) -> None:
    """The owner of the directory asks the origin for the one name, and the other nodes ask the owner."""
    server = moto_bucket
    names = [f"{number:04}" for number in range(300)]
    for name in names:
        server.put(f"d/{name}", b"x")
    queue = SqsFixture(server)
    cluster = make_cluster()
    start(cluster, server, 3, "-o", f"events={queue.url}")
    for host in cluster.hosts:
        assert sorted(os.listdir(host.mount / "d")) == names
    lists = requests(cluster, "list")
    for number in range(CHANGES):
        name, data = f"d/{number:04}", b"y" * (2 + number)
        seen_after_s(
            cluster.hosts,
            lambda name=name, data=data: server.put(name, data),  # type: ignore[misc]
            lambda host, name=name, data=data: (host.mount / name).stat().st_size == len(data),  # type: ignore[misc]
        )
    server.delete("d/0100")
    server.put("d/new", b"z")
    for host in cluster.hosts:
        wait_until(lambda host=host: not (host.mount / "d/0100").exists())  # type: ignore[misc]
        wait_until(lambda host=host: (host.mount / "d/new").exists())  # type: ignore[misc]
        assert sorted(os.listdir(host.mount / "d")) == [*(name for name in names if name != "0100"), "new"]
    assert requests(cluster, "list") == lists
    assert all(events(host)["directories_listed"] == 0 for host in cluster.hosts)
    assert all(events(host)["names_checked"] >= CHANGES + 2 for host in cluster.hosts)
    for host in cluster.hosts:
        assert content(host, f"d/{CHANGES - 1:04}") == b"y" * (1 + CHANGES) and content(host, "d/new") == b"z"


def requests(cluster: ClusterFixture, call: str) -> int:
    """Return how many requests of a kind all nodes sent to the origin."""
    return sum(of_origin(host)[f"{call}_requests"] for host in cluster.hosts)


def of_origin(host: Host) -> Any:
    return host.status()["origin"]["mounts"]["/"]


def events(host: Host) -> Any:
    return host.status()["events"]


def receiver_of(cluster: ClusterFixture) -> Host:
    wait_until(lambda: sum(len(events(host)["receivers"]) for host in cluster.hosts) == 1)
    return next(host for host in cluster.hosts if events(host)["receivers"])


@pytest.mark.expected_warnings(*UNREACHABLE)
def test_another_node_receives_when_the_receiver_dies(
    make_cluster: MakeCluster, moto_bucket: S3Server
) -> None:
    queue = SqsFixture(moto_bucket)
    moto_bucket.put("d/first", b"x")
    cluster = make_cluster()
    start(cluster, moto_bucket, 2, "-o", f"events={queue.url}")
    for host in cluster.hosts:
        assert os.listdir(host.mount / "d") == ["first"]
    receiver = receiver_of(cluster)
    other = next(host for host in cluster.hosts if host is not receiver)
    receiver.close()
    moto_bucket.put("d/second", b"y")
    wait_until(lambda: len(events(other)["receivers"]) == 1)
    wait_until(lambda: sorted(os.listdir(other.mount / "d")) == ["first", "second"])
    wait_until(lambda: queue.messages() == 0)


@pytest.mark.expected_warnings("events of a mount can't be received")
def test_a_queue_that_is_not_there_is_shown_and_the_mount_works(
    make_cluster: MakeCluster, moto_bucket: S3Server
) -> None:
    moto_bucket.put("d/first", b"x")
    cluster = make_cluster()
    start(cluster, moto_bucket, 1, "-o", f"events={moto_bucket.endpoint}/123456789012/nothing")
    (host,) = cluster.hosts
    assert os.listdir(host.mount / "d") == ["first"]
    wait_until(lambda: events(host)["receivers"] and events(host)["receivers"]["/"]["error"])
    assert "QueueDoesNotExist" in events(host)["receivers"]["/"]["error"]
    moto_bucket.put("d/second", b"y")
    host.ok("sync", "/")
    assert sorted(os.listdir(host.mount / "d")) == ["first", "second"]


def test_by_webhook_of_seaweedfs(make_cluster: MakeCluster, stack: ExitStack, tmp_path: Path) -> None:
    """The real thing: SeaweedFS posts its own notifications to one node."""
    token = tmp_path / "events-token"
    token.write_text("of-seaweed\n")
    token.chmod(0o600)
    rest_token = tmp_path / "rest-token"
    rest_token.write_text("of-rest\n")
    rest_token.chmod(0o600)
    ports = free_ports(2)
    folder = tmp_path / "weed"
    folder.mkdir()
    (folder / "notification.toml").write_text(
        "[notification.webhook]\nenabled = true\n"
        f'endpoint = "http://127.0.0.1:{ports[0]}/v1/events"\nbearer_token = "of-seaweed"\n'
    )
    server = served(stack, seaweedfs_s3(str(folder)))
    server.put("d/first", b"x")
    cluster = make_cluster()
    start(
        cluster,
        server,
        2,
        rest_address=lambda number: f"127.0.0.1:{ports[number]}",
        rest_token=rest_token,
        events_token=token,
    )
    for host in cluster.hosts:
        assert os.listdir(host.mount / "d") == ["first"]
    times = change_and_watch(cluster, server)
    assert statistics.median(times) <= SEEN_WITHIN_S, times
    assert events(cluster.hosts[0])["posts"]["changes"] >= CHANGES
    assert events(cluster.hosts[1])["posts"]["changes"] == 0


def test_by_pubsub(make_cluster: MakeCluster, stack: ExitStack) -> None:
    server = served(stack, fake_gcs())
    subscription = stack.enter_context(pubsub(SUBSCRIPTION))
    server.put("d/first", b"x")
    cluster = make_cluster()
    for _ in range(2):
        host = cluster.add()
        host.environment["PUBSUB_EMULATOR_HOST"] = subscription.address
        token = host.base / "gcs-token"
        token.write_text("any")
        token.chmod(0o600)
        words = ("--endpoint", server.endpoint, "-o", f"token=@{token}", "-o", f"events={SUBSCRIPTION}")
        cluster.up(host, server.url(), host.mount, *words)
    cluster.wait_members(2)
    for host in cluster.hosts:
        assert os.listdir(host.mount / "d") == ["first"]

    def put() -> None:
        server.put("d/second", b"y")
        subscription.notify(server.bucket, "d/second")

    took_s = seen_after_s(cluster.hosts, put, lambda host: content(host, "d/second") == b"y")
    print("seen by all nodes after s:", took_s)
    wait_until(lambda: subscription.unacknowledged == 0)


def test_posts_of_event_grid_and_of_s3(
    make_cluster: MakeCluster, moto_bucket: S3Server, tmp_path: Path
) -> None:
    """Duplicates and disorder are harmless, and what an event claims is not believed."""
    moto_bucket.put("d/first", b"x")
    (port,) = free_ports(1)
    token = tmp_path / "token"
    token.write_text("of-rest\n")
    token.chmod(0o600)
    cluster = make_cluster()
    start(cluster, moto_bucket, 1, rest_address=f"127.0.0.1:{port}", rest_token=token)
    (host,) = cluster.hosts
    assert os.listdir(host.mount / "d") == ["first"]
    moto_bucket.put("d/second", b"y")

    def post(kind: str, key: str) -> None:
        object = {"key": key, "size": 1 << 60, "eTag": "f" * 32, "versionId": "forged"}
        body = {
            "Records": [{"eventName": kind, "s3": {"bucket": {"name": moto_bucket.bucket}, "object": object}}]
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/events",
            data=json.dumps(body).encode(),
            headers={"Authorization": "Bearer of-rest", "Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=60).close()

    for kind in ("ObjectRemoved:Delete", "ObjectCreated:Put", "ObjectCreated:Put", "ObjectRemoved:Delete"):
        post(kind, "d/second")
        post(kind, "d/never-there")
    wait_until(lambda: sorted(os.listdir(host.mount / "d")) == ["first", "second"])
    assert content(host, "d/second") == b"y"
    assert (host.mount / "d/second").stat().st_size == 1
