"""The connection to etcd, which all calls of a node share."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.base.errors import ClusterUnavailableError
from headrace.cluster.etcd_client import EtcdAccess, EtcdConnector
from headrace.cluster.etcd_connection import EtcdConnection


def connection() -> EtcdConnection:
    """To an etcd of one endpoint, where nothing listens: a request of a test answers itself."""
    return EtcdConnection(EtcdConnector(EtcdAccess(), timeout_s=1.0), ["127.0.0.1:1"])


async def test_a_call_is_repeated_when_another_one_drops_the_connection() -> None:
    shared, clients = connection(), []

    async def request(client: Any) -> str:
        clients.append(client)
        if len(clients) == 1:
            await shared.drop()
            raise asyncio.CancelledError  # as grpc ends the calls of a channel that is closed
        return "the answer"

    assert await shared.call(request) == "the answer"
    assert clients[0] is not clients[1]
    await shared.drop()


async def test_a_connection_that_is_dropped_again_and_again_is_an_error() -> None:
    shared, calls = connection(), 0

    async def request(_: Any) -> str:
        nonlocal calls
        calls += 1
        await shared.drop()
        raise asyncio.CancelledError

    with pytest.raises(ClusterUnavailableError, match="the connection was closed"):
        await shared.call(request)
    assert calls == 2


async def test_a_connection_that_ends_by_itself_is_an_error() -> None:
    shared, calls = connection(), 0

    async def request(_: Any) -> str:
        nonlocal calls
        calls += 1
        raise asyncio.CancelledError

    with pytest.raises(ClusterUnavailableError, match="the connection was closed"):
        await shared.call(request)
    assert calls == 1
