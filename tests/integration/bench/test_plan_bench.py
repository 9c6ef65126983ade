"""The benchmark of plans at a small size: origin bytes as Belady's, less with substitution, the lowest peak."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

COMPARE = Path(__file__).resolve().parents[3] / "bench" / "compare"

pytestmark = pytest.mark.timeout(110)


def simulate(folder: Path, patch: pytest.MonkeyPatch, *names: str, scale: float = 0.05) -> dict[str, str]:
    """Return the verdicts on the goals of some cases, by the goals' texts."""
    patch.syspath_prepend(str(COMPARE))
    cases: Any = importlib.import_module("planbench.cases")
    goals: Any = importlib.import_module("planbench.goals")
    results: Any = importlib.import_module("nodebench.results").Results()
    bench = cases.Bench(SimpleNamespace(root=str(folder)), results, scale, 1)
    for name in names:
        module = importlib.import_module(f"planbench.{name}") if name == "extents" else cases
        getattr(module, name)(bench)
    verdicts = {goal.text: goal.verdict for goal in goals.goals(results)}
    return {text: verdict for text, verdict in verdicts.items() if verdict != "not measured"}


def test_hits_of_one_job_and_origin_bytes_of_four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = simulate(tmp_path, monkeypatch, "single", "joint", "substitution", scale=0.02)
    has_libcachesim = importlib.util.find_spec("libcachesim") is not None  # Linux on x86_64 has wheels
    assert len(verdicts) == 3 + has_libcachesim
    assert set(verdicts.values()) == {"met"}, verdicts


def test_plans_of_parts_of_files_take_few_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = simulate(tmp_path, monkeypatch, "extents")
    assert len(verdicts) == 4
    assert set(verdicts.values()) == {"met"}, verdicts


def test_a_fetcher_keeps_to_the_peak_of_the_taut_string(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = simulate(tmp_path, monkeypatch, "peak")
    assert list(verdicts.values()) == ["met"]
