"""Ranks of torch.distributed (gloo) on this machine: a program that forks them, and the run of one, with a limit."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tests.fork_server import TorchPopen

ROOT = Path(__file__).parents[2]


def fork_ranks(count: int, rank_main: Callable[..., None], *words: str) -> int:
    """rank_main(rank, *words) in so many processes, which have the caller's imports. The program's status: 0 when all
    ended well."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=rank_main, args=(rank, *words)) for rank in range(count)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return int(any(process.exitcode for process in ranks))


def run_ranks(program: str, folder: Path, *words: str, limit_s: float) -> None:
    """A module of the tests, called with the folder and the words; ended with all its ranks, whatever happens."""
    log = folder / "log"
    with open(log, "w") as output:
        ranks: TorchPopen[bytes] = TorchPopen(
            [sys.executable, "-m", program, str(folder), *words],
            stdout=output,
            stderr=output,
            cwd=ROOT,
            start_new_session=True,
        )
        try:
            status = ranks.wait(timeout=limit_s)
        finally:
            if ranks.poll() is None:
                os.killpg(ranks.pid, signal.SIGKILL)
                ranks.wait()
    assert status == 0, log.read_text()[-3000:]
