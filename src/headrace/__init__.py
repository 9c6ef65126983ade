"""Headrace is a distributed cache between training jobs and object stores, on the NVMe disks of GPU hosts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.sdk.cache import connect
    from headrace.sdk.cache_async import AsyncCache

__all__ = ["__version__", "connect", "connect_async"]
__version__ = "0.1.0"
_PACKAGES = ("checkpoint", "diagnose", "plan")
"""Packages that programs use as attributes after `import headrace`, such as `headrace.plan.watch`."""


def __getattr__(name: str) -> Any:
    """Import `connect` and packages at their first use: the processes of a host start in half the time without them."""
    if name not in ("connect", *_PACKAGES):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headrace.base.uninterrupted import uninterrupted

    with uninterrupted():
        if name in _PACKAGES:
            return importlib.import_module(f"{__name__}.{name}")
        from headrace.sdk.cache import connect
    globals()[name] = connect
    return connect


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
