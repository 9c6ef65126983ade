"""Run the processes of all simulated accelerators, on one host or several (as the lab's).

Before and after each epoch all accelerators wait until `between` has returned, on all hosts of this process.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import DeadlineExceededError, HeadraceError
from headrace.bench.loader_spec import RankPlan
from headrace.bench.metrics import EpochTimes
from headrace.bench.process import Process

EPOCH_WITHIN_S = 24 * 3600.0
"""Longest time of one epoch, in seconds."""
Between = Callable[[str, int], None]
"""A callback with ("ready" | "done", number of the epoch)."""


@dataclass(frozen=True, slots=True)
class Host:
    """Describe one host. plan: its accelerators' work. inside: a command prefix that runs a command on that host."""

    plan: RankPlan
    accelerators: int
    inside: tuple[str, ...] = ()


def run(hosts: Sequence[Host], between: Between) -> list[list[EpochTimes]]:
    """Return the times of all accelerators for each epoch; nothing if the first host belongs to another process.

    Blocks until all epochs end; on return all processes have ended. Raises HeadraceError with an accelerator's error.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        started: list[Process] = []
        speakers: list[Process] = []
        try:
            for number, host in enumerate(hosts):
                path = os.path.join(folder, f"plan-{number}.json")
                with open(path, "wb") as out:
                    out.write(msgspec.json.encode(host.plan))
                for local in range(host.accelerators):
                    arguments = ["-m", "headrace.bench.rank", path, str(local)]
                    started.append(Process(arguments, inside=host.inside, log=f"{path}-{local}.log"))
                speakers.append(started[-host.accelerators])
            for epoch in range(1, hosts[0].plan.epochs + 1):
                for event in ("ready", "done"):
                    _await_event(speakers, started, event, epoch)
                    between(event, epoch)
                    for speaker in speakers:
                        speaker.answer()
            for process in started:
                process.end()
        finally:
            for process in started:
                process.kill()
    return _times(hosts[0].plan)


def _await_event(speakers: Sequence[Process], processes: Sequence[Process], event: str, epoch: int) -> None:
    waiting, until_s = list(speakers), time.monotonic() + EPOCH_WITHIN_S
    while waiting:
        if (line := waiting[0].read_message()) is not None:
            if line.get(event) != epoch:
                raise HeadraceError("an accelerator is at another epoch", why=f"{line}, not {event} {epoch}")
            waiting.pop(0)
        for process in processes:
            if process.failed():
                raise process.error()
        if time.monotonic() > until_s:
            raise DeadlineExceededError(f"epoch {epoch} does not end")


def _times(plan: RankPlan) -> list[list[EpochTimes]]:
    if plan.first != 0:
        return []
    with open(plan.out, "rb") as source:
        by_rank = decode_json(source.read(), list[list[EpochTimes]])
    return [list(epoch) for epoch in zip(*by_rank, strict=True)]
