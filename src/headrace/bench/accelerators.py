"""The processes of a run: all simulated accelerators of one or more hosts (as the lab's), started, heard, ended.

Before and after each epoch everybody waits until `between` has returned, on all hosts of this process.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from headrace.base.errors import DeadlineExceededError, HeadraceError
from headrace.bench.loader_spec import RankPlan
from headrace.bench.metrics import EpochTimes
from headrace.bench.process import Process

EPOCH_WITHIN_S = 24 * 3600.0
Between = Callable[[str, int], None]
"""("ready" | "done", number of the epoch)."""


@dataclass(frozen=True, slots=True)
class Host:
    """plan: what its accelerators do. inside: words before a command for it to run there."""

    plan: RankPlan
    accelerators: int
    inside: tuple[str, ...] = ()


def run(hosts: Sequence[Host], between: Between) -> list[list[EpochTimes]]:
    """Of each epoch, the times of all accelerators; nothing where the first host is another process's. Blocks to the
    end; all processes are gone on return. HeadraceError with what an accelerator said."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        started: list[Process] = []
        speakers: list[Process] = []
        try:
            for number, host in enumerate(hosts):
                path = os.path.join(folder, f"plan-{number}.json")
                with open(path, "wb") as out:
                    out.write(msgspec.json.encode(host.plan))
                for local in range(host.accelerators):
                    words = ["-m", "headrace.bench.rank", path, str(local)]
                    started.append(Process(words, inside=host.inside, log=f"{path}-{local}.log"))
                speakers.append(started[-host.accelerators])
            for epoch in range(1, hosts[0].plan.epochs + 1):
                for event in ("ready", "done"):
                    _hear(speakers, started, event, epoch)
                    between(event, epoch)
                    for one in speakers:
                        one.answer()
            for one in started:
                one.end()
        finally:
            for one in started:
                one.kill()
    return _times(hosts[0].plan)


def _hear(speakers: Sequence[Process], all_of_them: Sequence[Process], event: str, epoch: int) -> None:
    waiting, until_s = list(speakers), time.monotonic() + EPOCH_WITHIN_S
    while waiting:
        if (line := waiting[0].heard()) is not None:
            if line.get(event) != epoch:
                raise HeadraceError("an accelerator is at another epoch", why=f"{line}, not {event} {epoch}")
            waiting.pop(0)
        for one in all_of_them:
            if one.failed():
                raise one.error()
        if time.monotonic() > until_s:
            raise DeadlineExceededError(f"epoch {epoch} does not end")


def _times(plan: RankPlan) -> list[list[EpochTimes]]:
    if plan.first != 0:
        return []
    with open(plan.out, "rb") as source:
        by_rank = msgspec.json.decode(source.read(), type=list[list[EpochTimes]])
    return [list(one) for one in zip(*by_rank, strict=True)]
