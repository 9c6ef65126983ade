"""Sample a few directories before the mount starts, to see whether opening files will cost more than reading them.

For small files the mode `noopen` is faster (docs/decisions/0003). The sample takes at most `LIMIT_S`, because
`headrace up` waits for it.
"""

from __future__ import annotations

import statistics
import threading
import time
from itertools import islice

from headrace.base.cancel import Cancel
from headrace.base.errors import HeadraceError
from headrace.base.model import ROOT_ID, FileId, Kind
from headrace.fuse.client_protocol import ReadingClient

LIMIT_S = 0.4
FILES_MIN, FILES_MAX = 64, 2000
"""Fewest files that the sample decides by, and the most that it looks at."""
SMALL_BYTES, LARGE_BYTES = 1 << 20, 8 << 20
"""Files are small if half of them have at most SMALL_BYTES and none has more than LARGE_BYTES."""


def small_files(client: ReadingClient) -> str:
    """Return the reason to treat the files as small, or "" when they are not, or when too few were listed in time."""
    deadline_s = time.monotonic() + LIMIT_S
    sizes: list[int] = []
    directories = [ROOT_ID]
    while directories and len(sizes) < FILES_MAX and time.monotonic() < deadline_s:
        directory = directories.pop(0)
        _list(client, directory, deadline_s)
        for entry in islice(client.children(directory), FILES_MAX):
            if entry.kind is Kind.DIRECTORY:
                directories.append(entry.id)
            else:
                sizes.append(entry.version.size_bytes)
    if len(sizes) < FILES_MIN or max(sizes) > LARGE_BYTES:
        return ""
    median = statistics.median_low(sizes)
    if median > SMALL_BYTES:
        return ""
    return f"the files are small: half of {len(sizes)} have at most {median / 1000:.0f} KB"


def _list(client: ReadingClient, directory: FileId, deadline_s: float) -> None:
    """List a directory, at most until the deadline. The node finishes a listing that takes longer; the sample uses
    the children that are in the index by then."""
    cancel = Cancel()
    timer = threading.Timer(max(0.0, deadline_s - time.monotonic()), cancel.set)
    timer.start()
    try:
        client.ensure_listed(directory, cancel)
    except HeadraceError:
        pass  # cancelled, or the origin failed: later reads report that error
    finally:
        timer.cancel()
        timer.join()
        cancel.close()
