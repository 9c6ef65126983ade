"""Keep the index file from growing: renew the checkpoint before LMDB runs out of pages that it can reuse.

The checkpoint holds a read transaction (index_checkpoint.py), so pages freed since then can't be reused.

LMDB copies each page that it changes. A B+tree of its own records the old pages as free, by the transaction that freed
them. LMDB reuses such a page only if no open read transaction began before that. LMDB's interface does not expose the
tree, so this module reads its pages. Layout: LMDB 0.9 mdb.c, MDB_page, MDB_node, MDB_meta. Bytes only.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

from headrace.store.index_checkpoint import PAGE_BYTES, newest_of

SLACK_PAGES_MIN = 2048
WAIT_PAGES_MIN = 16384
COMMIT_PAGES_MAX = 64
"""Pages that few commits exceed; most use 5 to 10."""
LOOK_COMMITS = 32
"""Commits between two counts of free pages; each count takes 0.1 ms."""

_ROOT = struct.Struct("<Q")
_ROOT_AT = 16 + 24 + 40  # in a meta page: of the tree of free pages
_NO_ROOT = (1 << 64) - 1
_PAGE = struct.Struct("<10xHH")  # flags; where the node pointers end
_POINTERS_AT, _BRANCH, _LEAF = 16, 0x01, 0x02
_NODE = struct.Struct("<HHHH")  # low and high half of a size, or of a page number; flags; size of the key
_BIG = 0x01
_DEPTH_MAX = 32


class Growth:
    """The limits of one data file. It may grow to 2.25 times the live pages, or SLACK_PAGES_MIN beyond them. Beyond
    three times, and WAIT_PAGES_MIN beyond them, the disk does not keep up, and commits wait. docs/decisions/0033."""

    def __init__(self, data_path: str) -> None:
        self._fd = os.open(data_path, os.O_RDONLY | os.O_CLOEXEC)
        self._transaction = -1
        self._pages_max = self._wait_pages = 0
        self._commits = self._look_commits = 0

    def rebase(self, transaction: int, live: int) -> None:
        """Set the limits after a checkpoint of that transaction, from its number of live pages."""
        self._transaction = transaction
        self._pages_max = max(live * 9 // 4, live + SLACK_PAGES_MIN)
        self._wait_pages = max(live * 3, live + WAIT_PAGES_MIN)

    def is_bloated(self, pages: int) -> bool:
        """Return whether a file of that many pages has too many free ones."""
        return self._transaction >= 0 and pages > self._pages_max

    def outruns_disk(self, pages: int) -> bool:
        """Return whether commits must wait for a checkpoint."""
        return pages > self._wait_pages

    def needs_checkpoint(self, pages: int) -> bool:
        """Return after a commit whether few reusable pages are left. The caller keeps others from committing."""
        self._commits += 1
        if not self.is_bloated(pages) or self._commits < self._look_commits:
            return False
        spare = self._pages_max // 4
        enough = spare + LOOK_COMMITS * COMMIT_PAGES_MAX
        surplus = reusable_pages(self._fd, self._transaction, enough) - spare
        self._commits, self._look_commits = 0, max(0, surplus) // COMMIT_PAGES_MAX
        return surplus <= 0

    def close(self) -> None:
        os.close(self._fd)


def reusable_pages(fd: int, end: int, enough: int) -> int:
    """Count the pages that transactions before `end` freed, and stop when there are enough. fd: of the data file. The
    caller keeps others from committing. In a damaged tree only its readable part counts."""
    pages = 0
    try:
        meta = newest_of(os.pread(fd, 2 * PAGE_BYTES, 0))
        root = -1 if meta is None else _ROOT.unpack_from(meta, _ROOT_AT)[0]
        if root in {-1, _NO_ROOT}:
            return 0
        for transaction, count in _records(fd, root, 0):
            if transaction >= end:
                break
            pages += count
            if pages >= enough:
                break
    except (struct.error, OSError):
        return pages
    return pages


def _records(fd: int, number: int, depth: int) -> Iterator[tuple[int, int]]:
    """Yield transactions and the number of pages that each freed; in order."""
    page = os.pread(fd, PAGE_BYTES, number * PAGE_BYTES)
    flags, end = _PAGE.unpack_from(page)
    if depth > _DEPTH_MAX or not flags & (_BRANCH | _LEAF):
        return
    for pointer in range(_POINTERS_AT, end, 2):
        node = int.from_bytes(page[pointer : pointer + 2], "little")
        low, high, node_flags, key_bytes = _NODE.unpack_from(page, node)
        if flags & _BRANCH:
            yield from _records(fd, low | high << 16 | node_flags << 32, depth + 1)
            continue
        data = node + _NODE.size + key_bytes
        count = _ROOT.unpack_from(page, data)[0]
        if node_flags & _BIG:  # the list is on separate pages, after a header
            count = _ROOT.unpack_from(os.pread(fd, 8, count * PAGE_BYTES + _POINTERS_AT))[0]
        yield _ROOT.unpack_from(page, node + _NODE.size)[0], count
