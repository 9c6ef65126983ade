"""Hold the ids of the cache files that seals need, in eight bytes each. The catalogue of seals has them durably."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable

from headrace.base.model import FileId

ID_TYPE = "Q"
"""The type code of an array of ids."""


class SealedIds:
    """The sealed files of a store. A seal in the making holds its ids by a token of its own.

    Every method may be called in any thread: an assignment replaces what readers see.
    """

    def __init__(self) -> None:
        self._by_seal: dict[str, array[int]] = {}
        self._pending: dict[str, set[int]] = {}

    def __contains__(self, id: FileId) -> bool:
        return any(id in ids for ids in [*self._pending.values()]) or any(
            _has(ids, id) for ids in [*self._by_seal.values()]
        )

    def begin(self, seal: str) -> set[int]:
        """Return the set of a seal in the making; ids added to it are kept at once."""
        return self._pending.setdefault(seal, set())

    def end(self, seal: str) -> None:
        """Drop the set of a seal in the making."""
        self._pending.pop(seal, None)

    def put(self, seal: str, ids: Iterable[int]) -> None:
        """Keep the files of a seal."""
        self._by_seal[seal] = array(ID_TYPE, sorted(ids))

    def drop(self, seal: str) -> array[int]:
        """Forget a seal, and return its ids."""
        return self._by_seal.pop(seal, array(ID_TYPE))

    def all(self) -> set[int]:
        """Return every id that some seal holds."""
        return {id for ids in [*self._by_seal.values(), *self._pending.values()] for id in ids}


def _has(ids: array[int], id: int) -> bool:
    place = bisect_left(ids, id)
    return place < len(ids) and ids[place] == id
