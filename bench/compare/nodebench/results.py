"""Holds what was measured, and who could not be measured and why."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Results:
    unit: dict[str, str] = field(default_factory=dict)
    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    not_run: list[tuple[str, str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, measure: str, contender: str, value: float, *, unit: str) -> None:
        self.unit[measure] = unit
        self.values.setdefault(measure, {}).setdefault(contender, []).append(value)

    def skip(self, measure: str, contender: str, reason: str) -> None:
        if (measure, contender, reason) not in self.not_run:
            self.not_run.append((measure, contender, reason))

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def median(self, measure: str, contender: str) -> float | None:
        values = self.values.get(measure, {}).get(contender)
        return statistics.median(values) if values else None

    def ratio(self, measure: str, over: str, under: str) -> float | None:
        upper, lower = self.median(measure, over), self.median(measure, under)
        return upper / lower if upper is not None and lower else None

    def as_json(self) -> dict[str, Any]:
        measures = {
            measure: {
                "unit": self.unit[measure],
                "contenders": {
                    name: {"median": statistics.median(v), "min": min(v), "max": max(v), "runs": v}
                    for name, v in by_name.items()
                },
            }
            for measure, by_name in self.values.items()
        }
        skipped = [{"measure": m, "contender": c, "reason": r} for m, c, r in self.not_run]
        return {"measures": measures, "not_run": skipped, "notes": self.notes}
