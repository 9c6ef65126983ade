"""`headrace run` before torchrun and `accelerate launch`: ranks read and compute the same, and end as without it.

Each launch with the hook is real, and takes seconds to import torch in each process. What it is compared with is not:
ranks that are forks, and launchers that are forks and start ranks without torch.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.testing.servers import free_ports
from tests.fork_server import TorchPopen
from tests.integration.cli.host import Host, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(420)]

FILES = 80
LAUNCHED_WITHIN_S = 200
ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("launched.py")
LAUNCHERS = {
    "torch": ["torch.distributed.run", "--standalone", "--nproc_per_node"],
    "accelerate": [
        *("accelerate.commands.launch", "--cpu", "--num_machines", "1", "--mixed_precision", "no"),
        *("--dynamo_backend", "no", "--num_processes"),
    ],
}
"""What `torchrun` and `accelerate launch` run. On processors, the latter starts one rank unless it has MPI."""
WITHOUT_TORCH = """
import pathlib, sys, time
*_, results, how = sys.argv
if how == "fail":
    raise SystemExit("the last rank fails")
pathlib.Path(results, "0.waiting").touch()
time.sleep(1000)
"""
"""A rank that ends as those of PROGRAM do."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    host = Host(tmp_path_factory.mktemp("launchers"))
    try:
        for number in range(FILES):
            host.put(f"images/{number:03}", 1000 + number)
        host.up()
        yield host
    finally:
        host.close()


class Launch:
    """A group of processes that have the directory of their results as an argument."""

    def __init__(self, host: Host, name: str, *, ranks: int) -> None:
        self.results = host.base / name
        self.results.mkdir()
        self.environment = host.environment | {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TMPDIR": str(self.results),  # torchrun makes a directory for logs, and leaves it
        }
        self._ranks = range(ranks)
        self._log = self.results / "log"
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self, kind: type[subprocess.Popen[bytes]], command: Sequence[object], **environment: str
    ) -> None:
        with open(self._log, "a") as log:
            process = kind(
                list(map(str, command)),
                env=self.environment | environment,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                start_new_session=True,
            )
        self._started.append(process)

    @property
    def said(self) -> str:
        return self._log.read_text()

    def wait(self) -> list[int]:
        return [process.wait(LAUNCHED_WITHIN_S) for process in self._started]

    def wait_for_ranks(self) -> None:
        """Wait until all ranks wait."""

        def are_waiting() -> bool:
            assert all(process.poll() is None for process in self._started), self.said
            return all((self.results / f"{rank}.waiting").exists() for rank in self._ranks)

        wait_until(are_waiting, LAUNCHED_WITHIN_S, hint=lambda: self.said)

    def signal(self, number: signal.Signals) -> None:
        """End the job as its user would: torchrun ends its ranks."""
        for process in self._started:
            process.send_signal(number)

    def ranks(self) -> list[Any]:
        """Return what each rank wrote."""
        return [json.loads((self.results / f"{rank}.json").read_text()) for rank in self._ranks]

    def processes(self) -> list[str]:
        """Return the processes of the job that run."""
        running = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if os.fsencode(self.results) in words:
                running.append(f"{name} {b' '.join(words).decode(errors='replace')}")
        return running

    def check_nothing_left(self) -> None:
        wait_until(lambda: not self.processes(), hint=lambda: f"processes left: {self.processes()}")

    def close(self) -> None:
        """End all that runs."""
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for line in self.processes():
            try:
                os.kill(int(line.split()[0]), signal.SIGKILL)
            except ProcessLookupError:
                pass


class Launches:
    """Starts jobs of a test, and ends them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._launches: list[Launch] = []

    def _new(self, name: str, ranks: int) -> Launch:
        self._launches.append(Launch(self._host, name, ranks=ranks))
        return self._launches[-1]

    def planned(self, name: str, package: str, how: str, *, ranks: int) -> Launch:
        """Launch a job below the hook, on the mount."""
        launch = self._new(name, ranks)
        before = [sys.executable, "-m", "headrace", "run", "--name", name, "--", sys.executable, "-m"]
        job = [PROGRAM, package, self._host.mount / "images", launch.results, how]
        launch.start(subprocess.Popen, [*before, *LAUNCHERS[package], ranks, *job])
        return launch

    def ends(self, name: str, package: str, how: str) -> Launch:
        """Launch a rank that does nothing but end."""
        launch = self._new(name, 1)
        program = launch.results / "ends.py"
        program.write_text(WITHOUT_TORCH)
        before = [sys.executable, "-m", "tests.integration.plan.launcher", *LAUNCHERS[package]]
        launch.start(TorchPopen, [*before, 1, program, launch.results, how])
        return launch

    def forked(self, name: str, package: str, *, ranks: int) -> Launch:
        """Start ranks without a launcher. They read at the origin, and wait for nothing."""
        launch = self._new(name, ranks)
        (launch.results / "go").touch()
        job = [sys.executable, PROGRAM, package, self._host.truth / "images", launch.results, "wait"]
        (port,) = free_ports(1)
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        for rank in range(ranks):
            if package == "torch":
                launch.start(TorchPopen, job, RANK=str(rank), LOCAL_RANK=str(rank), **group)
            else:
                launch.start(TorchPopen, job, ACCELERATE_USE_CPU="true")
        return launch

    def close(self) -> None:
        for launch in self._launches:
            launch.close()


@pytest.fixture
def launches(host: Host) -> Iterator[Launches]:
    launches = Launches(host)
    yield launches
    launches.close()


def test_ranks_of_torchrun_read_and_compute_the_same(host: Host, launches: Launches) -> None:
    """In a last epoch, in which they wait until both have a plan. Then all end well."""
    launch = launches.planned("same", "torch", "wait", ranks=2)
    plain = launches.forked("plain", "torch", ranks=2)
    launch.wait_for_ranks()
    wait_until(lambda: states(host, "same") == ["planned"] * 2, hint=lambda: str(states(host, "same")))
    (launch.results / "go").touch()
    assert launch.wait() == [0], launch.said
    assert plain.wait() == [0, 0], plain.said
    assert launch.ranks() == plain.ranks()
    assert {index for rank in launch.ranks() for step in rank for index in step[0]} == set(range(FILES))
    assert "runs without a plan" not in launch.said
    launch.check_nothing_left()
    wait_until(lambda: host.plans("same") == [])


def test_torchrun_that_is_ended_ends_as_without_the_hook(host: Host, launches: Launches) -> None:
    launch = launches.planned("ended", "torch", "wait", ranks=1)
    plain = launches.ends("plain-ended", "torch", "wait")
    for job in (launch, plain):
        job.wait_for_ranks()
    wait_until(lambda: states(host, "ended") == ["planned"], hint=lambda: str(states(host, "ended")))
    for job in (launch, plain):
        job.signal(signal.SIGTERM)
    assert launch.wait() == plain.wait() != [0], launch.said
    for job in (launch, plain):
        job.check_nothing_left()


def test_a_failed_rank_of_accelerate_computed_the_same_and_ends_as_without_the_hook(
    host: Host, launches: Launches
) -> None:
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed: pip install 'headrace[plan-providers]'")
    launch = launches.planned("failed", "accelerate", "fail", ranks=1)
    plain = launches.forked("plain-accelerate", "accelerate", ranks=1)
    plain_end = launches.ends("plain-failed", "accelerate", "fail")
    assert launch.wait() == plain_end.wait() != [0], launch.said
    assert "the last rank fails" in launch.said
    assert plain.wait() == [0], plain.said
    (steps,), (all_steps,) = launch.ranks(), plain.ranks()
    assert steps == all_steps[: len(steps)]
    assert len(steps) == len(all_steps) * 2 / 3
    assert {index for step in steps for index in step[0]} == set(range(FILES))
    assert "runs without a plan" not in launch.said
    launch.check_nothing_left()


def states(host: Host, job: str) -> list[str]:
    """Return the states of the job's plans."""
    return [row["state"] for row in host.plans(job)]
