"""A host a test, and one SeaweedFS for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.testing.servers import S3Server, ServerMissing, seaweedfs_s3
from tests.integration.cli.host import Host

MakeHost = Callable[..., Host]


@pytest.fixture
def make_host(tmp_path: Path) -> Iterator[MakeHost]:
    """Call with settings by name."""
    hosts: list[Host] = []

    def make(**settings: object) -> Host:
        hosts.append(Host(tmp_path, **settings))
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()


@pytest.fixture
def host(make_host: MakeHost) -> Host:
    """With some files at the origin."""
    host = make_host()
    for number in range(6):
        host.put(f"images/{number}.bin", 90_000 + number)
    host.put("large.tar", (5 << 20) + 321)
    host.put("empty", 0)
    return host


@pytest.fixture(scope="session")
def seaweed() -> Iterator[S3Server]:
    try:
        with seaweedfs_s3() as server:
            yield server
    except ServerMissing as error:
        pytest.skip(str(error))
