"""The benchmark of plans at a small size: origin bytes as Belady's, less with substitution, the lowest peak; a job on
real nodes."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

COMPARE = Path(__file__).resolve().parents[3] / "bench" / "compare"

pytestmark = pytest.mark.timeout(110)


def simulate(folder: Path, patch: pytest.MonkeyPatch, *names: str) -> dict[str, str]:
    """Return the verdicts on the goals of some cases, by the goals' texts."""
    patch.syspath_prepend(str(COMPARE))
    cases: Any = importlib.import_module("planbench.cases")
    goals: Any = importlib.import_module("planbench.goals")
    results: Any = importlib.import_module("nodebench.results").Results()
    bench = cases.Bench(SimpleNamespace(root=str(folder)), results, 0.05, 1)
    for name in names:
        module = importlib.import_module(f"planbench.{name}") if name == "extents" else cases
        getattr(module, name)(bench)
    verdicts = {goal.text: goal.verdict for goal in goals.goals(results)}
    return {text: verdict for text, verdict in verdicts.items() if verdict != "not measured"}


def test_hits_of_one_job_and_origin_bytes_of_four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = simulate(tmp_path, monkeypatch, "single", "joint", "substitution")
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


@pytest.mark.fuse
@pytest.mark.server("etcd")
@pytest.mark.server("seaweedfs")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("contender", ["plan", "no plan"])
def test_a_job_on_real_nodes(contender: str, monkeypatch: pytest.MonkeyPatch, needs_fuse: None) -> None:
    """The machine decides how early files come, so only what must hold on each is tested. Bytes are right, a plan is
    followed, and without one no reader's own disk helps in a cold epoch."""
    monkeypatch.syspath_prepend(str(COMPARE))
    nodes: Any = importlib.import_module("planbench.nodes")
    cases: Any = importlib.import_module("planbench.cases")
    results: Any = importlib.import_module("nodebench.results").Results()
    place: Any = importlib.import_module("nodebench.machine").Workplace.create(
        None
    )  # a short path, for sockets
    sizes = {"NODES": 2, "FILES": 64, "EPOCHS": 2, "STEP_S": 0.2, "CONTENDERS": (contender,)}
    for name, value in sizes.items():
        monkeypatch.setattr(nodes, name, value)
    with place.undo:
        nodes.nodes(cases.Bench(place, results, 1.0, 1))
    assert results.not_run == []
    assert max(results.values[nodes.WRONG][contender]) == 0
    assert (results.median(nodes.PLANNED, contender) > 0) == (contender == "plan")
    own = results.median(f"{nodes.OWN}: epoch 1", contender)
    assert own == 0 if contender == "no plan" else own <= 1
    origin = results.median(f"{nodes.ORIGIN}: {nodes.ALL_EPOCHS}", contender)
    assert results.median(f"{nodes.NETWORK}: {nodes.ALL_EPOCHS}", contender) > origin >= 1
