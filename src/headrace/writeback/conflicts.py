"""Keep this node's version under another name if another writer changed the file at the origin, or no origin accepts
its name. Users see each in the list of conflicts. Calls are on the node's loop."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable

from headrace.base.beneath import NOREPLACE
from headrace.base.errors import HeadraceError, NotSupportedError, OriginUnavailableError
from headrace.base.namespace_path import NAME_BYTES_MAX, join, split
from headrace.base.origin_names import plain_name
from headrace.namespace.namespace import Namespace
from headrace.overlay.hiding import pending_removals
from headrace.overlay.marks import base_version
from headrace.overlay.upper import Upper
from headrace.writeback.reconcile import replaces_file
from headrace.writeback.sync_journal import Conflict, SyncJournal

log = logging.getLogger(__name__)

UTF8_BYTES_MAX = 4
"""Most bytes of one character."""


class ConflictCopies:
    """Rename this node's versions. on_written: called with paths whose meaning the node itself changed."""

    def __init__(
        self,
        namespace: Namespace,
        upper: Upper,
        journal: SyncJournal,
        *,
        on_written: Callable[[list[bytes]], None],
    ) -> None:
        self._tree = namespace.tree
        self._names = namespace.changes
        self._upper = upper
        self._journal = journal
        self._on_written = on_written
        self.count = 0
        """Number of names that were changed since the start."""

    def check_blocked(self, path: bytes, error: HeadraceError) -> None:
        """Raise OriginUnavailableError if this node's own earlier entry blocks an upload. That is a file whose place a
        directory above it has now, or a directory that is not removed yet. The upload is then retried."""
        if self.blocking_directories(path) or any(
            prefix == path for _, prefix in pending_removals(self._upper)
        ):
            raise OriginUnavailableError(os.fsdecode(path), why="the old entry is not removed yet") from error

    def blocking_directories(self, path: bytes) -> list[bytes]:
        """Return the directories above a path in whose place the origin still has a file."""
        ways = []
        while (path := split(path)[0]) != b"/":
            safe_path = self._upper.at(path)
            if safe_path.is_directory() and replaces_file(
                self._journal.get(path), base_version(safe_path, path)
            ):
                ways.append(path)
        return ways

    def keep(self, path: bytes, before: os.stat_result, why: str) -> None:
        """Rename this node's file, or directory with everything below it. The old name then shows the origin's version,
        and the new name is persisted."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()).encode()
        kept = self._rename(path, before, split(path)[1], b".conflict-" + stamp, why)
        if kept is not None:
            log.warning(
                "another writer changed a file at the origin, the local version is kept path=%s kept=%s",
                *(os.fsdecode(path), os.fsdecode(kept)),
            )

    def keep_by_plain_name(self, path: bytes, error: NotSupportedError) -> bool:
        """Rename the path, or a directory above it, if no origin accepts its name. Otherwise one user's name would
        block every `persist` of the layer. Return False if the name is not the reason."""
        end = 0
        while end < len(path):
            start, end = end + 1, (path + b"/").find(b"/", end + 1)
            name = path[start:end]
            if plain_name(name) != name:
                status = self._upper.at(path[:end]).seen()
                kept = (
                    None
                    if status is None
                    else self._rename(path[:end], status, plain_name(name), b"", str(error))
                )
                if kept is not None:
                    log.warning(
                        "no origin accepts a name, the file was renamed path=%s kept=%s",
                        *(os.fsdecode(path[:end]), os.fsdecode(kept)),
                    )
                return True
        return False

    def _rename(
        self, path: bytes, before: os.stat_result, name: bytes, tail: bytes, why: str
    ) -> bytes | None:
        """Rename the entry that looked like `before`, and return its new path; None if the path has another entry by
        now."""
        with self._upper.lock:
            status = self._upper.lookup(path)
            if not isinstance(status, os.stat_result) or status.st_ino != before.st_ino:
                self._journal.drop(path)
                return None
            kept = self._free_name(split(path)[0], name, tail)
            self._upper.at(path).rename(self._upper.at(kept), NOREPLACE)
            self._journal.drop(path)
        self.count += 1
        self._journal.add_conflict(Conflict(path, kept, why, time.time()))
        self._names.invalidate(split(path)[0])
        self._on_written([path, kept])
        return kept

    def _free_name(self, directory: bytes, name: bytes, tail: bytes) -> bytes:
        """Return a path in the directory that neither the upper layer nor the index has."""
        for number in itertools.count():
            end = tail + (b"-%d" % number if number else b"")
            candidate = join(directory, _cut(name, NAME_BYTES_MAX - len(end)) + end)
            if self._upper.lookup(candidate) is None and self._tree.entry_at(candidate) is None:
                return candidate
        raise AssertionError


def _cut(name: bytes, most: int) -> bytes:
    """Return the first bytes of a name, without a part of a character at the end: origins refuse that."""
    end = min(most, len(name))
    while 0 < end < len(name) and most - end < UTF8_BYTES_MAX and name[end] & 0xC0 == 0x80:
        end -= 1
    return name[:end]
