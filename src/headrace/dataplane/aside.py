"""What was written here where the origin has something of somebody else's: it is kept beside, and reported. On the
node's loop."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from headrace.base.errors import HeadraceError, OriginUnavailableError
from headrace.dataplane.work import replaces_file
from headrace.layer.known import Conflict, KnownTable
from headrace.layer.upper import Upper, join, split
from headrace.namespace.tree import Namespace

log = logging.getLogger(__name__)


class Aside:
    """on_written: told paths of which the node itself changed what they mean."""

    def __init__(
        self,
        namespace: Namespace,
        upper: Upper,
        known: KnownTable,
        *,
        on_written: Callable[[list[bytes]], None],
    ) -> None:
        self._namespace = namespace
        self._upper = upper
        self._known = known
        self._on_written = on_written

    def check_way(self, path: bytes, error: HeadraceError) -> None:
        """What is in the way of a put may be of this node's own making: a file, in whose place a folder above it is by
        now, or a folder that is not removed yet. OriginUnavailableError: the put waits for that."""
        if self.in_the_way(path) or any(prefix == path for _, prefix in self._upper.put_aside()):
            raise OriginUnavailableError(
                os.fsdecode(path), why="what was there is not removed yet"
            ) from error

    def in_the_way(self, path: bytes) -> list[bytes]:
        """Folders above a path in whose place the origin has a file still."""
        ways = []
        while (path := split(path)[0]) != b"/":
            at = self._upper.at(path)
            if at.is_folder() and replaces_file(path, at, self._known.get(path)):
                ways.append(path)
        return ways

    def keep(self, path: bytes, before: os.stat_result, why: str) -> None:
        """What the origin has is what the name means from now on; ours, a file or a folder with all that is in it, gets
        another name, and is persisted under that."""
        with self._upper.lock:
            found = self._upper.look(path)
            if not isinstance(found, os.stat_result) or found.st_ino != before.st_ino:
                self._known.drop(path)
                return
            kept = self._free_name(path)
            self._upper.at(path).rename(self._upper.at(kept))
            self._known.drop(path)
        self._known.add_conflict(Conflict(path, kept, why, time.time()))
        log.warning(
            "changed at the origin by somebody else, ours is kept beside path=%s kept=%s",
            os.fsdecode(path),
            os.fsdecode(kept),
        )
        self._namespace.look_again(path)
        self._on_written([path, kept])

    def _free_name(self, path: bytes) -> bytes:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()).encode()
        count = 0
        while True:
            tail = b".conflict-" + stamp + (b"-%d" % count if count else b"")
            directory, name = split(path)
            candidate = join(directory, name[: 255 - len(tail)] + tail)
            if self._upper.look(candidate) is None and self._namespace.known(candidate) is None:
                return candidate
            count += 1
