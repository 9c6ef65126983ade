"""The simulation of policies at a small size: what is counted meets its goals. Times and memory do not matter here."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.store.store import Store
from tests.fork_server import forking
from tests.integration.cli.host import wait_until

COMPARE = Path(__file__).resolve().parents[3] / "bench" / "compare"

pytestmark = pytest.mark.timeout(110)


def shorten(patch: pytest.MonkeyPatch, root: str) -> None:
    """Do once what the benchmark repeats for steady figures, with fewer files. root: where its mounts lie."""
    moves: Any = importlib.import_module("policybench.moves")
    levels: Any = importlib.import_module("policybench.levels")
    expiry: Any = importlib.import_module("policybench.expiry")
    read, times_s = moves.read, iter((0.1, 0.5, moves.WINDOW_S_MIN))
    # readers take all processors as long as they read; only beside moves is their time needed
    patch.setattr(moves, "read", lambda root, seconds: read(root, seconds=next(times_s)))
    patch.setattr(moves, "moving", partial(moving_at_least_once, moves.moving))
    patch.setattr(levels, "WARM_ROUNDS", 1)
    patch.setattr(levels, "drop_page_cache", partial(drop_pages_of_mounts, root))  # not those of all tests
    # as many files as are examined at once in the same proportion as in the benchmark
    patch.setattr(expiry, "FILES", expiry.FILES // 4)
    patch.setattr(expiry, "EXAMINED_MAX", 100)


@contextmanager
def moving_at_least_once(moving: Any, store: Store, *arguments: Any) -> Iterator[None]:
    """Move files as `moving` does, until one was moved: beside other tests that may take longer than the readers."""
    with moving(store, *arguments):
        yield
        wait_until(lambda: store.moves.counts.bytes_moved > 0)


def drop_pages_of_mounts(root: str) -> None:
    """Let the next reads of all files of the mounts below a directory ask their sessions or cache files."""
    mounts = list(Path(root).glob("*-mount"))
    assert mounts
    for path in (path for mount in mounts for path in mount.rglob("*") if path.is_file()):
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


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
    shorten(monkeypatch, str(tmp_path))
    bench = cases.Bench(SimpleNamespace(root=str(tmp_path)), results, 0.02, 1)
    with forking():
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
    shorten(monkeypatch, place.root)
    with forking(), place.undo:
        getattr(importlib.import_module(f"policybench.{module}"), module)(
            cases.Bench(place, results, 0.02, 1)
        )
    (goal,) = (goal for goal in goals.goals(results) if text in goal.text)
    assert goal.verdict == "met", results.values
