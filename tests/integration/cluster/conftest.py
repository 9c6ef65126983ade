"""An etcd for all tests, a cluster a test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.testing.etcd import EtcdServer, etcd_server
from headrace.testing.servers import ServerMissing

from .town import Town

MakeTown = Callable[..., Town]


@pytest.fixture(scope="session")
def etcd() -> Iterator[EtcdServer]:
    try:
        with etcd_server() as server:
            yield server
    except ServerMissing as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def _needs_fuse() -> None:
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("needs root and /dev/fuse")


@pytest.fixture
def make_town(tmp_path: Path, etcd: EtcdServer) -> Iterator[MakeTown]:
    """Call with settings by name, and `etcd` for another one."""
    made: list[Town] = []

    def make(*, server: EtcdServer = etcd, **settings: object) -> Town:
        made.append(Town(tmp_path, server.address, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def town(make_town: MakeTown) -> Town:
    return make_town()
