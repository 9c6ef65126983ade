"""Renew an etcd lease from a thread with a connection of its own, so that a busy node stays in the cluster.

The node's loop answers programs and peers. A delay of some seconds there must not cost the lease, because other
nodes then take this node for dead. A node whose loop is stalled for more than LOOP_SILENT_S stops renewing its
lease.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from headrace.base import boot_clock
from headrace.cluster.etcd_client import EtcdConnector

log = logging.getLogger(__name__)

PARTS = 4
"""Renewals of a lease within its time."""
RETRY_S = 0.3
LOOP_SILENT_S = 30.0
STOP_S = 5.0


class LeaseKeeper:
    """Renews one lease. on_lost: called, in the keeper's thread, with the id of a lease that etcd no longer has."""

    def __init__(
        self,
        connector: EtcdConnector,
        endpoints: Sequence[str],
        *,
        ttl_s: int,
        on_lost: Callable[[int], None],
    ) -> None:
        self._connector = connector
        self._endpoints = endpoints
        self._ttl_s = ttl_s
        self._on_lost = on_lost
        self._ended = threading.Event()
        self._lease: int | None = None
        self._endpoint_index = 0
        self._channel: Any = None
        self._loop_alive_s = boot_clock.now_s()
        self._thread: threading.Thread | None = None
        self.valid_until_s = 0.0
        """The time until which etcd keeps the lease at least, by CLOCK_BOOTTIME."""

    def keep(self, lease: int, valid_until_s: float) -> None:
        """Renew this lease from now on."""
        self._lease, self.valid_until_s = lease, valid_until_s
        self.report_loop_alive()
        if self._thread is None:
            self._ended = threading.Event()
            self._thread = threading.Thread(target=self._run, args=(self._ended,), name="lease", daemon=True)
            self._thread.start()

    def release(self) -> None:
        """Stop renewing the lease."""
        self._lease, self.valid_until_s = None, 0.0

    def report_loop_alive(self) -> None:
        """Report that the node's loop runs. The node calls it every second."""
        self._loop_alive_s = boot_clock.now_s()

    def stop(self) -> None:
        """Stop the thread; nothing is renewed until `keep`. Blocks for a moment."""
        self.release()
        self._ended.set()
        self._close()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(STOP_S)

    # ------------------------------------------------------------ the thread

    def _run(self, ended: threading.Event) -> None:
        wait_s = self._ttl_s / PARTS
        while not ended.wait(wait_s):
            lease = self._lease
            if lease is None or boot_clock.now_s() > self._loop_alive_s + LOOP_SILENT_S:
                continue
            try:
                self._renew(lease)
                wait_s = self._ttl_s / PARTS
            except Exception as error:  # noqa: BLE001 - any error of grpc means that etcd is unavailable
                log.debug("the lease was not renewed, retrying error=%s", error)
                self._close()
                self._endpoint_index += 1
                wait_s = min(RETRY_S, wait_s)
        self._close()

    def _renew(self, lease: int) -> None:
        channel = self._channel
        if channel is None or channel.is_stale:
            self._close()
            channel = self._connector.lease_channel(
                self._endpoints[self._endpoint_index % len(self._endpoints)]
            )
            self._channel = channel
        requested_s = boot_clock.now_s()
        ttl_s = channel.renew(lease)
        if lease != self._lease:
            return
        if ttl_s > 0:
            self.valid_until_s = requested_s + min(ttl_s, self._ttl_s)
        else:
            self.release()
            self._on_lost(lease)

    def _close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            with suppress(Exception):
                channel.close()
