"""A run over many hosts: how they know of each other, and starting it by ssh.

Under SLURM (`srun --ntasks-per-node=1 headrace bench training ...`) each host finds its number and the first one's
name by itself. The first host makes the data set; the others wait for it at the meeting place.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from headrace.base.errors import HeadraceError, UsageError

PORT = 29540
DATA_WITHIN = timedelta(hours=12)


@dataclass(frozen=True, slots=True)
class BenchHosts:
    """count: of all; number: this one's, from 0. meet: HOST:PORT on the first; the port above it is used, too."""

    count: int = 1
    number: int = 0
    meet: str = ""

    @property
    def accelerators_meet(self) -> str:
        name, port = address(self.meet)
        return f"{name}:{port + 1}"


def address(text: str) -> tuple[str, int]:
    """UsageError."""
    name, _, port = text.rpartition(":")
    if not name or not port.isdigit():
        raise UsageError(f"--meet {text}", why="not HOST:PORT", hint=f"for example node1:{PORT}")
    return name, int(port)


def of_slurm(environment: Mapping[str, str]) -> BenchHosts | None:
    """None where this is no task of a job step over several hosts. UsageError where a host has several tasks: each
    would be a whole host."""
    count = int(environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_NNODES") or 1)
    if "SLURM_PROCID" not in environment or count < 2:
        return None
    if int(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or count) != count:
        raise UsageError(
            "srun", why="several tasks on a host", hint="--ntasks-per-node=1; --accelerators says the rest"
        )
    listed = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    return BenchHosts(count, int(environment["SLURM_NODEID"]), f"{first_of(listed)}:{PORT}")


def first_of(nodes: str) -> str:
    """Of SLURM's list: "gpu[003-006,9],login" → "gpu003"."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+))?", nodes)
    if match is None:
        raise UsageError(
            "SLURM_JOB_NODELIST", why=f"not a list of hosts: {nodes!r}", hint="--hosts, --host and --meet"
        )
    return match[1] + (match[2] or "")


class MeetingPlace:
    """Where the hosts' first processes wait until the data set is made. Nothing where there is one host."""

    def __init__(self, hosts: BenchHosts) -> None:
        self._store: Any = None
        if hosts.count > 1:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch's documented name of it

            name, port = address(hosts.meet)
            # not waiting for the others here: who comes late must not fail the first
            self._store = TCPStore(
                name, port, hosts.count, hosts.number == 0, DATA_WITHIN, wait_for_workers=False
            )

    def data_is_made(self) -> None:
        if self._store is not None:
            self._store.set("data", b"made")

    def wait_for_data(self) -> None:
        if self._store is not None:
            self._store.wait(["data"], DATA_WITHIN)


def over_ssh(names: Sequence[str], words: Sequence[str], *, program: str) -> int:
    """The same command on each host, with its number; what the first prints is printed. The first status that is not 0,
    else 0. All are ended when one fails. program: how headrace is called there."""
    if len(names) < 2:
        raise UsageError("--ssh", why="two hosts or more, with commas between")
    meet = f"{names[0].rpartition('@')[2]}:{PORT}"
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number, name in enumerate(names):
            place = ["--hosts", str(len(names)), "--host", str(number), "--meet", meet]
            command = shlex.join([*shlex.split(program), *words, *place])
            ssh = [
                "ssh",
                "-tt",
                "-o",
                "BatchMode=yes",
                name,
                command,
            ]  # a terminal: who loses us ends there, too
            output = None if number == 0 else subprocess.DEVNULL
            started.append(subprocess.Popen(ssh, stdin=subprocess.DEVNULL, stdout=output, stderr=output))
        return _first_failure(started)
    except OSError as error:
        raise HeadraceError("ssh does not run", why=str(error)) from error
    finally:
        for one in started:
            if one.poll() is None:
                one.terminate()
            one.wait()


def _first_failure(started: Sequence[subprocess.Popen[bytes]]) -> int:
    left = list(started)
    while left:
        for one in list(left):
            try:
                status = one.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
            if status != 0:
                return status
            left.remove(one)
    return 0


def words_without_ssh(words: Sequence[str] = ()) -> list[str]:
    """Our own command line without what says which hosts."""
    found, skip = [], False
    for word in words or sys.argv[1:]:
        if skip:
            skip = False
        elif word in ("--ssh", "--remote"):
            skip = True
        elif not word.startswith(("--ssh=", "--remote=")):
            found.append(word)
    return found
