"""`headrace run` with real torch on a real mount: the program is unchanged, and its files are there before it asks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server
from tests.integration.cli.host import Host, wait_until
from tests.integration.plan.hooked import environment_of_run, start_hooked

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(180)]

FILES = 240
TRAINER = Path(__file__).with_name("trainer.py")
ANOTHER_ORDER = "headrace: a loader runs without a plan: its sampler gave another order than its copy\n"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    try:
        for number in range(FILES):
            host.put(f"images/{number % 8}/{number}.bin", 2000 + number)
        yield host
    finally:
        host.close()


def train(
    host: Host, *words: object, plan: bool, folder: Path | None = None, is_executed: bool = False
) -> dict[str, Any]:
    """Run the trainer, with or without the hook, and return what it prints. is_executed: by `headrace run` itself."""
    command = [sys.executable, *map(str, (TRAINER, folder or host.mount / "images", *words))]
    if plan and is_executed:
        done = host.headrace("run", "--name", "job", "--", *command, limit_s=120)
    else:
        environment = environment_of_run(host, "job") if plan else None
        done = fork_server.run_with_torch(
            command, capture_output=True, text=True, timeout=120, env=environment
        )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return {"said": done.stderr, **json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_is_bit_identical(host: Host, workers: int) -> None:
    """Batches, the bytes of all files, and the states of the random generators are the same without the hook and
    without a mount."""
    host.up()
    samplers = "shuffle,replacement,distributed,custom"
    planned = train(host, samplers, workers, plan=True, is_executed=workers > 0)
    plain = train(host, samplers, workers, plan=False, folder=host.truth / "images")
    said = planned.pop("said")
    del plain["said"]
    # the custom sampler and the program draw from the same generators in turn: no copy can know that order
    assert said == ANOTHER_ORDER
    assert planned == plain


@pytest.mark.parametrize("kind", ["known", "learned"])
def test_the_files_are_cached_before_they_are_read(host: Host, kind: str) -> None:
    """A trainer that waits after the first batch of its last epoch finds all of that epoch in the cache."""
    host.up()
    go = host.base / "go"
    words = (sys.executable, TRAINER, host.mount / "images", "shuffle", 2, kind, go)
    trainer = start_hooked(host, words)

    def row() -> dict[str, Any]:
        rows = host.plans("job")
        return rows[0] if rows else {}

    wait_until(
        lambda: row().get("epoch") == 1 and row()["state"] == "planned", limit_s=60, hint=lambda: str(row())
    )
    wait_until(
        lambda: row()["position"] + row()["ahead_samples"] == FILES, limit_s=60, hint=lambda: str(row())
    )
    go.touch()
    assert trainer.wait(60) == 0
    wait_until(lambda: host.json("plan", "show", "job") == [])  # files that it opened may still be predicted


def test_halves_of_a_data_set_are_planned_though_their_loaders_are_new(host: Host) -> None:
    """Both are Subsets of one length. What workers told of each is known in later epochs, with other loaders."""
    host.up()
    go = host.base / "go"
    program = Path(__file__).with_name("halves.py")
    trainer = start_hooked(host, (sys.executable, program, host.mount / "images", go))

    earlier_streams: set[str] = set()

    def planned() -> set[str]:
        """Return the loaders whose files are all in the cache up to the end of their epoch."""
        return {
            row["stream"]
            for row in host.plans("job")
            if row["state"] == "planned" and row["position"] + row["ahead_samples"] == FILES // 2
        }

    for number in range(2):
        wait_until(
            lambda: bool(planned() - earlier_streams),
            limit_s=80,
            hint=lambda: str(host.plans("job")) + trainer.said,
        )
        earlier_streams.update(planned())
        Path(f"{go}.{number}").touch()
    assert trainer.wait(60) == 0


def test_a_cold_data_set_arrives_in_the_order_of_the_plan(host: Host) -> None:
    host.up()
    planned = train(host, "shuffle", 2, "known", plan=True)
    assert len(planned["shuffle"]["batches"]) > 0
    wait_until(lambda: host.status()["cache"]["used_bytes"] >= FILES * 4096)


def test_without_a_node_the_program_runs_all_the_same(host: Host) -> None:
    done = host.headrace("run", "--", sys.executable, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "the program runs without a plan" in done.stderr


def test_a_node_that_dies_is_no_concern_of_the_program(host: Host) -> None:
    """The files are outside the mount, so that only the plan needs the node."""
    up = host.up()
    go = host.base / "go"
    words = (sys.executable, TRAINER, host.truth / "images", "shuffle", 2, "known", go)
    trainer = start_hooked(host, words)
    wait_until(lambda: (host.base / "go.waiting").exists(), limit_s=60)
    host.ok("down", "--all")
    up.wait()
    go.touch()
    assert trainer.wait(60) == 0
    assert "Traceback" not in trainer.said


CHOOSING = """
import headrace.plan, sys, time
from torch.utils.data import DataLoader
from headrace.client.connection import Connection
from headrace.client.discovery import find_node
from headrace.wire.messages import PlanList
from tests.integration.plan.trainer import Files
chosen, other = (DataLoader(Files(sys.argv[1]), batch_size=8, shuffle=True) for _ in range(2))
assert headrace.plan.watch(chosen, name="mine")
next(iter(other))
batches = iter(chosen)
next(batches)
connection = Connection(find_node(), role="cli")
for _ in range(500):
    rows = connection.ask(PlanList()).rows
    if rows and rows[0].position:
        break
    time.sleep(0.02)
print([row.job for row in rows])
"""


def test_a_program_may_choose_a_loader_itself(host: Host) -> None:
    host.up()
    done = fork_server.run_with_torch(
        [sys.executable, "-c", CHOOSING, str(host.mount / "images")],
        capture_output=True,
        text=True,
        timeout=120,
        env=host.environment | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert (done.returncode, done.stdout) == (0, "['mine']\n"), done.stderr


def test_a_program_without_torch_is_left_alone(host: Host, tmp_path: Path) -> None:
    """It has its arguments, its status, its own sitecustomize and its own PYTHONPATH."""
    host.up()
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; sys.from_own_sitecustomize = True\n")
    host.environment["PYTHONPATH"] = f"{own}{os.pathsep}{host.environment.get('PYTHONPATH', '')}"
    script = (
        "import sys; assert sys.from_own_sitecustomize; "
        "assert not [name for name in sys.modules if 'headrace' in name]; sys.exit(int(sys.argv[1]))"
    )
    done = host.headrace("run", "--", sys.executable, "-c", script, "7")
    assert (done.returncode, done.stderr) == (7, "")
    missing = host.headrace("run", "--", "/no/such/program")
    assert missing.returncode == 127
    assert "no such program" in missing.stderr
