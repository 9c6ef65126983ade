"""Let cached files that loaders read soon rise to a faster tier."""

from __future__ import annotations

from headrace.base.clock import monotonic_s
from headrace.plan.file_numbers import NO_FILE
from headrace.prefetch.plan_table import PlanTable
from headrace.store.store import Store

FILES_AHEAD, SECONDS_AHEAD = 128, 60.0
"""The next files of a reader that may rise, and how soon they must be needed."""
EACH_S = 1.0


class PlannedRises:
    """Looks at the next files of all planned readers. Belongs to the node's loop."""

    def __init__(self, plans: PlanTable, store: Store) -> None:
        self._plans = plans
        self._store = store
        self._looked_s = 0.0

    def look(self) -> None:
        """Report the files that are read soon; not more often than once a second. Costs nothing with one tier."""
        if not self._store.space.tiered.is_tiered or monotonic_s() - self._looked_s < EACH_S:
            return
        self._looked_s = monotonic_s()
        id_of = self._plans.planned.numbers.id_of
        for reader in self._plans.readers:
            stream = reader.stream
            if stream is None or not reader.is_fetched:
                continue
            for offset, number in enumerate(stream.upcoming(stream.position, FILES_AHEAD)):
                seconds = stream.seconds_until(stream.position + offset)
                if seconds > SECONDS_AHEAD:
                    break
                if number != NO_FILE:
                    self._store.moves.plan_use(id_of(number), seconds)
