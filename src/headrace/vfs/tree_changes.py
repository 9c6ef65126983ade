"""Apply changes to the merged tree of this host, each as durable as the write mode of its path promises."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from headrace.base.errors import StoreError, UsageError
from headrace.base.origin_names import is_accepted
from headrace.base.os_errors import read_only, translating_os_errors
from headrace.base.printable import path_text
from headrace.base.write_modes import WriteMode, WriteModes
from headrace.client.node_client import NodeClient
from headrace.overlay.copy_up import NeedsContentError
from headrace.overlay.dirty_throttle import DirtyThrottle
from headrace.overlay.durable_writes import DurableWrites
from headrace.overlay.lease_check import LeaseRequiredError
from headrace.overlay.merged_tree import MergedTree
from headrace.overlay.upper import Upper

COPIES_MAX = 10
"""Copies of a file to the upper layer, each of which disappeared again, after which a change fails."""

Result = TypeVar("Result")


class TreeChanges:
    """Runs changes of the tree, which it owns, under the lock of the upper layer. Reports the changed paths to the
    node. Thread-safe. client: stays the caller's."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client
        self._unsettled: list[bytes] = []
        self.tree = MergedTree(
            client, Upper(client.upper), WriteModes.parse(client.write), on_changed=self.note
        )
        self._durable = DurableWrites(os.fsencode(client.upper), lambda: client.local.durable_puts)
        self._dirty_throttle: DirtyThrottle | None = None

    def close(self) -> None:
        if self._dirty_throttle is not None:
            self._dirty_throttle.close()
        self.tree.upper.close()

    def reset_after_fork(self) -> None:
        self.tree.lock.reset_after_fork()
        self._durable.reset_after_fork()

    def apply(
        self,
        path: bytes,
        work: Callable[[], Result],
        copy: Callable[[NeedsContentError], None] | None = None,
        *,
        wait: bool = True,
        flush: bool = True,
    ) -> Result:
        """Run `work` under the layer's lock, after the files that it needs were copied up. On return the change is
        durable on disk (`durable_puts`) if `flush`, and at the origin in mode `through`. Without `wait` neither
        holds, and the caller calls `settle`."""
        if not self.tree.modes.any:  # there is no upper layer, and so no lock
            raise read_only(os.fsdecode(path))
        for _ in range(COPIES_MAX):
            try:
                with translating_os_errors(path):
                    with self.tree.lock:
                        self._unsettled = []
                        result = work()
                        paths, self._unsettled = self._unsettled, []
                    break
            except NeedsContentError as needs:
                with translating_os_errors(path):
                    if copy is not None:
                        copy(needs)
                    else:
                        self.tree.copies.copy_up(needs.path, None, content=needs.content)
            except LeaseRequiredError as needs:
                self._client.acquire_lease(needs.folder)
        else:
            raise StoreError(
                os.fsdecode(path), why=f"it changed during each of {COPIES_MAX} attempts", hint="try again"
            )
        if wait:
            self.settle(paths, flush=flush)
        return result

    def check_new_name(self, path: bytes) -> None:
        """Refuse a name that no origin accepts, because the node would rename the file. Raises UsageError."""
        if self.tree.modes.of(path) in (WriteMode.BACK, WriteMode.THROUGH) and not is_accepted(path):
            raise UsageError(
                path_text(path),
                why="no origin accepts a name with control characters, or one that is not UTF-8",
                hint="use another name",
            )

    def note(self, paths: list[bytes]) -> None:
        """Report changed paths to the node, and remember them for `settle`. The lock is held."""
        self._client.changed(paths)
        self._unsettled += paths

    def settle(self, paths: list[bytes], *, flush: bool = True) -> None:
        """Wait until changed paths are as durable as `apply` promises."""
        if flush and any(map(self._is_acknowledged_here, paths)):
            with translating_os_errors(paths[0]):
                self._durable.flush()
        for path in paths:
            if self.tree.modes.waits(path) or not self.tree.other_nodes.is_published(path):
                self._client.secure(path)

    def write_back(self, fd: int, path: bytes) -> None:
        """Start to write a file's bytes to disk before it gets its name, so that a power loss never leaves a part of
        it."""
        if self._is_acknowledged_here(path):
            with translating_os_errors(path):
                self._durable.write_back(fd)

    def throttle(self) -> None:
        """Delay a writer for a moment while the node is behind with persisting."""
        if self._dirty_throttle is None:
            self._dirty_throttle = DirtyThrottle(self.tree.upper.pressure_path)
        if self._dirty_throttle.pause_s:
            time.sleep(self._dirty_throttle.pause_s)

    def _is_acknowledged_here(self, path: bytes) -> bool:
        """Return whether the write is acknowledged before an origin has it. In mode `through` the node has flushed
        its disk before the origin has it."""
        return self.tree.modes.of(path) is not WriteMode.THROUGH
