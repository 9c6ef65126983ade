"""Files that a loader reads soon rise, as its plan says: those within a minute, and no others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace.base.model import FileId
from headrace.prefetch.planned_rises import PlannedRises


class Stream:
    """Ten batches of one file, 10 s each, from position 2 on. The file at position 4 is unknown."""

    position = 2

    def upcoming(self, start: int, count: int) -> list[int]:
        return [0 if place == 4 else 100 + place for place in range(start, min(12, start + count))]

    def seconds_until(self, position: int) -> float:
        return (position - self.position) * 10.0


def rises(*, is_tiered: bool, is_fetched: bool) -> list[tuple[FileId, float]]:
    planned: list[tuple[FileId, float]] = []
    reader = SimpleNamespace(stream=Stream(), is_fetched=is_fetched)
    learning = SimpleNamespace(stream=None, is_fetched=False)
    numbers = SimpleNamespace(id_of=lambda number: FileId(number * 10))
    plans: Any = SimpleNamespace(readers=[learning, reader], planned=SimpleNamespace(numbers=numbers))
    store: Any = SimpleNamespace(
        space=SimpleNamespace(tiered=SimpleNamespace(is_tiered=is_tiered)),
        moves=SimpleNamespace(plan_use=lambda id, seconds: planned.append((id, seconds))),
    )
    looks = PlannedRises(plans, store)
    looks.look()
    looks.look()  # within the same second
    return planned


def test_what_is_read_within_a_minute_may_rise() -> None:
    assert rises(is_tiered=True, is_fetched=True) == [
        (1020, 0.0), (1030, 10.0), (1050, 30.0), (1060, 40.0), (1070, 50.0), (1080, 60.0)
    ]  # fmt: skip


def test_nothing_rises_by_a_plan_that_is_not_followed_or_in_one_tier() -> None:
    assert rises(is_tiered=True, is_fetched=False) == rises(is_tiered=False, is_fetched=True) == []
