"""The tables: every number with its spread, then each goal with what was measured."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from .results import Results

HEADRACE = "headrace-passthrough"
NO_OPEN = "headrace-noopen"


@dataclass(frozen=True, slots=True)
class Goal:
    text: str
    limit: float
    at_least: bool
    measured: float | None
    unit: str = ""

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return "not measured"
        met = (operator.ge if self.at_least else operator.le)(self.measured, self.limit)
        return "met" if met else "missed"


def rows_of(goals: Iterable[Goal]) -> list[dict[str, Any]]:
    """Return the rows as JSON has them."""
    return [{**asdict(goal), "verdict": goal.verdict} for goal in goals]


def best(results: Results, measure: str, names: tuple[str, ...], pick: Callable[..., float]) -> float | None:
    medians = [m for name in names if (m := results.median(measure, name)) is not None]
    return pick(medians) if medians else None


def divide(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None


def goals(r: Results) -> list[Goal]:
    downloaders = ("s5cmd", "obstore")
    listed = []
    for state in ("warm", "dropped"):
        name = f"1 sequential, {state}"
        listed.append(Goal(f"{name}: of plain", 0.97, True, r.ratio(name, HEADRACE, "plain")))
    for state in ("warm", "dropped"):
        name = f"2 processor time, {state}"
        listed.append(Goal(f"{name}: of plain", 1.1, False, r.ratio(name, HEADRACE, "plain")))
    for processes in (1, 2):
        name = f"3 small files, {processes} process{'es' * (processes > 1)}"
        listed.append(Goal(f"{name}: passthrough, of JuiceFS", 4.0, True, r.ratio(name, HEADRACE, "juicefs")))
        listed.append(Goal(f"{name}: noopen, of plain", 0.65, True, r.ratio(name, NO_OPEN, "plain")))
    listed.append(Goal("4 mmap 8 KiB: of plain", 0.95, True, r.ratio("4 mmap 8 KiB", HEADRACE, "plain")))
    for measure in (name for name in r.values if name.startswith("5 cold load")):
        ratio = divide(r.median(measure, HEADRACE), best(r, measure, downloaders, min))
        listed.append(Goal(f"{measure}: time, of best download + load", 1.0, False, ratio))
    for measure in (name for name in r.values if name.startswith("6 first read")):
        ratio = divide(r.median(measure, HEADRACE), best(r, measure, downloaders, max))
        listed.append(Goal(f"{measure}: of best download", 0.9, True, ratio))
    for measure in (name for name in r.values if name.startswith("7 first epoch")):
        epoch = r.ratio(measure, "s5cmd", HEADRACE)
        listed.append(Goal(f"{measure}: s5cmd's time / ours", 0.9, True, epoch))
    for who in ("session", "node"):
        grown = r.median("8 memory grown after the first sample", f"{who} anon")
        listed.append(Goal(f"8 memory of {who}: growth (2 MB is noise)", 2.0, False, grown, "MB"))
    per_entry = r.median("9 index bytes per entry", HEADRACE)
    listed.append(Goal("9 index: an entry", 200, False, per_entry, "B"))
    for who in ("session", "node"):
        resident = r.median("9 memory with all entries", f"{who} rss")
        listed.append(Goal(f"9 memory of {who} with all entries", 300, False, resident, "MB"))
    listed.append(Goal("10 up to ready", 1.5, False, r.median("10 up to ready", HEADRACE), "s"))
    return listed


def number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


CONTENDERS = ("plain", HEADRACE, NO_OPEN, "juicefs", "rclone", "s3fs", "s5cmd", "obstore")


def table_of_contenders(results: Results) -> str:
    """Medians, a column a contender; for the README. Only what more than Headrace was measured for."""
    lines = [f"| median of | unit | {' | '.join(CONTENDERS)} |", "|---|---|" + "---|" * len(CONTENDERS)]
    for measure in results.values:
        medians = [results.median(measure, name) for name in CONTENDERS]
        if sum(value is not None for value in medians) < 2:
            continue
        cells = ["" if value is None else number(value) for value in medians]
        lines.append(f"| {measure} | {results.unit[measure]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table_of_values(results: Results) -> str:
    lines = [
        "| measure | contender | median | min | max | runs | unit | of plain |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for measure, by_name in results.values.items():
        for name, values in by_name.items():
            ratio = results.ratio(measure, name, "plain")
            cells = [number(f(values)) for f in (statistics.median, min, max)]
            of_plain = f"{ratio:.2f}" if ratio is not None else ""
            row = [measure, name, *cells, str(len(values)), results.unit[measure], of_plain]
            lines.append(f"| {' | '.join(row)} |")
    for measure, name, reason in results.not_run:
        lines.append(f"| {measure} | {name} | not run: {reason} | | | | | |")
    return "\n".join([*lines, "", *(f"* {text}" for text in results.notes)])


def table_of_goals(listed: Iterable[Goal], digits: int | None = None) -> str:
    """digits: after the point of what was measured; None: as `number` has it."""
    lines = ["| goal | wanted | measured | verdict |", "|---|---|---|---|"]
    for goal in listed:
        sign = "≥" if goal.at_least else "≤"
        wanted = f"{sign} {number(goal.limit)} {goal.unit}".strip()
        lines.append(f"| {goal.text} | {wanted} | {_measured(goal, digits)} | {goal.verdict} |")
    return "\n".join(lines)


def _measured(goal: Goal, digits: int | None) -> str:
    if goal.measured is None:
        return "–"
    value = number(goal.measured) if digits is None else f"{goal.measured:.{digits}f}"
    return f"{value} {goal.unit}".strip()
