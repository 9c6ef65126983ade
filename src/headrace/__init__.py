"""Headrace is a distributed cache between training jobs and object stores, on the NVMe disks of GPU hosts."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

# SIGINT is blocked during this import: it ended the process by SIGSEGV, one time in fifteen, while msgspec read types.
_blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
try:
    from headrace.sdk.cache import connect
finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, _blocked)

if TYPE_CHECKING:
    from headrace.sdk.cache_async import AsyncCache

__all__ = ["__version__", "connect", "connect_async"]
__version__ = "0.1.0"


async def connect_async(
    nodes: str | None = None,
    *,
    cache: str | None = None,
    socket: str | None = None,
    patience_s: float | None = None,
) -> AsyncCache:
    """Connect as `connect` does, for a program with an event loop."""
    from headrace.client.node_client import PATIENCE_S
    from headrace.sdk.cache_async import connect_async

    patience = PATIENCE_S if patience_s is None else patience_s
    return await connect_async(nodes, cache=cache, socket=socket, patience_s=patience)
