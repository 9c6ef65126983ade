"""Provide one etcd for all tests, and a cluster for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.testing.etcd import EtcdServer, etcd_server
from headrace.testing.servers import ServerMissing

from .cluster_fixture import ClusterFixture

MakeCluster = Callable[..., ClusterFixture]


@pytest.fixture(scope="session")
def etcd() -> Iterator[EtcdServer]:
    try:
        with etcd_server() as server:
            yield server
    except ServerMissing as error:
        pytest.skip(str(error))


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
