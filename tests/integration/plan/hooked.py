"""Programs below the plan hook that are forks, which have imported torch already. `headrace run` says what environment
they have; test_run and test_launchers see it start programs itself."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from tests.fork_server import TorchPopen
from tests.integration.cli.host import Host, Up


def environment_of_run(host: Host, job: str) -> dict[str, str]:
    """Return the environment of a program that `headrace run` starts."""
    said = host.ok("run", "--name", job, "--", "env", "--null")
    pairs = (pair.partition("=") for pair in said.split("\0") if pair)
    return {name: value for name, _, value in pairs}


def start_hooked(host: Host, words: Sequence[object], *, job: str = "job") -> Up:
    """Start a program of Python in the background, as a process group of its own."""
    errors = host.base / f"stderr-of-{job}"
    with errors.open("wb") as sink:
        process: subprocess.Popen[bytes] = TorchPopen(
            list(map(str, words)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=sink,
            env=environment_of_run(host, job),
            start_new_session=True,
            cwd=host.base,
        )
    return Up(process, errors)
