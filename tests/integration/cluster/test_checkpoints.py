"""Checkpoints that are saved in mode back:2, through a mount or at headrace://, by a node that dies right after:
another one restores them from its copies, before anything is at the origin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.checkpoint import PosixStorage, load, steps, verify
from tests.fork_server import ForkingPopen
from tests.integration.cli.host import Host
from tests.integration.cluster.cluster_fixture import replica_names
from tests.integration.persist.conftest import wait_until
from tests.unit.checkpoint.states import same, state_of

from .conftest import UNREACHABLE, MakeCluster

pytestmark = pytest.mark.timeout(120)

NEVER_S = 600
REPOSITORY = Path(__file__).resolve().parents[3]
SAVE = """
import sys
import numpy as np
from headrace.checkpoint import Retention, SaveOptions, Saver
from tests.unit.checkpoint.states import state_of
options = SaveOptions(chunk_bytes=65536, slot_bytes=1 << 20, budget_bytes=64 << 20, retention=Retention(last=2))
with Saver(sys.argv[1], options=options) as saver:
    for step in range(1, 4):
        saver.save({**state_of(5, step, 0), "large": np.arange(1_500_000) * step}, step)
        saver.wait()
    print("acknowledged", flush=True)
    sys.stdin.readline()
"""
RESTORE = """
import json, sys
import numpy as np
from headrace.checkpoint import Saver, load
from tests.unit.checkpoint.states import same, state_of
result = {}
for step in (2, 3):
    large = np.arange(1_500_000) * step
    result[step] = same(load(sys.argv[1], step), {**state_of(5, step, 0), "large": large})
if len(sys.argv) > 2:
    with Saver(sys.argv[1]) as saver:
        saver.save(state_of(5, 4, 0), 4)
    result[4] = same(load(sys.argv[1]), state_of(5, 4, 0))
print(json.dumps(result))
"""


def started(host: Host, code: str, *words: object) -> subprocess.Popen[str]:
    return ForkingPopen(
        [sys.executable, "-c", code, *map(str, words)],
        env={
            **host.environment,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def told(host: Host, code: str, *words: object) -> dict[str, bool]:
    process = started(host, code, *words)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    answers: dict[str, bool] = json.loads(out)
    return answers


@pytest.mark.expected_warnings(*UNREACHABLE)
@pytest.mark.parametrize(("door", "take_over_s"), [("mount", 8), ("headrace", NEVER_S)])
def test_a_checkpoint_outlives_the_node_that_saved_it(
    make_cluster: MakeCluster, door: str, take_over_s: int
) -> None:
    cluster = make_cluster(write="back:2", persist_delay_s=NEVER_S, take_over_s=take_over_s)
    cluster.start(3)
    writer, *others = cluster.hosts

    def place(host: Host) -> str:
        return f"{host.mount}/runs/7" if door == "mount" else "headrace:///runs/7"

    trainer = started(writer, SAVE, place(writer))
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "acknowledged\n"
    writer.kill_all()
    trainer.kill()
    trainer.wait()
    assert not (cluster.truth / "runs").exists()
    for host in others if take_over_s == NEVER_S else others[:1]:
        assert told(host, RESTORE, place(host)) == {"2": True, "3": True}
    assert not (cluster.truth / "runs").exists()  # so they came from the copies
    if take_over_s == NEVER_S:
        return
    there = PosixStorage(str(cluster.truth / "runs/7"))
    wait_until(lambda: (cluster.truth / "runs/7").exists() and steps(there) == [2, 3], 60.0)
    wait_until(lambda: not any(replica_names(host) for host in others), 60.0)
    for step in (2, 3):
        verify(there, step)
        assert same(load(there, step)["model"], state_of(5, step, 0)["model"])
    assert told(others[0], RESTORE, place(others[0]), "and go on") == {"2": True, "3": True, "4": True}
    writer.close()
