"""`headrace run` before torchrun and `accelerate launch`: ranks read and compute the same, and end as without it."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.host import Host, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(420)]

FILES = 80
LAUNCHED_WITHIN_S = 200
PROGRAM = Path(__file__).with_name("launched.py")
LAUNCHERS = {
    "torch": ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
    "accelerate": [
        *("accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1"),
        *("--mixed_precision", "no", "--dynamo_backend", "no"),
    ],
}
"""What `torchrun` and `accelerate launch` run. On processors, the latter starts one rank unless it has MPI."""
RANKS = {"torch": 2, "accelerate": 1}


@pytest.fixture(params=list(LAUNCHERS))
def package(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed: pip install 'headrace[plan-providers]'")
    return str(request.param)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    try:
        for number in range(FILES):
            host.put(f"images/{number:03}", 1000 + number)
        host.up()
        yield host
    finally:
        host.close()


class Launch:
    """A job of two ranks, with the hook on a mount, or without both."""

    def __init__(self, host: Host, package: str, *stop: str, is_planned: bool) -> None:
        self._results = host.base / ("planned" if is_planned else "plain")
        self._results.mkdir()
        self._ranks = range(RANKS[package])
        folder = host.mount if is_planned else host.truth
        words = [*LAUNCHERS[package], PROGRAM, package, folder / "images", self._results, *stop]
        before = [host.python, "-m", "headrace", "run", "--name", "job", "--"] if is_planned else []
        self._log = self._results / "log"
        with open(self._log, "w") as log:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", *map(str, words)],
                env=host.environment | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
                stdout=log,
                stderr=log,
                cwd=host.base,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    def wait(self) -> int:
        return self.process.wait(LAUNCHED_WITHIN_S)

    def is_waiting(self) -> bool:
        assert self.process.poll() is None, self.said
        return all((self._results / f"{rank}.waiting").exists() for rank in self._ranks)

    def ranks(self) -> list[Any]:
        """Return what each rank wrote."""
        return [json.loads((self._results / f"{rank}.json").read_text()) for rank in self._ranks]

    def processes(self) -> list[str]:
        """Return the processes of the job that run: all have the directory of their results as an argument."""
        running = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if os.fsencode(self._results) in words:
                running.append(f"{name} {b' '.join(words).decode(errors='replace')}")
        return running

    def signal(self, number: signal.Signals, package: str) -> None:
        """End the job as its user would: torchrun ends its ranks, and `accelerate launch` does not."""
        if package == "torch":
            self.process.send_signal(number)
        else:
            os.killpg(self.process.pid, number)

    def check_nothing_left(self) -> None:
        wait_until(lambda: not self.processes(), hint=lambda: f"processes left: {self.processes()}")

    def close(self) -> None:
        """End all that runs."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for line in self.processes():
            try:
                os.kill(int(line.split()[0]), signal.SIGKILL)
            except ProcessLookupError:
                pass


@pytest.fixture
def launches() -> Iterator[list[Launch]]:
    launches: list[Launch] = []
    yield launches
    for launch in launches:
        launch.close()


def test_ranks_read_and_compute_the_same(host: Host, package: str, launches: list[Launch]) -> None:
    launches += [Launch(host, package, is_planned=is_planned) for is_planned in (True, False)]
    for launch in launches:
        assert launch.wait() == 0, launch.said
    planned, plain = (launch.ranks() for launch in launches)
    assert planned == plain
    assert {index for rank in planned for step in rank for index in step[0]} == set(range(FILES))
    assert "runs without a plan" not in launches[0].said
    for launch in launches:
        launch.check_nothing_left()
    wait_until(lambda: host.json("plan", "show", "job") == [])


@pytest.mark.parametrize("how", ["fail", "SIGTERM"])
def test_a_job_that_ends_early_ends_as_without_the_hook(
    host: Host, package: str, launches: list[Launch], how: str
) -> None:
    stop = how if how == "fail" else "wait"
    launches += [Launch(host, package, stop, is_planned=is_planned) for is_planned in (True, False)]
    if how != "fail":
        for launch in launches:
            wait_until(launch.is_waiting, LAUNCHED_WITHIN_S, hint=partial(getattr, launch, "said"))
        wait_until(lambda: states(host) == ["planned"] * RANKS[package], hint=lambda: str(states(host)))
        for launch in launches:
            launch.signal(signal.Signals[how], package)
    planned, plain = (launch.wait() for launch in launches)
    assert planned == plain != 0, launches[0].said
    for launch in launches:
        launch.check_nothing_left()


def states(host: Host) -> list[str]:
    """Return the states of the job's plans."""
    return [row["state"] for row in host.json("plan", "show", "job")]
