"""Hold what all plans of a node say about its files: their numbers, their order, and which to evict.

Threads: the node's loop changes the plans, and any thread that needs space asks for victims. Each method takes the
lock; those who work on `orders` and `numbers` themselves take it, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from headrace.base.model import FileId
from headrace.plan.eviction import PlannedVictims
from headrace.plan.file_numbers import NO_FILE, FileNumbers
from headrace.plan.orders import MergedOrders

VICTIMS_OF_A_FETCH = 1024
"""Most planned files that go for one that is fetched ahead: a search for more would hold up the loop."""
CATCH_UP_LOOKUPS = 1000
SizeOf = Callable[[FileId], int]
"""Takes a file id and returns its bytes on one volume; 0: it is not there."""
IsKept = Callable[[FileId], bool]
"""Takes a file id and returns whether the file must not be evicted now."""


class PlannedFiles:
    """The files of all plans of a node."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.orders = MergedOrders()
        self.numbers = FileNumbers()
        self._victims: dict[int, PlannedVictims] = {}
        self._sizes: dict[int, SizeOf] = {}

    def reset(self) -> None:
        """Forget all files, when no plan is left."""
        with self.lock:
            self.orders = MergedOrders()
            self.numbers = FileNumbers()
            for volume in self._sizes:
                self._victims[volume] = self._new_victims(volume)

    def add_volume(self, volume: int, size_of: SizeOf) -> None:
        """Add a volume, by its number. One below 0 is of files that go before all others."""
        with self.lock:
            self._sizes[volume] = size_of
            self._victims[volume] = self._new_victims(volume)

    def choose(self, volume: int, ids: Sequence[FileId], is_kept: IsKept) -> list[FileId]:
        """Replace the victims of a volume's policy that plans know by those that are needed last.

        So the policy decides how much the planned files lose, as it does without plans, and the plans decide which.
        """
        with self.lock:
            if not len(self.numbers):
                return list(ids)
            known = {id for id in ids if self._is_planned(id)}
            if not known:
                return list(ids)
            size_of = self._sizes[volume]
            bytes_needed = sum(map(size_of, known))
            numbers = self._victims[volume].victims(
                bytes_needed, lambda number: is_kept(self.numbers.id_of(number))
            )
            chosen = dict.fromkeys(map(self.numbers.id_of, numbers))
            bytes_needed -= sum(map(size_of, chosen))
            for id in ids:  # files that the victims don't know yet
                if id in known and id not in chosen and bytes_needed > 0:
                    chosen[id] = None
                    bytes_needed -= size_of(id)
            return [*(id for id in ids if id not in known and id not in chosen), *chosen]

    def note_resident(self, id: FileId) -> None:
        """Note a file that is complete in the cache now."""
        if not len(self.numbers):
            return
        with self.lock:
            number = self.numbers.number_of(id)
            for victims in self._victims.values() if number else ():
                victims.insert(number)

    def may_admit(
        self, number: int, size_bytes: int, *, deadline_s: float, is_caught_up: bool = True
    ) -> bool:
        """Return whether a file may be prefetched into a full cache: nothing that is needed sooner goes for it, nor
        very many files. deadline_s: of an extent; that of a file is its soonest next use. is_caught_up: the last
        `catch_up` returned True. Before that, the victims that are known must be enough."""
        with self.lock:
            count_max = max(1, VICTIMS_OF_A_FETCH // max(1, len(self.orders.streams)))
            is_extent = self.numbers.extent_of(number) is not None

            def admits(victims: PlannedVictims, *, must_suffice: bool) -> bool:
                return victims.may_admit(
                    number,
                    size_bytes,
                    deadline_s=deadline_s if is_extent else None,
                    count_max=count_max,
                    must_suffice=must_suffice,
                )

            first = [victims for volume, victims in self._victims.items() if volume < 0]
            if first and all(admits(victims, must_suffice=True) for victims in first):
                return True
            return all(admits(victims, must_suffice=not is_caught_up) for victims in self._victims.values())

    def catch_up(self) -> bool:
        """Follow the changes of the plans a step, of a few milliseconds. Return whether all is done."""
        with self.lock:
            count = max(16, CATCH_UP_LOOKUPS // max(1, len(self.orders.streams)))
            results = [victims.catch_up(count) for victims in self._victims.values()]
            return all(results)

    def _is_planned(self, id: FileId) -> bool:
        number = self.numbers.number_of(id)
        return number != NO_FILE and self.orders.knows(number)

    def _new_victims(self, volume: int) -> PlannedVictims:
        """Return victims that are whole files: the policy decides about those that are read in extents."""
        numbers, size_of = self.numbers, self._sizes[volume]

        def size_of_number(number: int) -> int:
            return 0 if numbers.extent_of(number) is not None else size_of(numbers.id_of(number))

        return PlannedVictims(self.orders, size_of_number)
