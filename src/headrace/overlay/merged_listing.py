"""Merge the listings of the upper layer and of the index into one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.base.model import Entry


def merge_listing(
    above: Iterable[tuple[bytes, bool]], below: Iterator[Entry]
) -> Iterator[tuple[bytes, Entry | None]]:
    """Yield the visible names of a directory in byte order, with the entry of those that only the index has. above:
    rows of `MergedTree.names`; below: entries of `Lower.children`."""
    rows = iter(above)
    row, child = next(rows, None), next(below, None)
    while row is not None or child is not None:
        if child is None or (row is not None and row[0] <= child.name):
            assert row is not None
            if child is not None and child.name == row[0]:
                child = next(below, None)
            if row[1]:
                yield row[0], None
            row = next(rows, None)
        else:
            yield child.name, child
            child = next(below, None)
