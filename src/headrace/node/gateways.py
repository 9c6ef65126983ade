"""Serve the gateways of this host: keep their request counts for `headrace status`, and return an object's metadata."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from headrace.base.deadline import Deadline
from headrace.base.errors import PathNotFoundError
from headrace.base.model import FileId, ObjectMetadata
from headrace.namespace.tree import NameTree
from headrace.origin.retry import PATIENCE_S
from headrace.store.object_metadata import note, noted
from headrace.store.store import Store
from headrace.wire.messages import Described, GatewayCounts

SILENT_S_MAX = 15.0
"""Seconds without a report after which a gateway counts as ended."""


class Gateways:
    """Keeps the last counts of each gateway process."""

    def __init__(self) -> None:
        self._reports: dict[int, tuple[float, GatewayCounts]] = {}

    def record(self, counts: GatewayCounts) -> None:
        self._reports[counts.pid] = time.monotonic(), counts

    def status(self) -> list[dict[str, Any]]:
        now_s = time.monotonic()
        self._reports = {
            pid: report for pid, report in self._reports.items() if now_s - report[0] < SILENT_S_MAX
        }
        return [
            {
                "kind": counts.kind,
                "pid": counts.pid,
                "address": counts.address,
                "operations": {
                    row.operation: {
                        name: value for name, value in msgspec.to_builtins(row).items() if name != "operation"
                    }
                    for row in counts.rows
                },
            }
            for _, counts in sorted(self._reports.values(), key=lambda report: report[1].pid)
        ]


async def describe(tree: NameTree, store: Store, id: FileId, limit_s: float) -> Described:
    """Return the metadata stored with cached bytes; otherwise ask the origin with one HEAD, and store the answer for
    a completely cached file. Raise StaleIdError and the origin's errors."""
    mount, key, entry = tree.locate(id)
    cached = store.index.cached(id)
    stored = None if cached is None else noted(store.volumes, cached)
    if stored is not None:
        return Described(True, stored.metadata, stored.headers, stored.tags)
    try:
        info = await mount.origin.head(key, deadline=Deadline.after(limit_s, patience_s=PATIENCE_S))
    except PathNotFoundError:  # deleted, or not persisted yet by another node
        return Described(known=False)
    if info.version != entry.version:
        return Described(known=False)
    extras = (info.attributes.extras if info.attributes is not None else None) or ObjectMetadata()
    if cached is not None:
        note(store.volumes, cached, extras)
    return Described(True, extras.metadata, extras.headers, extras.tags)
