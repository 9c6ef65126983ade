"""Looks at a few directories before the mount begins: are the files so small that opening them is what costs?

Then the mode without open is the better one (docs/decisions/0003). Bounded in time: `headrace up` waits for it.
"""

from __future__ import annotations

import statistics
import threading
import time
from itertools import islice

from headrace.base.errors import HeadraceError
from headrace.base.model import ROOT_ID, FileId, Kind
from headrace.fuse.client_protocol import ReadingClient
from headrace.sdk.cancel import Cancel

LIMIT_S = 0.4
FILES_MIN, FILES_MAX = 64, 2000
SMALL_BYTES, LARGE_BYTES = 1 << 20, 8 << 20


def small_files(client: ReadingClient) -> str:
    """Why the files look small; "" when they don't, or when too little was seen in time."""
    until_s = time.monotonic() + LIMIT_S
    sizes: list[int] = []
    folders = [ROOT_ID]
    while folders and len(sizes) < FILES_MAX and time.monotonic() < until_s:
        folder = folders.pop(0)
        _list(client, folder, until_s)
        for entry in islice(client.children(folder), FILES_MAX):
            if entry.kind is Kind.DIRECTORY:
                folders.append(entry.id)
            else:
                sizes.append(entry.version.size_bytes)
    if len(sizes) < FILES_MIN or max(sizes) > LARGE_BYTES:
        return ""
    median = statistics.median_low(sizes)
    if median > SMALL_BYTES:
        return ""
    return f"the files are small: half of {len(sizes)} have at most {median / 1000:.0f} KB"


def _list(client: ReadingClient, folder: FileId, until_s: float) -> None:
    """A listing that takes longer goes on in the node; what it has found by then is looked at."""
    cancel = Cancel()
    timer = threading.Timer(max(0.0, until_s - time.monotonic()), cancel.set)
    timer.start()
    try:
        client.ensure_listed(folder, cancel)
    except HeadraceError:
        pass  # broken off, or the origin failed: reads will say so
    finally:
        timer.cancel()
        timer.join()
        cancel.close()
