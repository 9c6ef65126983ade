"""What the gateways of this host said they have answered: for `headrace status`, and for nothing else."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from headrace.wire.messages import GatewayCounts

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
