"""Mode back:2: the writer's host dies right after close, with many files, large ones too, of which some are on their
way to a slow origin, or an origin that is away. All are read from the other node, and persisted by it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.config.secret_options import option_words
from headrace.origin.origin import HIDDEN
from headrace.testing.servers import S3Server
from tests.fault_proxy import FaultProxy, fault_proxy
from tests.integration.cli.host import Host
from tests.integration.persist.conftest import Writer, settled, wait_until

from .cluster_fixture import ClusterFixture
from .conftest import UNREACHABLE, MakeCluster

pytestmark = [pytest.mark.timeout(150), pytest.mark.expected_warnings(*UNREACHABLE)]

NEVER_S = 600
BEFORE = {"low/a": 50_000, "low/b": 60_000, "low/moved": 70_000, "low/gone": 1000}
SIZES = (0, 1, 700, 30_000, 300_000, 1_100_000)
WRITE = """
import hashlib
written = {{}}
for number in range({first}, {last}):
    name, data = f'many/{{number % 10}}/{{number}}', os.urandom({sizes}[number % {count}])
    with open(name, 'wb') as out:
        out.write(data)
    written[name] = hashlib.sha256(data).hexdigest()
print(json.dumps(written))
"""
LARGE = """
with open('many/large', 'wb') as out:
    for _ in range(12): out.write(os.urandom(1 << 20))
with open('many/large', 'r+b') as out:
    out.seek(7_000_000); out.write(os.urandom(3_000_000))
open('low/a', 'ab').write(os.urandom(2_000_000))
open('low/new', 'wb').write(os.urandom(40_000)); os.replace('low/new', 'low/b')
os.rename('low/moved', 'many/moved')
os.unlink('low/gone')
"""
DIGESTS = """
import hashlib
result = {}
for folder, _, files in os.walk('.'):
    for name in files:
        path = os.path.normpath(os.path.join(folder, name))
        try:
            with open(path, 'rb') as file: result[path] = hashlib.file_digest(file, 'sha256').hexdigest()
        except OSError as error:
            result[path] = errno.errorcode[error.errno]
print(json.dumps(result))
"""


@pytest.fixture
def proxy(seaweed: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(seaweed) as proxy:
        yield proxy


def bucket(seaweed: S3Server, prefix: str) -> dict[str, str]:
    """Name → digest, as the server has them; without what a node that was killed left of its trial of conditions."""
    return {name: digest for name, digest in _all_of(seaweed, prefix).items() if not name.startswith(HIDDEN)}


@functools.cache
def client_of(endpoint: str, access_key: str, secret_key: str) -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name="us-east-1",
    )


_digests: dict[tuple[str, str, str], str] = {}
"""Digests of the versions that the server had, by key, entity tag and time: a poll reads only what is new."""


def _all_of(seaweed: S3Server, prefix: str) -> dict[str, str]:
    client = client_of(seaweed.endpoint, seaweed.access_key, seaweed.secret_key)
    hashes = {}
    changed = client.exceptions.ClientError  # gone or replaced between the page and the request
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=seaweed.bucket, Prefix=f"{prefix}/"):
        for row in page.get("Contents", []):
            version = row["Key"], row["ETag"], str(row["LastModified"])
            with contextlib.suppress(changed):
                if version not in _digests:
                    answer = client.get_object(Bucket=seaweed.bucket, Key=row["Key"], IfMatch=row["ETag"])
                    _digests[version] = hashlib.sha256(answer["Body"].read()).hexdigest()
                hashes[row["Key"].removeprefix(f"{prefix}/")] = _digests[version]
    return hashes


def digests(host: Host) -> dict[str, str]:
    hashes: dict[str, str] = json.loads(Writer(host.mount).run(DIGESTS, limit_s=60))
    return hashes


def start(cluster: ClusterFixture, seaweed: S3Server, proxy: FaultProxy, prefix: str) -> None:
    for name, size in BEFORE.items():
        seaweed.put(f"{prefix}/{name}", cluster.put(name, size))
    options = option_words(proxy.options(), str(cluster.base))
    for _ in range(3):
        host = cluster.add()
        cluster.up(host, proxy.url(prefix), host.mount, *options)
    cluster.wait_members(3)


def differing(actual: dict[str, str], other: dict[str, str]) -> str:
    return str(
        sorted((name, actual.get(name)) for name in {*actual, *other} if actual.get(name) != other.get(name))
    )


@pytest.mark.expected_warnings("a change was not persisted, retrying later")
@pytest.mark.parametrize("origin", ["slow", "away"])
def test_many_and_large_files_outlive_their_writer(
    make_cluster: MakeCluster, seaweed: S3Server, proxy: FaultProxy, origin: str
) -> None:
    prefix = f"dead-writer-{origin}"
    delay_s = 0.02 if origin == "slow" else NEVER_S
    cluster = make_cluster(write="back:2", persist_delay_s=delay_s, take_over_s=0.5, origin_timeout_s=5)
    start(cluster, seaweed, proxy, prefix)
    writer, *others = cluster.hosts
    for host in cluster.hosts:
        assert digests(host).keys() == BEFORE.keys()
    run = Writer(writer.mount).run
    run("open('warm', 'wb').write(b'warm')")
    settled(writer)  # what comes before the first put is over
    run("[os.makedirs(f'many/{n}') for n in range(10)]")
    sizes = {"sizes": SIZES, "count": len(SIZES)}
    if origin == "slow":
        proxy.put_delay_s = 0.4  # most of them are under way, or wait, when the writer dies
    run(LARGE + WRITE.format(first=0, last=60, **sizes), limit_s=90)
    expected = digests(writer)
    for host in others:
        digests(host)  # the folders are listed
    if origin == "away":
        proxy.mode = "503"
    expected |= json.loads(run(WRITE.format(first=60, last=108, **sizes), limit_s=90))
    writer.kill_all()
    assert len(expected) == 108 + len(BEFORE) + 1
    for host in others:
        wait_until(
            lambda host=host: digests(host) == expected,  # type: ignore[misc]
            60.0,
            hint=lambda host=host: differing(digests(host), expected),  # type: ignore[misc]
        )
    if origin == "away":
        assert bucket(seaweed, prefix) != expected  # so it was read from the holder
    proxy.mode, proxy.put_delay_s = "pass", 0.0
    wait_until(
        lambda: bucket(seaweed, prefix) == expected,
        60.0,
        hint=lambda: differing(bucket(seaweed, prefix), expected),
    )
    writer.close()
    assert [row["path"] for host in others for row in settled(host)["conflicts"]] == []


def test_a_writer_dies_before_its_first_put(
    make_cluster: MakeCluster, seaweed: S3Server, proxy: FaultProxy
) -> None:
    """While it tries what the store makes of conditions: what it leaves there nobody sees, and its files come."""
    prefix = "dead-writer-trial"
    cluster = make_cluster(write="back:2", persist_delay_s=0.02, take_over_s=0.5)
    start(cluster, seaweed, proxy, prefix)
    writer, *others = cluster.hosts
    proxy.put_delay_s = 2.0
    Writer(writer.mount).run("for n in range(6): open(f'low/{n}', 'wb').write(os.urandom(30_000 * n))")
    expected = digests(writer)
    wait_until(lambda: any(HIDDEN in path for _, path in proxy.asked))
    writer.kill_all()
    proxy.put_delay_s = 0.0
    wait_until(
        lambda: bucket(seaweed, prefix) == expected,
        60.0,
        hint=lambda: differing(bucket(seaweed, prefix), expected),
    )
    for host in others:
        wait_until(lambda host=host: digests(host) == expected, 10.0)  # type: ignore[misc]
    wait_until(lambda: [name for name in _all_of(seaweed, prefix) if name.startswith(HIDDEN)])
