"""Keep the mounts of lazy seals up: a new layer where its process died, and the view of the whole when all is there."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from headrace.base.errors import HeadraceError, PathNotFoundError
from headrace.cli.render import warn
from headrace.cli.sealed_mounts import SealNode

if TYPE_CHECKING:
    from headrace.cli.state import RunState
    from headrace.seal.catalogue import SealId, SealRecord


AGAIN_AFTER_S_MAX = 8.0
"""A mount that fails is tried again after a second, and after twice the time whenever it fails again."""


def renew_mounts(node: SealNode, record: SealRecord) -> bool:
    """Mount what a seal has now wherever an earlier view of it is mounted. A warning says why a view stays, and then
    False is returned."""
    from headrace.seal.mounted import is_of, serves, source_on_top

    is_done = True
    for place in node.catalogue.places(record.seal):
        source = source_on_top(place.mountpoint)
        if is_of(source, node.catalogue, record.seal) and not serves(source, node.catalogue, record):
            is_done &= node.try_mount(record.seal, place)
    return is_done


class LazyMounts:
    """Looks after the mounts of one node's lazy seals. state: of the command that runs the node."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._known: set[SealId] = set()
        self._lazy: set[SealId] = set()
        self._again_at_s: dict[SealId, float] = {}
        self._failures: dict[SealId, int] = {}

    def look(self) -> None:
        """Renew the mounts that need it. Blocks for the disk, and for the start of a layer."""
        state = self._state
        if os.geteuid() != 0 or not state.cache:
            return
        node = SealNode(state.socket, "/", state.cache, [state], is_running=True)
        seals = set(node.catalogue.seals())
        for seal in sorted((seals - self._known) | self._lazy):
            if time.monotonic() < self._again_at_s.get(seal, 0.0):
                continue
            try:
                record = node.catalogue.record(seal)
                if renew_mounts(node, record):
                    self._failures.pop(seal, None)
                else:
                    failures = self._failures[seal] = self._failures.get(seal, 0) + 1
                    pause_s = min(AGAIN_AFTER_S_MAX, 0.5 * 2.0 ** min(failures, 8))
                    self._again_at_s[seal] = time.monotonic() + pause_s
                (self._lazy.add if record.is_lazy else self._lazy.discard)(seal)
            except PathNotFoundError:
                self._lazy.discard(seal)
            except (HeadraceError, OSError) as error:
                warn(f"the mounts of seal {seal} are not renewed: {error}")
        self._known = seals
