"""Let the node know what a loader of torch reads next: `headrace.plan.watch(loader)`. docs/plan.md is the guide."""

from __future__ import annotations

import os
import sys
from typing import Any

from headrace.base.errors import NodeUnavailableError
from headrace.base.missing_extras import needs_extra
from headrace.client.discovery import find_node
from headrace.hook.loaders import WATCHER, Watcher, patch
from headrace.hook.mounts import mounts_of_process

with needs_extra(__name__):
    from torch.utils.data import DataLoader, dataloader


def is_cached_path(path: str) -> bool:
    """Return whether a path is one of the namespace (`headrace:///…`), or below a mount of this host."""
    return mounts_of_process("").namespace_path(path) is not None


def watch(
    loader: DataLoader[Any],
    *,
    name: str | None = None,
    cache: str | None = None,
    socket: str | None = None,
) -> bool:
    """Report the order of a loader to the node of this host, from its next epoch on. Return False without a node, and
    for batches in a list, whose end can't be noticed.

    A copy of its sampler may run ahead, of whatever package it is; so no sampler of a job of several ranks may wait for
    other ranks in its iteration. name: of the job; the program's by default. cache, socket: as of `headrace.connect`.
    Below `headrace run` this only permits the copy.
    """
    watcher = getattr(dataloader, WATCHER, None)
    if watcher is None:
        try:
            node_socket = find_node(socket=socket, cache=cache)
        except NodeUnavailableError:
            return False
        job = name or os.path.basename(sys.argv[0]) or "job"
        watcher = Watcher(node_socket, job, mounts_of_process(""), chosen_only=True)
        patch(dataloader, watcher)
    return watcher.choose(loader._index_sampler)
