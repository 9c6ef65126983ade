"""Hold this node's lease in etcd: acquire it when the first leased record is written, and again after a loss."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from headrace.base import boot_clock
from headrace.base.errors import ClusterUnavailableError
from headrace.cluster.etcd_client import EtcdConnector
from headrace.cluster.etcd_connection import EtcdConnection
from headrace.cluster.lease import LeaseKeeper


class OwnLease:
    """The lease of this node; a thread renews it. Used on one event loop."""

    def __init__(
        self, connection: EtcdConnection, connector: EtcdConnector, endpoints: Sequence[str], *, ttl_s: int
    ) -> None:
        self._connection = connection
        self._ttl_s = ttl_s
        self._lease: int | None = None
        self._lock = asyncio.Lock()
        self._losses: asyncio.Queue[int] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._keeper = LeaseKeeper(connector, endpoints, ttl_s=ttl_s, on_lost=self._report_loss)
        self.report_loop_alive = self._keeper.report_loop_alive

    @property
    def valid_until_s(self) -> float:
        return self._keeper.valid_until_s

    async def acquire(self) -> int:
        """Return the lease; acquire it if there is none. Raise ClusterUnavailableError."""
        async with self._lock:
            if self._lease is None:
                self._loop = asyncio.get_running_loop()
                requested_s = boot_clock.now_s()
                lease = await self._connection.call(lambda client: client.lease(self._ttl_s))
                self._lease = int(lease.id)
                self._keeper.keep(self._lease, requested_s + self._ttl_s)
            return self._lease

    def release(self) -> None:
        """Forget a lease that was lost."""
        self._lease = None
        self._keeper.release()

    async def wait_for_loss(self) -> None:
        while await self._losses.get() != self._lease:
            pass

    async def close(self) -> None:
        """End the lease, provided that etcd answers."""
        await asyncio.to_thread(self._keeper.stop)
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(ClusterUnavailableError):
                await self._connection.call(lambda client: client.revoke_lease(lease))

    def _report_loss(self, lease: int) -> None:
        """Pass the loss of a lease to the loop. Called in the keeper's thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._losses.put_nowait, lease)
