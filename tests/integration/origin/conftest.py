"""Real servers, some behind a proxy that spoils their answers. One of each for all files of this directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.testing.servers import S3Server
from tests import emulators
from tests.fault_proxy import FaultProxy, fault_proxy


@pytest.fixture(scope="package")
def seaweedfs(seaweed: S3Server) -> S3Server:
    return emulators.new_bucket(seaweed)


@pytest.fixture(scope="package")
def seaweedfs_proxy(seaweedfs: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(seaweedfs) as proxy:
        yield proxy


@pytest.fixture(scope="package")
def web_proxy() -> Iterator[FaultProxy]:
    with emulators.http_folder() as server, fault_proxy(server) as proxy:
        yield proxy


@pytest.fixture(params=["s3", "web"])
def proxy(request: pytest.FixtureRequest) -> Iterator[FaultProxy]:
    proxy = request.getfixturevalue({"s3": "seaweedfs_proxy", "web": "web_proxy"}[request.param])
    assert isinstance(proxy, FaultProxy)
    proxy.mode = "pass"
    yield proxy
    proxy.mode = "pass"
