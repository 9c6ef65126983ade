"""Choose the files to evict: policies as pure state machines, by bytes. No I/O and no clock; one policy a group.

LRU: the order of last use. S3-FIFO (Yang and others, SOSP 2023): a small queue for new files, a main queue for files
that were used again, and a list of the ids that left the small queue. A scan through a big data set passes through the
small queue and leaves the main one alone, where LRU would lose everything. Memory: about 200 bytes a file.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from headrace.base.errors import UsageError
from headrace.base.model import FileId

IsPinned = Callable[[FileId], bool]

_USES_MAX = 3


class Policy(Protocol):
    """The order of eviction of one group of files. A repeated insert of an id sets its size. touch and remove ignore
    unknown ids."""

    def insert(self, id: FileId, size_bytes: int) -> None: ...
    def touch(self, id: FileId) -> None: ...
    def remove(self, id: FileId) -> int:
        """Remove a file and return its size."""
        ...

    def victims(self, bytes_needed: int, is_pinned: IsPinned) -> list[FileId]:
        """Return files in the order of their eviction that together have the bytes, or all there are. They stay in the
        policy: call `remove` for each one that was evicted."""
        ...

    def size_of(self, id: FileId) -> int: ...

    def uses_of(self, id: FileId) -> int:
        """Return how many touches of a new file would place it about as well."""
        ...


class Lru:
    def __init__(self) -> None:
        self._files: OrderedDict[FileId, int] = OrderedDict()

    def insert(self, id: FileId, size_bytes: int) -> None:
        self._files[id] = size_bytes
        self._files.move_to_end(id)

    def touch(self, id: FileId) -> None:
        if id in self._files:
            self._files.move_to_end(id)

    def remove(self, id: FileId) -> int:
        return self._files.pop(id, 0)

    def size_of(self, id: FileId) -> int:
        return self._files.get(id, 0)

    def uses_of(self, id: FileId) -> int:
        return 0

    def victims(self, bytes_needed: int, is_pinned: IsPinned) -> list[FileId]:
        victims: list[FileId] = []
        for id, size_bytes in self._files.items():
            if bytes_needed <= 0:
                break
            if not is_pinned(id):
                victims.append(id)
                bytes_needed -= size_bytes
        return victims


class S3Fifo:
    """The S3-FIFO policy. small_share: of all bytes; if new files have more, they are evicted first."""

    def __init__(self, small_share: float = 0.1) -> None:
        self._small_share = small_share
        # id → size << 2 | uses (at most 3)
        self._small: OrderedDict[FileId, int] = OrderedDict()
        self._main: OrderedDict[FileId, int] = OrderedDict()
        self._ghosts: OrderedDict[FileId, None] = OrderedDict()
        self._small_bytes = 0
        self._main_bytes = 0

    def insert(self, id: FileId, size_bytes: int) -> None:
        self.remove(id)
        if id in self._ghosts:
            del self._ghosts[id]
            self._main[id] = size_bytes << 2
            self._main_bytes += size_bytes
        else:
            self._small[id] = size_bytes << 2
            self._small_bytes += size_bytes

    def touch(self, id: FileId) -> None:
        for queue in (self._main, self._small):
            packed = queue.get(id)
            if packed is not None:
                if packed & 3 < _USES_MAX:
                    queue[id] = packed + 1
                return

    def remove(self, id: FileId) -> int:
        packed = self._small.pop(id, None)
        if packed is not None:
            self._small_bytes -= packed >> 2
            return packed >> 2
        packed = self._main.pop(id, 0)
        self._main_bytes -= packed >> 2
        return packed >> 2

    def size_of(self, id: FileId) -> int:
        return self._small.get(id, self._main.get(id, 0)) >> 2

    def uses_of(self, id: FileId) -> int:
        return max(1, self._main[id] & 3) if id in self._main else self._small.get(id, 0) & 3

    def victims(self, bytes_needed: int, is_pinned: IsPinned) -> list[FileId]:
        """Return victims as in Policy. They are put back at the head of their queue, so that one that stays is the next
        victim."""
        small: list[tuple[FileId, int]] = []
        main: list[tuple[FileId, int]] = []
        victims: list[FileId] = []
        pinned_small: list[tuple[FileId, int]] = []
        pinned_main: list[tuple[FileId, int]] = []
        while bytes_needed > 0 and (self._small or self._main):
            all_bytes = self._small_bytes + self._main_bytes
            if self._small and (not self._main or self._small_bytes > self._small_share * all_bytes):
                id, packed = self._pop(small=True)
                if is_pinned(id):
                    pinned_small.append((id, packed))
                elif packed & 3:
                    self._main[id] = packed >> 2 << 2
                    self._main_bytes += packed >> 2
                else:
                    small.append((id, packed))
                    victims.append(id)
                    self._remember(id)
                    bytes_needed -= packed >> 2
                continue
            id, packed = self._pop(small=False)
            if is_pinned(id):
                pinned_main.append((id, packed))
            elif packed & 3:
                self._main[id] = packed - 1
                self._main_bytes += packed >> 2
            else:
                main.append((id, packed))
                victims.append(id)
                bytes_needed -= packed >> 2
        self._put_back(small, main)
        self._put_back(pinned_small, pinned_main)
        return victims

    def _pop(self, *, small: bool) -> tuple[FileId, int]:
        id, packed = (self._small if small else self._main).popitem(last=False)
        if small:
            self._small_bytes -= packed >> 2
        else:
            self._main_bytes -= packed >> 2
        return id, packed

    def _put_back(self, small: list[tuple[FileId, int]], main: list[tuple[FileId, int]]) -> None:
        for id, packed in reversed(small):
            self._small[id] = packed
            self._small.move_to_end(id, last=False)
            self._small_bytes += packed >> 2
        for id, packed in reversed(main):
            self._main[id] = packed
            self._main.move_to_end(id, last=False)
            self._main_bytes += packed >> 2

    def _remember(self, id: FileId) -> None:
        self._ghosts[id] = None
        while len(self._ghosts) > max(64, len(self._main) + len(self._small)):
            self._ghosts.popitem(last=False)


def build_policy(name: str) -> Policy:
    """Return the policy of a name: lru or s3fifo. UsageError for any other."""
    if name == "lru":
        return Lru()
    if name == "s3fifo":
        return S3Fifo()
    raise UsageError(f"eviction policy {name!r}", why="unknown", hint="lru or s3fifo")
