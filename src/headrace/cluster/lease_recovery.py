"""Write this node's leased records again after its lease was lost.

The thread that renews the lease reports a loss, and the watch reports that a record was deleted. Whichever comes first
counts the loss, and only one task at a time writes records again. Two would count it twice, and the first would write
records with the lease that the second replaces: nobody renews that one, so they would end once more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from headrace.base.errors import ClusterUnavailableError
from headrace.cluster.own_lease import OwnLease

log = logging.getLogger(__name__)

DOUBT_S = 0.02
"""Pause after the watch reported that a record was deleted. The next events may be that it, and thousands of others,
were written again."""


class LeaseRecovery:
    """Handles losses of the lease. leased: the leased records of this node. mirror: all records as the watch reported
    them. value_now: returns the value of a record in etcd. rewrite: writes the leased records again."""

    def __init__(
        self,
        lease: OwnLease,
        leased: Mapping[str, bytes],
        mirror: Mapping[str, bytes],
        *,
        value_now: Callable[[Any, str], Awaitable[bytes | None]],
        rewrite: Callable[[], Awaitable[None]],
    ) -> None:
        self._lease = lease
        self._leased = leased
        self._mirror = mirror
        self._value_now = value_now
        self._rewrite = rewrite
        self._restoring = asyncio.Lock()
        self._is_unrestored = False
        """Records may be missing after a loss that was counted."""
        self._has_doubts = asyncio.Event()
        self.losses = 0

    def doubt(self) -> None:
        """Note that the watch reported the deletion of a record."""
        self._has_doubts.set()

    def retry(self) -> None:
        """Try again to write the records that could not be written."""
        if self._is_unrestored:
            self._has_doubts.set()

    async def handle_losses(self) -> None:
        """Write the records again each time that the lease has ended."""
        while True:
            await self._lease.wait_for_loss()
            log.error("the lease was lost: this node was out of the cluster")
            self._note_loss()
            try:
                async with self._restoring:
                    await self._restore()
            except ClusterUnavailableError:
                continue  # EtcdRecords logs it; `retry` follows
            except Exception:  # the task must continue
                log.exception("the leased records were not written again, retrying")

    async def check_doubts(self, client: Any) -> None:
        """Write the records again when one is missing, or `retry` was called. Raises errors of etcd."""
        while True:
            await self._has_doubts.wait()
            await asyncio.sleep(DOUBT_S)
            self._has_doubts.clear()
            missing = await self.restore_missing(client)
            if missing:
                log.error("this node's record was deleted: the node was out of the cluster key=%s", missing)

    async def restore_missing(self, client: Any) -> str:
        """Write the records again if one is missing: etcd lost its data, or the lease ended while etcd was unavailable.
        Return the key of the first; "" if none is missing, or the loss was counted before.

        The watch may be late: it reports that a record was deleted, or does not report yet that it exists, after this
        node wrote it."""
        async with self._restoring:
            if self._is_unrestored:
                await self._restore()
                return ""
            for key in [key for key in self._leased if self._mirror.get(key) is None]:
                if self._mirror.get(key) is not None:
                    continue
                value = await self._value_now(client, key)
                if value != self._leased.get(key):
                    is_new = not self._is_unrestored  # otherwise the loss was reported meanwhile
                    if is_new:
                        self._note_loss()
                    await self._restore()
                    return key if is_new else ""
        return ""

    def _note_loss(self) -> None:
        """Count a loss. The records need another lease, and may be missing."""
        self.losses += 1
        self._lease.release()
        self._is_unrestored = True

    async def _restore(self) -> None:
        """Write the records again, unless that was done since the last loss."""
        if self._is_unrestored:
            losses = self.losses
            await self._rewrite()
            self._is_unrestored = self.losses != losses
