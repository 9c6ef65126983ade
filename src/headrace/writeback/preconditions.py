"""Gather this node's knowledge of a path's state at the origin, and ask the origin or other nodes where it is missing.
Each upload and removal is conditional on that state; `writeback/reconcile.py` decides by it."""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable
from dataclasses import replace

from headrace.base.beneath import SafePath
from headrace.base.deadline import Deadline
from headrace.base.errors import NotSupportedError, PathNotFoundError
from headrace.base.model import Kind, Version
from headrace.namespace.mounts import Mount
from headrace.namespace.namespace import Namespace
from headrace.origin.origin import Absent, Origin
from headrace.origin.retry import PATIENCE_S
from headrace.overlay.marks import base_version, is_whiteout, set_base
from headrace.overlay.pending_version import PendingVersion, is_pending
from headrace.overlay.upper import Upper
from headrace.writeback.reconcile import PathState, upload_condition, version_to_remove
from headrace.writeback.sync_journal import JournalRecord, SyncJournal

QUERIES_MAX = 2
"""Most times that one upload or removal queries the replicas about a conflict. The first answer may be an older version
than the origin's."""
HEAD_LIMIT_S = 10.0


def head_deadline() -> Deadline:
    """Return the deadline of a HEAD that decides what is to be done for one path."""
    return Deadline.after(HEAD_LIMIT_S, patience_s=PATIENCE_S)


class Preconditions:
    """Gather the state that a change at the origin depends on. Calls are on the node's loop.

    query_replicas: records in the journal what other nodes persisted in a failover of this node; called with a path
    that has another version at the origin than the journal says. resolve_version: has another node persist a file that
    it wrote, and returns the origin's version. Both are None in a single node.
    """

    def __init__(
        self,
        namespace: Namespace,
        upper: Upper,
        journal: SyncJournal,
        *,
        query_replicas: Callable[[bytes], Awaitable[None]] | None = None,
        resolve_version: Callable[[bytes, Version], Awaitable[Version | None]] | None = None,
    ) -> None:
        self._tree = namespace.tree
        self._names = namespace.changes
        self._upper = upper
        self._journal = journal
        self._query_replicas = query_replicas
        self._resolve_version = resolve_version

    def locate(self, path: bytes) -> tuple[Mount, str]:
        """Return the mount of a path, and its key below the mount's origin. Raises NotSupportedError if no origin is
        mounted there."""
        mount_and_key = self._tree.mounts.find(path)
        if mount_and_key is None:
            raise NotSupportedError(
                os.fsdecode(path), why="no origin is attached there", hint="--write local"
            )
        return mount_and_key

    async def resolve_base(self, path: bytes, safe_path: SafePath) -> bool:
        """Wait until another node has persisted the file that this path replaces or removes, and set that version as
        the base. Return False if there is none, because that node replaced the file or left. Raises HeadraceError if no
        node can answer now, or the origin cannot."""
        base = base_version(safe_path, path)
        if base is None or not is_pending(base):
            return True
        version = None if self._resolve_version is None else await self._resolve_version(path, base)
        if version is None:
            version = await self._version_at_origin(path, base)
        with self._upper.lock:
            if base_version(safe_path, path) != base:
                return True
            if version is not None:
                set_base(safe_path, path, version)
                self._names.record_put(path, version)
            elif not is_whiteout(safe_path.lstat()):  # a whiteout without a base would hide any version
                set_base(safe_path, path, None)
            return version is not None

    async def _version_at_origin(self, path: bytes, base: Version) -> Version | None:
        """Return the origin's version if its object is the pending file, by the id that the writer gave it. The writer
        may have left, or forgotten it, after the upload. Size and mtime do not suffice: the object may be another
        writer's."""
        pending = PendingVersion.parse(base.token)
        mount, key = self.locate(path)
        try:
            info = await mount.origin.head(key, deadline=head_deadline())
        except PathNotFoundError:
            return None
        is_same = (
            pending is not None
            and info.attributes is not None
            and info.attributes.put_id == pending.put_id
            and info.version.size_bytes == base.size_bytes
        )
        return info.version if is_same else None

    async def ask_origin(
        self, row: JournalRecord, origin: Origin, key: str, deadline: Deadline
    ) -> JournalRecord:
        """Ask the origin what became of an upload or a removal whose answer was lost. If it succeeded, record and
        return the row of its success; otherwise return the same row. The layer's file may be another one by now."""
        try:
            info = await origin.head(key, deadline=deadline)
        except PathNotFoundError:
            return self._note(JournalRecord.removed(row.path, row.version)) if row.is_removal else row
        attributes = info.attributes
        if attributes is None or info.version.size_bytes != row.size_bytes:
            return row
        if attributes.put_id != row.put_id if attributes.put_id else attributes.mtime_ns != row.mtime_ns:
            return row
        return self._note(replace(row, version=info.version, begun=False))

    def _note(self, row: JournalRecord) -> JournalRecord:
        """Record a row, and correct the index. Otherwise the index's older version would look like another writer's
        later one."""
        with self._upper.lock:
            entry = self._tree.entry_at(row.path)
            if entry is not None and entry.kind is Kind.FILE and not is_pending(entry.version):
                if row.is_absent:
                    self._names.record_removal(row.path)
                else:
                    self._names.record_put(row.path, row.version)
            self._journal.note(row)
        return row

    def state(self, path: bytes, base: Version | None) -> PathState:
        """Return the present state of a path, from journal, index and layer. base: the version that it replaces."""
        return PathState(
            *(self._journal.get(path), base, self._tree.entry_at(path)),
            *(self._names.is_pending(path), self._upper.at(path).seen()),
        )

    def condition(self, path: bytes, base: Version | None) -> Version | Absent:
        """Return the condition of an upload whose questions are answered. base: the version that the file's BASE mark
        names."""
        row = self._journal.get(path)
        needs_index = row is not None and base is not None
        return upload_condition(self.state(path, base) if needs_index else PathState(row, base))

    def replaces(self, path: bytes, safe_path: SafePath, status: os.stat_result) -> Version | None:
        """Return the origin's version that the entry at a path replaces or hides; None if there is none."""
        base = base_version(safe_path, path)
        if is_whiteout(status):  # first: with `--user` a whiteout is a file
            return version_to_remove(self.state(path, base))
        if not stat.S_ISREG(status.st_mode):
            return base
        condition = self.condition(path, base)
        return condition if isinstance(condition, Version) else None

    async def query_failover(self, path: bytes) -> bool:
        """Ask other nodes what they persisted for this node. Return whether that changed the journal's row of the
        path."""
        before = self._journal.get(path)
        if self._query_replicas is not None:
            await self._query_replicas(path)
        return self._journal.get(path) != before
