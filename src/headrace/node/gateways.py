"""What the node does for the gateways of its host alone: what they have answered, for `headrace status`; and what an
origin tells of an object beside its bytes."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from headrace.base.deadline import Deadline
from headrace.base.errors import PathNotFoundError
from headrace.base.model import FileId, ObjectMetadata
from headrace.namespace.tree import Namespace
from headrace.origin.retry import PATIENCE_S
from headrace.store.object_metadata import note, noted
from headrace.store.store import Store
from headrace.wire.messages import Described, GatewayCounts

SILENT_S_MAX = 15.0
"""One that says nothing for so long has ended."""


class Gateways:
    def __init__(self) -> None:
        self._heard: dict[int, tuple[float, GatewayCounts]] = {}

    def heard(self, told: GatewayCounts) -> None:
        self._heard[told.pid] = time.monotonic(), told

    def status(self) -> list[dict[str, Any]]:
        now_s = time.monotonic()
        self._heard = {pid: one for pid, one in self._heard.items() if now_s - one[0] < SILENT_S_MAX}
        return [
            {
                "kind": told.kind,
                "pid": told.pid,
                "address": told.address,
                "operations": {
                    row.operation: {
                        name: value for name, value in msgspec.to_builtins(row).items() if name != "operation"
                    }
                    for row in told.rows
                },
            }
            for _, told in sorted(self._heard.values(), key=lambda one: one[1].pid)
        ]


async def describe(namespace: Namespace, store: Store, id: FileId, limit_s: float) -> Described:
    """What came with the bytes that are cached; else one HEAD at the origin, which is noted where all bytes are.
    StaleIdError, and the origin's errors."""
    mount, key, entry = namespace.locate(id)
    cached = store.index.cached(id)
    told = None if cached is None else noted(store.volumes, cached)
    if told is not None:
        return Described(True, told.metadata, told.headers, told.tags)
    try:
        info = await mount.origin.head(key, deadline=Deadline.after(limit_s, patience_s=PATIENCE_S))
    except PathNotFoundError:  # gone, or another node has not persisted it yet
        return Described(known=False)
    if info.version != entry.version:
        return Described(known=False)
    extras = (info.attributes.extras if info.attributes is not None else None) or ObjectMetadata()
    if cached is not None:
        note(store.volumes, cached, extras)
    return Described(True, extras.metadata, extras.headers, extras.tags)
