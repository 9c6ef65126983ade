"""Run a benchmark on many hosts: how they find each other, and how ssh starts them.

Under SLURM (`srun --ntasks-per-node=1 headrace bench training ...`) each host reads its number and the first host's
name from the environment. The first host creates the data set; the others wait for it at the meeting place.
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
"""Default port of the meeting place."""
DATA_WITHIN = timedelta(hours=12)
"""Longest wait for the data set."""


@dataclass(frozen=True, slots=True)
class BenchHosts:
    """Describe this host's part. count: number of all hosts. number: this host's, from 0. meet: HOST:PORT on the first
    host; the next port is used, too."""

    count: int = 1
    number: int = 0
    meet: str = ""

    @property
    def accelerators_meet(self) -> str:
        name, port = address(self.meet)
        return f"{name}:{port + 1}"


def address(text: str) -> tuple[str, int]:
    """Return the host and port. Raises UsageError."""
    name, _, port = text.rpartition(":")
    if not name or not port.isdigit():
        raise UsageError(f"--meet {text}", why="it must be HOST:PORT", hint=f"for example node1:{PORT}")
    return name, int(port)


def of_slurm(environment: Mapping[str, str]) -> BenchHosts | None:
    """Return the hosts of a SLURM job step; None outside of one, or with one host.

    Raises UsageError if a host has several tasks, because each would count as a host.
    """
    count = int(environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_NNODES") or 1)
    if "SLURM_PROCID" not in environment or count < 2:
        return None
    if int(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or count) != count:
        raise UsageError(
            "srun", why="a host has several tasks", hint="--ntasks-per-node=1; set the rest by --accelerators"
        )
    listed = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    return BenchHosts(count, int(environment["SLURM_NODEID"]), f"{first_of(listed)}:{PORT}")


def first_of(nodes: str) -> str:
    """Return the first host of SLURM's list: "gpu[003-006,9],login" → "gpu003". Raises UsageError."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+))?", nodes)
    if match is None:
        raise UsageError(
            "SLURM_JOB_NODELIST", why=f"not a list of hosts: {nodes!r}", hint="--hosts, --host and --meet"
        )
    return match[1] + (match[2] or "")


class MeetingPlace:
    """Make the hosts' first processes wait until the data set exists. Does nothing for a single host."""

    def __init__(self, hosts: BenchHosts) -> None:
        self._store: Any = None
        if hosts.count > 1:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch documents it by this name

            name, port = address(hosts.meet)
            # the first host does not wait, so that a late host can't make it fail
            self._store = TCPStore(
                name, port, hosts.count, hosts.number == 0, DATA_WITHIN, wait_for_workers=False
            )

    def data_is_made(self) -> None:
        """Wake the hosts that wait for the data set."""
        if self._store is not None:
            self._store.set("data", b"made")

    def wait_for_data(self) -> None:
        if self._store is not None:
            self._store.wait(["data"], DATA_WITHIN)


def over_ssh(names: Sequence[str], words: Sequence[str], *, program: str) -> int:
    """Run the same command on each host, with its number, and print the output of the first host.

    Return the first status that is not 0, or 0. If one host fails, all are terminated. program: the command that runs
    headrace there.
    """
    if len(names) < 2:
        raise UsageError("--ssh", why="it needs two hosts or more, separated by commas")
    meet = f"{names[0].rpartition('@')[2]}:{PORT}"
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number, name in enumerate(names):
            host_options = ["--hosts", str(len(names)), "--host", str(number), "--meet", meet]
            command = shlex.join([*shlex.split(program), *words, *host_options])
            ssh = [
                "ssh",
                "-tt",
                "-o",
                "BatchMode=yes",
                name,
                command,
            ]  # a terminal: the remote command ends when this process does
            output = None if number == 0 else subprocess.DEVNULL
            started.append(subprocess.Popen(ssh, stdin=subprocess.DEVNULL, stdout=output, stderr=output))
        return _first_failure(started)
    except OSError as error:
        raise HeadraceError("ssh does not run", why=str(error)) from error
    finally:
        for process in started:
            if process.poll() is None:
                process.terminate()
            process.wait()


def _first_failure(started: Sequence[subprocess.Popen[bytes]]) -> int:
    running = list(started)
    while running:
        for process in list(running):
            try:
                status = process.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
            if status != 0:
                return status
            running.remove(process)
    return 0


def words_without_ssh(words: Sequence[str] = ()) -> list[str]:
    """Return this process's command line without the options that name the hosts."""
    kept_words, skips_next = [], False
    for word in words or sys.argv[1:]:
        if skips_next:
            skips_next = False
        elif word in ("--ssh", "--remote"):
            skips_next = True
        elif not word.startswith(("--ssh=", "--remote=")):
            kept_words.append(word)
    return kept_words
