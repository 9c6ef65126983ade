"""Find the files whose time to live is over: a hierarchical timer wheel (Varghese and Lauck 1987) over file ids.

A use of a file does not touch the wheel. When the time of a file comes, the wheel asks for the true time, and moves
the file there if that is later. So the wheel stores no times, and nothing can contradict the caller's.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable

from headrace.base.id_table import IdTable
from headrace.base.model import FileId

ExpiresAt = Callable[[FileId], float | None]
"""Takes a file and returns the second at which it expires, by what is known now; None or infinite: never, or the file
is gone."""

_LEVEL_BITS = 6
_LEVELS = 5
_NEAR_SLOTS = 1 << _LEVEL_BITS


class TimerWheel:
    """The expiry of files, to the second. The caller passes the time, which never decreases.

    A slot of level k spans 64^k seconds. Its files move to level k-1 within the span before it begins, in steps, so
    that no second has to move millions of files. Memory: about 23 bytes a file; its highest use is kept.
    """

    def __init__(self, now_s: float) -> None:
        self.examined_to_s = math.floor(now_s)
        """All files that expire in this second or earlier were examined."""
        self._ids = IdTable()
        # circular lists of nodes; each slot has a node of its own as the head
        self._next = array("I")
        self._previous = array("I")
        self._heads: list[dict[int, int]] = [{} for _ in range(_LEVELS)]  # by level: slot number → head

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, id: FileId) -> bool:
        return self._ids.find(id) is not None

    def set(self, id: FileId, at_s: float) -> None:
        """Set when a file expires, at the earliest; infinite: never. An earlier call for the file is replaced."""
        if math.isinf(at_s):
            self.remove(id)
            return
        node = self._ids.find(id)
        if node is None:
            node = self._extend(self._ids.add(id))
        else:
            self._unlink(node)
        self._link(node, at_s)

    def remove(self, id: FileId) -> None:
        """Forget a file. Unknown ids are no error."""
        node = self._ids.find(id)
        if node is not None:
            self._forget(id, node)

    def due(self, now_s: float, limit: int, expires_at: ExpiresAt) -> list[FileId]:
        """Return files that have expired, and forget them. At most `limit` files are examined.

        Call it again at once while `examined_to_s` is more than a second behind `now_s`.
        """
        expired: list[FileId] = []
        while self.examined_to_s < math.floor(now_s) and limit > 0:
            self._pass_empty_slots(math.floor(now_s))
            second = self.examined_to_s + 1
            for level in range(_LEVELS - 1, 0, -1):
                limit -= self._cascade(level, second >> _LEVEL_BITS * level, limit, expires_at)
            limit -= self._examine(second, limit, now_s, expires_at, expired)
            if limit > 0:
                self.examined_to_s = second
        for level in range(1, _LEVELS):
            if limit > 0:
                limit -= self._cascade(
                    level, (self.examined_to_s >> _LEVEL_BITS * level) + 1, limit, expires_at
                )
        return expired

    def _pass_empty_slots(self, now: int) -> None:
        """Go on to the next slot with files: a clock may be set years ahead."""
        if self._heads[0] or now - self.examined_to_s < _NEAR_SLOTS:
            return
        starts = (min(heads) << _LEVEL_BITS * level for level, heads in enumerate(self._heads) if heads)
        self.examined_to_s = max(self.examined_to_s, min([now - 1, *(start - 1 for start in starts)]))

    def _examine(
        self, second: int, limit: int, now_s: float, expires_at: ExpiresAt, expired: list[FileId]
    ) -> int:
        """Examine the files of a second. Return their number."""
        head = self._heads[0].get(second)
        if head is None:
            return 0
        for count in range(limit):
            node = self._next[head]
            if node == head:
                self._free_head(0, second)
                return count
            id = self._ids.id_of(node)
            at_s = expires_at(id)
            if at_s is not None and now_s < at_s < math.inf:
                self._unlink(node)
                self._link(node, at_s)
                continue
            self._forget(id, node)
            if at_s is not None and at_s <= now_s:
                expired.append(id)
        return limit

    def _cascade(self, level: int, slot: int, limit: int, expires_at: ExpiresAt) -> int:
        """Move the files of a slot to the level below. Return their number."""
        head = self._heads[level].get(slot)
        if head is None:
            return 0
        shift = _LEVEL_BITS * level
        for count in range(limit):
            node = self._next[head]
            if node == head:
                self._free_head(level, slot)
                return count
            id = self._ids.id_of(node)
            at_s = expires_at(id)
            if at_s is None or math.isinf(at_s):
                self._forget(id, node)
                continue
            self._unlink(node)
            # a time within this slot belongs below, or the slot would never be empty
            self._link(node, at_s, level_max=level - 1 if math.ceil(at_s) >> shift == slot else level)
        return limit

    def _link(self, node: int, at_s: float, *, level_max: int = _LEVELS - 1) -> None:
        second = max(math.ceil(at_s), self.examined_to_s + 1)
        ahead, level = second - self.examined_to_s, 0
        while level < level_max and ahead >= _NEAR_SLOTS:
            ahead >>= _LEVEL_BITS
            level += 1
        slot = second >> _LEVEL_BITS * level
        head = self._heads[level].get(slot)
        if head is None:
            head = self._heads[level][slot] = self._extend(self._ids.add_unnamed())
            self._next[head] = self._previous[head] = head
        last = self._previous[head]
        self._next[last] = self._previous[head] = node
        self._next[node], self._previous[node] = head, last

    def _unlink(self, node: int) -> None:
        following, last = self._next[node], self._previous[node]
        self._next[last], self._previous[following] = following, last

    def _forget(self, id: FileId, node: int) -> None:
        self._unlink(node)
        self._ids.remove(id)

    def _free_head(self, level: int, slot: int) -> None:
        self._ids.remove_unnamed(self._heads[level].pop(slot))

    def _extend(self, node: int) -> int:
        if node == len(self._next):
            self._next.append(0)
            self._previous.append(0)
        return node
