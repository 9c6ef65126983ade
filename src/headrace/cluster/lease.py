"""Keeps a lease of etcd alive, from a thread and a connection of its own: a node that is busy stays in the cluster.

The node's loop answers programs and peers; what holds it up for some seconds must not cost the lease, by which others
take this node for gone. One that is held up for longer than LOOP_SILENT_S is no node any more, and its lease ends.
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
"""A lease is renewed so often within its time."""
AGAIN_S = 0.3
LOOP_SILENT_S = 30.0
STOP_S = 5.0


class LeaseKeeper:
    """on_lost: told, in the keeper's thread, the id of a lease that etcd does not have any more."""

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
        self._turn = 0
        self._channel: Any = None
        self._heard_s = boot_clock.now_s()
        self._thread: threading.Thread | None = None
        self.until_s = 0.0
        """Until when etcd keeps the lease at least; CLOCK_BOOTTIME."""

    def keep(self, lease: int, until_s: float) -> None:
        """Renew this one from now on."""
        self._lease, self.until_s = lease, until_s
        self.loop_lives()
        if self._thread is None:
            self._ended = threading.Event()
            self._thread = threading.Thread(target=self._run, args=(self._ended,), name="lease", daemon=True)
            self._thread.start()

    def let_go(self) -> None:
        """There is none to renew."""
        self._lease, self.until_s = None, 0.0

    def loop_lives(self) -> None:
        """To be called every second by whom the lease stands for."""
        self._heard_s = boot_clock.now_s()

    def stop(self) -> None:
        """Nothing is renewed any more on return, until `keep`. Blocks for a moment."""
        self.let_go()
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
            if lease is None or boot_clock.now_s() > self._heard_s + LOOP_SILENT_S:
                continue
            try:
                self._renew(lease)
                wait_s = self._ttl_s / PARTS
            except Exception as error:  # noqa: BLE001 - whatever grpc raises is etcd being away, and is told elsewhere
                log.debug("lease not renewed, again error=%s", error)
                self._close()
                self._turn += 1
                wait_s = min(AGAIN_S, wait_s)
        self._close()

    def _renew(self, lease: int) -> None:
        channel = self._channel
        if channel is None or channel.is_stale:
            self._close()
            channel = self._connector.lease_channel(self._endpoints[self._turn % len(self._endpoints)])
            self._channel = channel
        asked_s = boot_clock.now_s()
        left_s = channel.renew(lease)
        if lease != self._lease:
            return
        if left_s > 0:
            self.until_s = asked_s + min(left_s, self._ttl_s)
        else:
            self.let_go()
            self._on_lost(lease)

    def _close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            with suppress(Exception):
                channel.close()
