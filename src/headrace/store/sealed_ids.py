"""Hold the ids of the cache files that seals need, each once, in eight bytes."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from headrace.base.model import FileId

ID_TYPE = "Q"
"""The type code of an array of ids."""


class SealedIds:
    """The sealed files of a store. A seal in the making holds its ids by a token of its own.

    Any method may be called in any thread, but only one at a time may change the ids of finished seals.
    """

    def __init__(self) -> None:
        self._ids: array[int] = array(ID_TYPE)  # sorted; an assignment replaces what readers see
        self._pending: dict[str, set[int]] = {}

    def __contains__(self, id: FileId) -> bool:
        return _has(self._ids, id) or any(id in ids for ids in [*self._pending.values()])

    def begin(self, token: str) -> set[int]:
        """Return the set of a seal in the making; ids added to it are kept at once."""
        return self._pending.setdefault(token, set())

    def end(self, token: str) -> None:
        """Drop the set of a seal in the making."""
        self._pending.pop(token, None)

    def add(self, ids: Iterable[int]) -> None:
        """Keep the files of a seal."""
        self._ids = _merged(self._ids, ids)

    def replace(self, ids_of_seals: Iterable[Iterable[int]]) -> Iterator[int]:
        """Keep the files of these seals alone; return an iterator of the ids that are no longer kept."""
        ids: array[int] = array(ID_TYPE)
        for more in ids_of_seals:
            ids = _merged(ids, more)
        before, self._ids = self._ids, ids
        return (id for id in before if not _has(ids, id))

    def all(self) -> set[int]:
        """Return every id that some seal holds."""
        return set(self._ids).union(*self._pending.values())


def _merged(ids: array[int], more: Iterable[int]) -> array[int]:
    last, merged = -1, array(ID_TYPE)
    for id in sorted([*ids, *more]):
        if id != last:
            merged.append(id)
        last = id
    return merged


def _has(ids: array[int], id: int) -> bool:
    index = bisect_left(ids, id)
    return index < len(ids) and ids[index] == id
