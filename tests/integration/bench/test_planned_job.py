"""The benchmark's job with a plan and without one, on two real nodes at a small size.

All processes are forks, the ranks of the server that has imported torch. `headrace run` says what environment a rank
below it has; test_run sees it start programs itself.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import fork_server
from tests.fork_server import TorchPopen, forking

COMPARE = Path(__file__).resolve().parents[3] / "bench" / "compare"

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.server("etcd"),
    pytest.mark.server("seaweedfs"),
    pytest.mark.timeout(300),
]


def start_rank(words: Sequence[str], *, env: Mapping[str, str], **options: Any) -> TorchPopen[str]:
    """Start a rank as the benchmark does, `headrace run ... -- python RANK ...` or without the first part."""
    place = words.index("--") + 1 if "--" in words else 0
    if place:
        said = fork_server.run(
            [*words[:place], "env", "--null"], env=env, capture_output=True, text=True, timeout=60
        )
        assert said.returncode == 0, said.stderr
        pairs = (pair.partition("=") for pair in said.stdout.split("\0") if pair)
        env = {name: value for name, _, value in pairs}
    return TorchPopen([sys.executable, *words[place + 1 :]], env=env, **options)


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
    monkeypatch.setattr(nodes, "subprocess", SimpleNamespace(Popen=start_rank, PIPE=subprocess.PIPE))
    with forking(), place.undo:
        nodes.nodes(cases.Bench(place, results, 1.0, 1))
    assert results.not_run == []
    assert max(results.values[nodes.WRONG][contender]) == 0
    assert (results.median(nodes.PLANNED, contender) > 0) == (contender == "plan")
    own = results.median(f"{nodes.OWN}: epoch 1", contender)
    assert own == 0 if contender == "no plan" else own <= 1
    origin = results.median(f"{nodes.ORIGIN}: {nodes.ALL_EPOCHS}", contender)
    assert results.median(f"{nodes.NETWORK}: {nodes.ALL_EPOCHS}", contender) > origin >= 1
