"""Provide one etcd and one moto for all tests, and a cluster for each test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.testing.etcd import EtcdServer, etcd_server
from headrace.testing.servers import S3Server, ServerMissing, http_status, s3_store
from tests.emulators import moto_s3

from .cluster_fixture import ClusterFixture

MakeCluster = Callable[..., ClusterFixture]

BUSY = (
    "a peer did not return bytes that it owns",
    "the handover failed",
    "changes were not replicated, retrying",
    "etcd is available again",
    "etcd is unavailable",
    "node was out of the cluster",
)
"""Warnings of nodes on a busy machine, where a live peer or etcd seems dead. No read fails by them."""

UNREACHABLE = (
    *BUSY,
    "a claim was not confirmed, retrying",
    "a node left the cluster, this replica persists its files",
    "another node took a directory lease of this node",
    "directory leases were not checked, retrying",
    "etcd has not confirmed the exclusive directories",
    "job records can't be written, the job continues",
    "no replica is available, the file is persisted first",
    "pending names",
    "recorded directories were not checked, retrying",
    "replicated files of a node that left can't be persisted",
    "the node did not completely adopt a new view, retrying",
    "the replicas were not recorded in the cluster, retrying",
    "this node is not in the cluster",
    "this node joined the cluster",
)
"""Warnings of a test that kills, suspends or cuts off a node or etcd: each says which one does not answer, or for how
long one did not. Which of them are logged depends on the moment."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.expected_warnings(*BUSY))


@pytest.fixture(scope="package")
def etcd() -> Iterator[EtcdServer]:
    try:
        with etcd_server() as server:
            yield server
    except ServerMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="package")
def moto() -> Iterator[S3Server]:
    try:
        with moto_s3() as server:
            yield server
    except ServerMissing as error:
        pytest.skip(str(error))


@pytest.fixture
def moto_bucket(moto: S3Server) -> S3Server:
    """Create a bucket of moto for one test."""
    bucket = f"bucket-{os.urandom(4).hex()}"
    assert http_status(int(moto.endpoint.rpartition(":")[2]), "PUT", f"/{bucket}") == 200
    store = s3_store(moto.endpoint, bucket, moto.access_key, moto.secret_key)
    return replace(moto, bucket=bucket, store=store)


@pytest.fixture(autouse=True)
def _needs_fuse(needs_fuse: None) -> None:
    """Mark all tests here."""


@pytest.fixture
def make_cluster(tmp_path: Path, etcd: EtcdServer) -> Iterator[MakeCluster]:
    """Return a function that makes a cluster from settings by name; `server` replaces the common etcd."""
    clusters: list[ClusterFixture] = []

    def make(*, server: EtcdServer = etcd, **settings: object) -> ClusterFixture:
        clusters.append(ClusterFixture(tmp_path, server.address, **settings))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.close()


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> ClusterFixture:
    return make_cluster()
