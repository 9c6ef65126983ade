"""Walk all files at and below a path, while the listing is still in progress."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable

from headrace.base.errors import HeadraceError
from headrace.base.model import Entry, Kind
from headrace.namespace.listings import Listings
from headrace.store.index import Index

NAMES_AT_ONCE = 256
"""Names that are processed before other tasks on the loop may run."""

Failed = Callable[[str, str], None]
"""Receives the path of a directory that can't be listed, and the reason."""


async def walk(
    listings: Listings, index: Index, top: Entry, *, fresh: bool, failed: Failed
) -> AsyncIterator[tuple[bytes, Entry]]:
    """Yield each file with its path. With `fresh`, list directories whose listings are stale; otherwise walk only the
    names in the index. Report a directory that can't be listed to `failed`, and continue with the others."""
    path = index.path_of(top.id) or b"/" + top.name
    if top.kind is Kind.FILE:
        yield path, top
        return
    pending = [(path, top)]
    count = 0
    while pending:
        path, directory = pending.pop()
        try:
            if fresh:
                await listings.list(directory.id)
        except HeadraceError as error:
            failed(os.fsdecode(path), str(error))
            continue
        above = path.rstrip(b"/")
        for child in index.children(directory.id):
            count += 1
            if count % NAMES_AT_ONCE == 0:
                await asyncio.sleep(0)
            name = above + b"/" + child.name
            if child.kind is Kind.DIRECTORY:
                pending.append((name, child))
            else:
                yield name, child
