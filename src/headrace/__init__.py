"""Headrace: a distributed cache that keeps GPUs busy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.sdk.cache import Cache
    from headrace.sdk.cache_async import AsyncCache

__version__ = "0.1.0"


def connect(
    nodes: str | None = None,
    *,
    cache: str | None = None,
    socket: str | None = None,
    patience_s: float | None = None,
) -> Cache:
    """The node of this host, or nodes of others, for a program: docs/sdk.md. Arguments as of
    `headrace.sdk.cache.connect`."""
    # not before it is wanted: `import headrace` costs nothing
    from headrace.sdk.cache import connect
    from headrace.sdk.client import PATIENCE_S

    patience = PATIENCE_S if patience_s is None else patience_s
    return connect(nodes, cache=cache, socket=socket, patience_s=patience)


async def connect_async(
    nodes: str | None = None,
    *,
    cache: str | None = None,
    socket: str | None = None,
    patience_s: float | None = None,
) -> AsyncCache:
    """As connect, for a program with an event loop."""
    from headrace.sdk.cache_async import connect_async
    from headrace.sdk.client import PATIENCE_S

    patience = PATIENCE_S if patience_s is None else patience_s
    return await connect_async(nodes, cache=cache, socket=socket, patience_s=patience)
