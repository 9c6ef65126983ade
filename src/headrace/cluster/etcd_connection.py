"""Send requests to etcd over one connection at a time, to one of its endpoints after another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from headrace.base.errors import ClusterDeniedError, ClusterUnavailableError
from headrace.base.tasks import being_cancelled
from headrace.cluster.availability import FULL, FULL_HINT, EtcdAvailability
from headrace.cluster.etcd_client import EtcdConnector

CALL_S = 3.0
CLOSE_S = 1.0
PROBLEM_CHARACTERS_MAX = 400
"""The limit for grpc's text about a failed connection."""

Answer = TypeVar("Answer")


class EtcdConnection:
    """Connects when it is first needed, and again after `drop`. endpoints: "host:port" of the members."""

    def __init__(self, connector: EtcdConnector, endpoints: Sequence[str]) -> None:
        self._connector = connector
        self._endpoints = endpoints
        self._endpoint_index = 0
        self._client: Any = None
        self.availability = EtcdAvailability()

    async def call(self, request: Callable[[Any], Awaitable[Answer]]) -> Answer:
        """Run a request; try a second endpoint when the first does not answer, and once more on a new connection when
        another call dropped this one. Raise ClusterUnavailableError or ClusterDeniedError."""
        problem, attempts_left, has_renewed = "", min(2, len(self._endpoints)), False
        while attempts_left > 0:
            attempts_left -= 1
            client = self.client()
            try:
                async with asyncio.timeout(CALL_S):
                    return await request(client)
            except TimeoutError as error:
                problem = reason_of(error)
            except asyncio.CancelledError as error:
                if being_cancelled():
                    raise
                problem = reason_of(error)
                if client is not self._client and not has_renewed:
                    attempts_left, has_renewed = max(attempts_left, 1), True
            except Exception as error:  # noqa: BLE001 - any error of the library or grpc means that etcd is unavailable
                problem = reason_of(error)
                if FULL in problem:  # the connection is all right
                    self.availability.note_full(problem)
                    raise self.unavailable(problem, FULL_HINT) from None
                denied = self.denial_of(error)
                if self._connector.is_stale(error) and not has_renewed:
                    attempts_left, has_renewed = max(attempts_left, 1), True
                elif denied is not None:
                    raise denied from None
            if client is self._client:
                await self.drop()
        raise self.unavailable(problem)

    async def write(self, request: Callable[[Any], Awaitable[Answer]]) -> Answer:
        """Run a request that a full database refuses, as `call` does."""
        answer = await self.call(request)
        self.availability.note_written()
        return answer

    def client(self) -> Any:
        if self._client is None:
            endpoint = self._endpoints[self._endpoint_index % len(self._endpoints)]
            self._client = self._connector.client(endpoint)
        return self._client

    async def drop(self) -> None:
        """Close the connection; the next one is to the next endpoint."""
        client, self._client = self._client, None
        self._endpoint_index += 1
        if client is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_S):
                    await client.close()

    def denial_of(self, error: BaseException) -> ClusterDeniedError | None:
        return self._connector.denial_of(error, self._endpoints)

    def unavailable(self, problem: object, hint: str = "") -> ClusterUnavailableError:
        why = one_line(problem) or "no answer"
        return ClusterUnavailableError(f"etcd at {', '.join(self._endpoints)}", why=why, hint=hint)


def reason_of(error: BaseException) -> str:
    """Return why etcd can't be used, in one line. The errors of asyncio have no text."""
    if isinstance(error, TimeoutError):
        return f"no answer within {CALL_S:g} s"
    if isinstance(error, asyncio.CancelledError):  # grpc cancels calls in progress
        return "the connection was closed"
    return one_line(error) or type(error).__name__


def one_line(text: object) -> str:
    return " ".join(str(text).split())[:PROBLEM_CHARACTERS_MAX]
