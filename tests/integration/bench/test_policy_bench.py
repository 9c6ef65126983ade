"""The simulation of policies at a small size: what is counted meets its goals. Times and memory do not matter here."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

COMPARE = Path(__file__).resolve().parents[3] / "bench" / "compare"

pytestmark = pytest.mark.timeout(110)


@pytest.mark.parametrize(
    ("module", "case", "count"),
    [
        ("cases", "tenants", 4),
        ("cases", "admission", 8),
        ("cases", "curve", 3),
        ("limits", "limit", 1),
        ("expiry", "expiry", 3),
        ("moves", "hits", 2),
        ("moves", "moves", 3),
    ],
)
def test_goals_are_met(
    module: str, case: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(COMPARE))
    cases: Any = importlib.import_module("policybench.cases")
    goals: Any = importlib.import_module("policybench.goals")
    results: Any = importlib.import_module("nodebench.results").Results()
    bench = cases.Bench(SimpleNamespace(root=str(tmp_path)), results, 0.02, 1)
    getattr(importlib.import_module(f"policybench.{module}"), case)(bench)
    verdicts = {goal.text: goal.verdict for goal in goals.goals(results)}
    measured = {text: verdict for text, verdict in verdicts.items() if verdict != "not measured"}
    assert len(measured) == count
    counted = {
        text: verdict
        for text, verdict in measured.items()
        if "memory" not in text and "throughput" not in text
    }
    assert set(counted.values()) == {"met"}, counted
    assert results.median("moved between the tiers", "headrace") != 0


@pytest.mark.fuse
@pytest.mark.server("etcd")
@pytest.mark.server("seaweedfs")
@pytest.mark.parametrize(
    ("module", "text"), [("events", "seen by event"), ("levels", "bytes over the link, of the data set")]
)
def test_goals_of_real_nodes_are_met(
    module: str, text: str, monkeypatch: pytest.MonkeyPatch, needs_fuse: None
) -> None:
    monkeypatch.syspath_prepend(str(COMPARE))
    cases: Any = importlib.import_module("policybench.cases")
    goals: Any = importlib.import_module("policybench.goals")
    results: Any = importlib.import_module("nodebench.results").Results()
    machine: Any = importlib.import_module("nodebench.machine")
    place = machine.Workplace.create(None)  # in a short path, as below it are those of sockets
    with place.undo:
        getattr(importlib.import_module(f"policybench.{module}"), module)(
            cases.Bench(place, results, 0.02, 1)
        )
    (goal,) = (goal for goal in goals.goals(results) if text in goal.text)
    assert goal.verdict == "met", results.values
