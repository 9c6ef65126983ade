"""Every file at and below a path, with its path, while the listing goes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable

from headrace.base.errors import HeadraceError
from headrace.base.model import Entry, Kind
from headrace.namespace.tree import Namespace
from headrace.store.index import Index

NAMES_AT_ONCE = 256
"""Names looked at before others on the loop have their turn."""

Failed = Callable[[str, str], None]
"""(path, reason)"""


async def walk(
    namespace: Namespace, index: Index, top: Entry, *, fresh: bool, failed: Failed
) -> AsyncIterator[tuple[bytes, Entry]]:
    """fresh: folders are listed where their listings are stale; else only what the index knows is walked. A folder
    that can't be listed is told to `failed`, and the others go on."""
    path = index.path_of(top.id) or b"/" + top.name
    if top.kind is Kind.FILE:
        yield path, top
        return
    pending = [(path, top)]
    seen = 0
    while pending:
        path, directory = pending.pop()
        try:
            if fresh:
                await namespace.list(directory.id)
        except HeadraceError as error:
            failed(os.fsdecode(path), str(error))
            continue
        above = path.rstrip(b"/")
        for child in index.children(directory.id):
            seen += 1
            if seen % NAMES_AT_ONCE == 0:
                await asyncio.sleep(0)
            name = above + b"/" + child.name
            if child.kind is Kind.DIRECTORY:
                pending.append((name, child))
            else:
                yield name, child
