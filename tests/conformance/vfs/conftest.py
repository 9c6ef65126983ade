"""The namespaces that the suite runs over: one node, reached on its host, by its REST API, and by its broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace.base.tokens import Tokens
from headrace.config.schema import broker_socket_of
from headrace.vfs.brokered.broker_connection import BrokerConnection
from headrace.vfs.brokered.brokered_vfs import BrokeredVfs
from headrace.vfs.client_registry import HOSTS
from headrace.vfs.remote.cluster_client import ClusterClient
from headrace.vfs.remote.remote_registry import address_of
from headrace.vfs.remote.remote_vfs import RemoteVfs
from headrace.vfs.vfs import Vfs
from tests.integration.door.rest.conftest import Api, serving

PATIENCE_S = 10.0


@pytest.fixture(scope="package")
def api(needs_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A node whose origin of /data is only read, and whose origin of /out is written to."""
    with serving(tmp_path_factory.mktemp("vfs"), write="/out=back,off", open_to_others="true") as running:
        yield running
    HOSTS.close()


def local_vfs(api: Api) -> Vfs:
    return HOSTS.get(_socket_of(api), PATIENCE_S)


def remote_vfs(api: Api) -> Vfs:
    tokens = Tokens(str(api.host.base / "token"), "rest_token")
    return RemoteVfs(ClusterClient([address_of(api.url, None)], tokens, patience_s=PATIENCE_S))


def brokered_vfs(api: Api) -> Vfs:
    socket = broker_socket_of(_socket_of(api))
    return BrokeredVfs(BrokerConnection(socket, patience_s=PATIENCE_S, any_owner=True))


def _socket_of(api: Api) -> str:
    (path,) = (path for path in api.host.run_folder.glob("*.sock") if "rest" not in path.name)
    return str(path)


OpenVfs = Callable[[Api], Vfs]


@pytest.fixture(params=[local_vfs, remote_vfs, brokered_vfs])
def vfs(api: Api, request: pytest.FixtureRequest) -> Iterator[Vfs]:
    """Each implementation, for tests that only read."""
    yield from _opened(api, request.param)


@pytest.fixture(params=[local_vfs, remote_vfs])
def writable(api: Api, request: pytest.FixtureRequest) -> Iterator[Vfs]:
    """Each implementation that changes the namespace."""
    yield from _opened(api, request.param)


@pytest.fixture
def brokered(api: Api) -> Iterator[Vfs]:
    yield from _opened(api, brokered_vfs)


def _opened(api: Api, open_vfs: OpenVfs) -> Iterator[Vfs]:
    vfs = open_vfs(api)
    yield vfs
    vfs.close()
    assert vfs.closed
